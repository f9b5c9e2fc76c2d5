"""Savepoints: checkpoints that a user asks for and owns.

The package can be called: ``spark_statestore.savepoint(...)`` takes one, see `spark_statestore.savepoint.api`.
"""

import sys
import types
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from spark_statestore.savepoint.savepoint import Savepoint


class _Callable(types.ModuleType):
    # A submodule takes its name in the parent whenever it is first imported, so it must be the function as well.
    def __call__(self, *args: Any, **kwargs: Any) -> "Savepoint":
        from spark_statestore.savepoint.api import savepoint

        return savepoint(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
