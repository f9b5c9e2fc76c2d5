"""State of an operator that is not kept by key: lists that are redistributed, and broadcast maps."""

from spark_statestore.state.operator.arrow import ArrowSerializer
from spark_statestore.state.operator.broadcast_state import BroadcastState, HeapBroadcastState
from spark_statestore.state.operator.default import DefaultOperatorStateBackend
from spark_statestore.state.operator.descriptors import ListStateDescriptor, MapStateDescriptor
from spark_statestore.state.operator.list_state import ListState, PartitionableListState
from spark_statestore.state.operator.query import QueryOperatorState
from spark_statestore.state.operator.repartition import (
    OperatorStateRepartitioner,
    RoundRobinOperatorStateRepartitioner,
)
from spark_statestore.state.operator.serializers import (
    BytesSerializer,
    Compatibility,
    StateSerializer,
)
from spark_statestore.state.operator.store import OperatorStateBackend, OperatorStateStore

__all__ = [
    "ArrowSerializer",
    "BroadcastState",
    "BytesSerializer",
    "Compatibility",
    "DefaultOperatorStateBackend",
    "HeapBroadcastState",
    "ListState",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "OperatorStateBackend",
    "OperatorStateRepartitioner",
    "OperatorStateStore",
    "PartitionableListState",
    "QueryOperatorState",
    "RoundRobinOperatorStateRepartitioner",
    "StateSerializer",
]
