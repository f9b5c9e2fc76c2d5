"""The checkpoint location of a streaming query: Spark's logs and metadata, and the state stores."""

from spark_statestore.query.logs import CommitEntry, OffsetEntry
from spark_statestore.query.operators import OperatorStore, StatefulOperator
from spark_statestore.query.query_checkpoint import QueryCheckpoint, StoreVersion

__all__ = [
    "CommitEntry",
    "OffsetEntry",
    "OperatorStore",
    "QueryCheckpoint",
    "StatefulOperator",
    "StoreVersion",
]
