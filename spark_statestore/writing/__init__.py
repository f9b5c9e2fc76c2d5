"""Write of state: corrections, deletions, imports, and changes of the query, without Spark."""

from spark_statestore.writing.bootstrap import bootstrap
from spark_statestore.writing.migrate import Migration, migrate
from spark_statestore.writing.write import WrittenState, write_state

__all__ = ["Migration", "WrittenState", "bootstrap", "migrate", "write_state"]
