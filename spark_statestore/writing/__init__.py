"""State written without Spark: keys changed in a copy of a checkpoint, and state that a query starts with."""

from spark_statestore.writing.bootstrap import bootstrap
from spark_statestore.writing.write import WrittenState, write_state

__all__ = ["WrittenState", "bootstrap", "write_state"]
