"""Difference of a state between two batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_statestore.errors import OptionError
from spark_statestore.query.parallel import parallel_map
from spark_statestore.rows.columns import PARTITION
from spark_statestore.rows.decode import decode_array
from spark_statestore.rows.source import find_state
from spark_statestore.rows.types import SparkType, parse_schema
from spark_statestore.store.changelog_apply import byte_sizes, numbered, slices

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Keys per batch of the result, and bytes of their rows on both sides.
_BATCH_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 1 << 28


def diff_state(
    path: str,
    batch_a: int,
    batch_b: int,
    operator: int = 0,
    store: str = "default",
    column_family: str | None = None,
    partition: int | None = None,
    *,
    checkpoints_dir: str | None = None,
) -> pa.Table:
    """Return the changes of a query's state from the end of one batch to the end of another.

    Values are compared by their bytes.

    Parameters
    ----------
    path, operator, store, column_family, partition, checkpoints_dir
        See `read_state`.
    batch_a, batch_b
        The batches. The second one may also be the earlier one, which reverses the changes.

    Returns
    -------
    pyarrow.Table
        A row for each key whose values differ: ``change`` (``added``, ``changed`` or ``removed``), ``key``,
        the values ``before`` and ``after`` (null where there is none; lists of values where a key may have
        several), and ``partition_id``.

    Raises
    ------
    CheckpointNotFoundError
        If there is no such query, batch, operator, store, column family or partition.
    OptionError
        If the query was rescaled between the batches.
    CorruptCheckpointError, CheckpointIOError, UnsupportedFormatError
        If the state cannot be read.
    """
    first, second = (
        find_state(path, operator, store, column_family, batch, partition, checkpoints_dir=checkpoints_dir)
        for batch in (batch_a, batch_b)
    )
    numbers = [source.partitions(batch) for source, batch in ((first, batch_a), (second, batch_b))]
    if numbers[0] != numbers[1]:
        raise OptionError(
            f"operator {operator} of {path} has {numbers[0]} partitions at batch {batch_a} and {numbers[1]} "
            f"at batch {batch_b}, as the query was rescaled in between: keys are in other partitions. "
            "Compare batches before the rescale or after it, or read both with read_state and compare these."
        )
    key = parse_schema(second.state.key_schema)
    values = [parse_schema(source.state.value_schema) for source in (first, second)]
    several = any(source.state.has_multiple_values for source in (first, second))
    before, after = (pa.list_(value.arrow) if several else value.arrow for value in values)
    schema = pa.schema(
        [
            ("change", pa.string()),
            ("key", key.arrow),
            ("before", before),
            ("after", after),
            (PARTITION, pa.int32()),
        ]
    )
    batches = []
    for old, new in zip(first.versions, second.versions, strict=True):
        changes = _Changes(*parallel_map(lambda part: part[0].table(part[1]), [(first, old), (second, new)]))
        for start, end in slices(changes.bytes, _BATCH_ROWS, _BATCH_BYTES):
            keys = changes.keys[start:end]
            columns = [changes.kinds(keys), decode_array(changes.key_bytes(keys), key)]
            for side, value in zip(changes.sides, values, strict=True):
                columns.append(side.lists(keys, value) if several else side.values(keys, value))
            columns.append(pa.repeat(pa.scalar(new.store.partition, pa.int32()), len(keys)))
            batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(batches, schema)


class _Side:
    """The rows of one batch, by key number: equal bytes have equal numbers on both sides."""

    def __init__(self, rows: pa.Table, keys: NDArray[np.int32], values: NDArray[np.int32], most: int) -> None:
        import numpy as np

        self._values = rows["value"]
        # Stable: values of a key are in order.
        self._order = np.argsort(keys, kind="stable")
        self.keys = keys[self._order]
        self.numbers = values[self._order]
        self.counts = np.bincount(keys, minlength=most)
        self._starts = np.cumsum(self.counts) - self.counts
        # Bytes of the values of each key.
        self.bytes = np.bincount(keys, byte_sizes(self._values), most).astype(np.int64)

    def values(self, keys: NDArray[np.int64], kind: SparkType) -> pa.StructArray:
        """Return the single value of each of these keys, null if it has none."""
        import numpy as np

        missing = self.counts[keys] == 0
        rows = self._order[np.where(missing, 0, self._starts[keys])] if len(self._order) else keys
        return decode_array(_take_rows(self._values, rows, missing), kind)

    def lists(self, keys: NDArray[np.int64], kind: SparkType) -> pa.ListArray:
        """Return all values of each of these keys, null if it has none."""
        import numpy as np

        counts = self.counts[keys]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        rows = self._order[np.repeat(self._starts[keys], counts) + inside]
        present = pa.array(counts > 0).buffers()[1]
        return pa.Array.from_buffers(
            pa.list_(kind.arrow),
            len(keys),
            [present, pa.py_buffer(offsets.astype(np.int32))],
            children=[decode_array(_take_rows(self._values, rows), kind)],
        )


class _Changes:
    """The keys whose values differ between two tables of rows."""

    def __init__(self, before: pa.Table, after: pa.Table) -> None:
        import numpy as np

        split = before.num_rows
        keys, self._dictionary = _numbered(before["key"], after["key"])
        values, _ = _numbered(before["value"], after["value"])
        most = len(self._dictionary)
        old = _Side(before, keys[:split], values[:split], most)
        new = _Side(after, keys[split:], values[split:], most)
        differs = old.counts != new.counts
        # Aligned, as these keys have equally many values on both sides.
        alike = [side.numbers[~differs[side.keys]] for side in (old, new)]
        differs[old.keys[~differs[old.keys]][alike[0] != alike[1]]] = True
        self.sides = (old, new)
        self.keys: NDArray[np.int64] = np.flatnonzero(differs)
        sizes = byte_sizes(pa.chunked_array([self._dictionary])) + old.bytes + new.bytes
        self.bytes: NDArray[np.int64] = sizes[self.keys]

    def kinds(self, keys: NDArray[np.int64]) -> pa.StringArray:
        """Return the kind of change of these keys."""
        import numpy as np

        old, new = self.sides
        kinds = np.where(
            old.counts[keys] == 0, "added", np.where(new.counts[keys] == 0, "removed", "changed")
        )
        return pa.array(kinds, pa.string())

    def key_bytes(self, keys: NDArray[np.int64]) -> pa.LargeBinaryArray:
        """Return the bytes of these keys."""
        return self._dictionary.take(pa.array(keys))


def _numbered(*columns: pa.ChunkedArray) -> tuple[NDArray[np.int32], pa.LargeBinaryArray]:
    return numbered(pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.binary()))


def _take_rows(
    column: pa.ChunkedArray, rows: NDArray[np.int64], missing: NDArray[np.bool_] | None = None
) -> pa.BinaryArray:
    """Return these rows, null where they are missing; the column as one array could exceed 32-bit offsets."""
    import numpy as np

    ends = np.cumsum([len(chunk) for chunk in column.chunks], dtype=np.int64)
    chunks = np.searchsorted(ends, rows, side="right")
    order = np.argsort(chunks, kind="stable")
    if missing is not None:
        order = order[~missing[order]]
    parts = []
    bounds = np.searchsorted(chunks[order], np.arange(len(ends) + 1))
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        inside = order[bounds[number] : bounds[number + 1]]
        first = int(ends[number]) - len(column.chunk(number))
        parts.append(column.chunk(number).take(pa.array(rows[inside] - first)))
    positions = np.zeros(len(rows), np.int64)
    positions[order] = np.arange(len(order))
    return pa.concat_arrays([*parts, pa.array([], pa.binary())]).take(pa.array(positions, mask=missing))
