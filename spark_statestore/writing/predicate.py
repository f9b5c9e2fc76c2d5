"""Deletion of the keys whose rows match a predicate, which is evaluated as the stores are copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_statestore.errors import OptionError
from spark_statestore.query import StatefulOperator
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.rows.columns import StateColumns
from spark_statestore.store.changelog_apply import ROW_SCHEMA
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.changes import ChangesOfStore, KeyCounts, is_store_of
from spark_statestore.writing.sql import ROW, Sql, failed, with_numbers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Rows per decoded batch, which bounds temporary memory.
_BATCH_ROWS: Final = 65_536


class Predicate(Protocol):
    """A condition that a row of a state fulfils or not."""

    def matching(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the positions of rows for which the predicate is true: neither false nor null."""


class MatchingDelete:
    """Deletion of the keys of a column family whose rows match a predicate.

    Parameters
    ----------
    predicate
        An expression, or SQL of DuckDB, over the columns that `read_state` returns.
    columns
        Decoder of all columns of the state.
    """

    def __init__(
        self,
        predicate: pc.Expression | str,
        operator: StatefulOperator,
        store: str,
        state: ColumnFamily,
        columns: StateColumns,
    ) -> None:
        self.counts = KeyCounts()
        self.replaces = False
        """See `StateChanges`."""
        self._predicate = predicate_of(predicate)
        self._operator = operator
        self._store = store
        self._state = state
        self._columns = columns
        # Raise for unknown columns and wrong types before the copy begins.
        self._predicate.matching(columns.empty())

    def apply(self, content: StoreSnapshot) -> StoreSnapshot:
        """Return a store without the keys; a store of another state is returned unchanged."""
        if not is_store_of(content, self._operator, self._store):
            return content
        return replace(content, rows=lambda: self._remaining_rows(content))

    def for_store(self, store: StoreId) -> ChangesOfStore:
        """Return the changes of one of the state's stores."""
        return ChangesOfStore(ROW_SCHEMA.empty_table(), None, partial(self._is_match, store.partition))

    def _is_match(self, partition: int, rows: pa.Table) -> pa.ChunkedArray:
        return is_match(self._predicate, rows, lambda batch: self._columns.decode(batch, partition))

    def _remaining_rows(self, content: StoreSnapshot) -> Iterator[tuple[str, pa.Table]]:
        for name, table in content.rows():
            if name != self._state.name:
                yield name, table
                continue
            matches = self._is_match(content.store.partition, table)
            self.counts.add(removed=pc.sum(matches).as_py() or 0)
            yield name, table.filter(pc.invert(matches))


def is_match(
    predicate: Predicate, rows: pa.Table, decode: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> pa.ChunkedArray:
    """Return for each row whether it fulfils a condition on the columns that `decode` returns of a batch."""
    import numpy as np

    chunks = []
    for batch in rows.to_batches(_BATCH_ROWS):
        matches = np.zeros(batch.num_rows, np.bool_)
        matches[predicate.matching(decode(batch))] = True
        chunks.append(matches)
    return pa.chunked_array(chunks, pa.bool_())


def predicate_of(condition: pc.Expression | str) -> Predicate:
    """Return a predicate by an expression or by SQL."""
    return SqlPredicate(condition) if isinstance(condition, str) else ExpressionPredicate(condition)


class ExpressionPredicate:
    """A predicate that is an expression of pyarrow."""

    def __init__(self, expression: pc.Expression) -> None:
        self._expression = expression

    def matching(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        import numpy as np

        try:
            matches = with_numbers(rows).filter(self._expression)
        except (pa.ArrowException, TypeError) as error:
            raise failed(f"the predicate {str(self._expression)!r}", error) from error
        return np.asarray(matches[ROW].to_numpy(), np.int64)


class SqlPredicate:
    """A predicate in DuckDB's SQL."""

    def __init__(self, condition: str) -> None:
        self._condition = condition
        self._sql = Sql(condition, f"the predicate {condition!r}")

    def matching(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        import numpy as np

        with self._sql.over(rows) as table:
            types = [str(kind) for kind in table.project(self._condition).types]
            if types != ["BOOLEAN"]:
                raise OptionError(
                    f"the predicate {self._condition!r} has the type {', '.join(types)}, but it must be "
                    'BOOLEAN. Compare it with a value, as in "value.count < 0". No copy was made.'
                )
            # Refuses aggregates and windows, which are not of one row.
            table.filter(self._condition)
            # A filter could be evaluated by Arrow's scan, for which NaN is not above all numbers.
            result = table.project(f'"{ROW}", {self._condition}').fetchnumpy()
        positions, matches = result.values()
        return np.asarray(positions[np.ma.filled(matches, False)], np.int64)
