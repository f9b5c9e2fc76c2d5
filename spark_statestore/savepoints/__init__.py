"""Savepoints: checkpoints that a user requests and owns.

`spark_statestore.savepoint` and its siblings are the functions for users, see `spark_statestore.savepoints.api`.
"""

from spark_statestore.savepoints.coordinator import CheckpointIdCounter, SavepointCoordinator
from spark_statestore.savepoints.savepoint_store import SavepointStore, SavepointStoreFactory
from spark_statestore.storage.file_system_state_store import FileSystemStateStore
from spark_statestore.storage.state_store import HeapStateStore, StateStore

__all__ = [
    "CheckpointIdCounter",
    "FileSystemStateStore",
    "HeapStateStore",
    "SavepointCoordinator",
    "SavepointStore",
    "SavepointStoreFactory",
    "StateStore",
]
