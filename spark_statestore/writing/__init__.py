"""State written without Spark: corrected, deleted and imported keys in a copy of a checkpoint."""

from spark_statestore.writing.write import WrittenState, write_state

__all__ = ["WrittenState", "write_state"]
