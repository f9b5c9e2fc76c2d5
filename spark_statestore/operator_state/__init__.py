"""State of an operator that is not kept by key: lists that are redistributed, and broadcast maps."""

from spark_statestore.operator_state.arrow_serializer import ArrowSerializer
from spark_statestore.operator_state.backend import OperatorStateBackend, OperatorStateStore
from spark_statestore.operator_state.batch_state import BatchOperatorState
from spark_statestore.operator_state.broadcast_state import BroadcastState, HeapBroadcastState
from spark_statestore.operator_state.default_backend import DefaultOperatorStateBackend
from spark_statestore.operator_state.descriptors import ListStateDescriptor, MapStateDescriptor
from spark_statestore.operator_state.list_state import ListState, PartitionableListState
from spark_statestore.operator_state.query_operator_state import QueryOperatorState
from spark_statestore.operator_state.repartition import (
    OperatorStateRepartitioner,
    RoundRobinOperatorStateRepartitioner,
)
from spark_statestore.operator_state.serializers import BytesSerializer, Compatibility, StateSerializer

__all__ = [
    "ArrowSerializer",
    "BatchOperatorState",
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
