"""State rows as typed columns: Spark's UnsafeRow bytes decoded and encoded without Spark."""

from spark_statestore.rows.decode import decode_rows
from spark_statestore.rows.diff import diff_state
from spark_statestore.rows.encode import encode_rows
from spark_statestore.rows.reader import iter_state, read_state

__all__ = ["decode_rows", "diff_state", "encode_rows", "iter_state", "read_state"]
