"""Savepoints: checkpoints that a user requests and owns.

`spark_statestore.savepoint` and its siblings are the functions for users, see
`spark_statestore.savepoints.api`.
"""

from spark_statestore.query.state_store import FileSystemStateStore, HeapStateStore, StateStore
from spark_statestore.savepoints.coordinator import SavepointCoordinator
from spark_statestore.savepoints.savepoint_store import SavepointStore, SavepointStoreFactory

__all__ = [
    "FileSystemStateStore",
    "HeapStateStore",
    "SavepointCoordinator",
    "SavepointStore",
    "SavepointStoreFactory",
    "StateStore",
]
