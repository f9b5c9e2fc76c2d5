"""The checkpoint of a whole streaming query: what Spark keeps in its location, and our stores in it."""

from spark_statestore.checkpoint.query.checkpoint import QueryCheckpoint, StoreVersion
from spark_statestore.checkpoint.query.logs import CommitEntry, OffsetEntry
from spark_statestore.checkpoint.query.operators import OperatorStore, StatefulOperator

__all__ = [
    "CommitEntry",
    "OffsetEntry",
    "OperatorStore",
    "QueryCheckpoint",
    "StatefulOperator",
    "StoreVersion",
]
