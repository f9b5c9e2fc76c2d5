"""SQL of DuckDB over the rows of a state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from spark_statestore.errors import MissingPackageError, OptionError

ROW: Final = "row number in its batch"
"""Column of row numbers, beside those of `read_state`."""


def with_numbers(rows: pa.RecordBatch) -> pa.Table:
    """Return rows with the column `ROW`."""
    import numpy as np

    numbers = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    return pa.Table.from_batches([rows]).append_column(ROW, numbers)


def failed(subject: str, error: Exception) -> OptionError:
    """Return the error of an expression that cannot be evaluated, such as "the predicate 'a < b'"."""
    reason = " ".join(str(error).split()).rstrip(".!")
    return OptionError(
        f"{subject} cannot be evaluated: {reason}. Use the columns and types that `read_state` returns, as "
        "in \"key.word = 'a' and value.count < 0\". No copy was made."
    )


class Sql:
    """An expression in SQL; each thread has a cursor of one database in memory.

    Parameters
    ----------
    what
        What it is, for error messages.

    Raises
    ------
    MissingPackageError
        If DuckDB is not installed.
    """

    def __init__(self, text: str, subject: str) -> None:
        try:
            import duckdb
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "SQL over state needs DuckDB: pip install duckdb. In Python, a pyarrow.compute.Expression "
                "needs no other package. No copy was made."
            ) from error
        self._text = text
        self._subject = subject
        self._error = duckdb.Error
        # Names in the text are columns, and not variables of this program.
        self._database = duckdb.connect(":memory:", config={"python_enable_replacements": False})

    @contextmanager
    def over(self, rows: pa.RecordBatch) -> Iterator[Any]:
        """Return DuckDB's relation of rows, with the column `ROW`; its errors are `OptionError`."""
        try:
            with self._database.cursor() as cursor:
                # A time without a zone would otherwise be one of this machine's zone.
                cursor.execute("SET TimeZone = 'UTC'")
                yield cursor.from_arrow(with_numbers(rows))
        except self._error as error:
            raise failed(self._subject, error) from error

    def column(self, rows: pa.RecordBatch) -> pa.ChunkedArray:
        """Return the value of the expression for each row."""
        with self.over(rows) as table:
            # Refuses aggregates and windows, which are not of one row.
            table.filter(f"({self._text}) is null")
            values = table.project(f'"{ROW}" as number, ({self._text}) as value').to_arrow_table()
        return values.sort_by("number")["value"]
