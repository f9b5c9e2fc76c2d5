"""Savepoints: checkpoints that a user asks for and owns."""

from spark_statestore.savepoint.assign import ProgramOperator, assign_states
from spark_statestore.savepoint.coordinator import CheckpointIdCounter, SavepointCoordinator
from spark_statestore.savepoint.stores.base import StateStore
from spark_statestore.savepoint.stores.factory import SavepointStoreFactory
from spark_statestore.savepoint.stores.filesystem import FileSystemStateStore
from spark_statestore.savepoint.stores.heap import HeapStateStore
from spark_statestore.savepoint.stores.savepoints import SavepointStore

__all__ = [
    "CheckpointIdCounter",
    "FileSystemStateStore",
    "HeapStateStore",
    "ProgramOperator",
    "SavepointCoordinator",
    "SavepointStore",
    "SavepointStoreFactory",
    "StateStore",
    "assign_states",
]
