"""Write of state: corrections, deletions, imports, and changes of the query, without Spark."""

from spark_statestore.writing.absence import Absence, verify_absent
from spark_statestore.writing.aggregation import aggregation_state
from spark_statestore.writing.bootstrap import bootstrap
from spark_statestore.writing.erase import Erasure, erase
from spark_statestore.writing.migrate import Migration, migrate
from spark_statestore.writing.write import WrittenState, write_state

__all__ = [
    "Absence",
    "Erasure",
    "Migration",
    "WrittenState",
    "aggregation_state",
    "bootstrap",
    "erase",
    "migrate",
    "verify_absent",
    "write_state",
]
