"""State rows as typed columns: the bytes of Spark's UnsafeRow decoded without Spark."""

from spark_statestore.rows.decode import decode_rows

__all__ = ["decode_rows"]
