"""Savepoints: checkpoints that a user asks for and owns."""

from spark_statestore.savepoint.stores.base import StateStore
from spark_statestore.savepoint.stores.factory import SavepointStoreFactory
from spark_statestore.savepoint.stores.filesystem import FileSystemStateStore
from spark_statestore.savepoint.stores.heap import HeapStateStore
from spark_statestore.savepoint.stores.savepoints import SavepointStore

__all__ = [
    "FileSystemStateStore",
    "HeapStateStore",
    "SavepointStore",
    "SavepointStoreFactory",
    "StateStore",
]
