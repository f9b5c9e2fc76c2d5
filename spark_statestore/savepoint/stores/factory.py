"""Which store keeps savepoints, by configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from spark_statestore.errors import StateStoreError
from spark_statestore.options import OPTION_PREFIX
from spark_statestore.savepoint.stores.base import StateStore
from spark_statestore.savepoint.stores.filesystem import FileSystemStateStore
from spark_statestore.savepoint.stores.heap import HeapStateStore
from spark_statestore.savepoint.stores.savepoints import SavepointStore

__all__ = [
    "SAVEPOINT_BACKEND_KEY",
    "SAVEPOINT_DIRECTORY_KEY",
    "SAVEPOINT_FILE_PREFIX",
    "SavepointStoreFactory",
]

_logger = logging.getLogger(__name__)

T = TypeVar("T")

SAVEPOINT_BACKEND_KEY: Final = "savepoints.state.backend"
"""``jobmanager`` (or ``memory``) or ``filesystem``."""

SAVEPOINT_DIRECTORY_KEY: Final = "savepoints.state.backend.fs.dir"
"""The directory of savepoints in files; the option ``savepointsDir`` means the same."""

SAVEPOINT_FILE_PREFIX: Final = "savepoint-"

_MEMORY: Final = ("jobmanager", "memory")


class SavepointStoreFactory:
    """Makes the store of savepoints that a configuration asks for.

    ================================================  ============================================
    configured                                        result
    ================================================  ============================================
    nothing, or ``jobmanager``                        in memory
    ``filesystem`` and a directory                    in files of the directory
    a directory and nothing else                      the same
    ``filesystem``, but checkpoints are in memory     in memory, with a warning: the savepoint would
                                                      point at state that goes with the process
    ``filesystem`` without a directory                in memory, with a warning
    a directory that cannot be used                   in memory, with a warning
    anything else                                     in memory, with a warning
    ================================================  ============================================

    Checkpoints are in memory if the option ``storage`` is ``memory`` and ``checkpointsDir`` is not
    set. A configuration never makes it raise.
    """

    @staticmethod
    def create_from_config(
        config: Mapping[str, str],
        *,
        serialize: Callable[[T], bytes],
        deserialize: Callable[[bytes], T],
        discard: Callable[[T], None],
    ) -> SavepointStore[T]:
        """Make the store.

        Parameters
        ----------
        config
            Options with or without their prefix, and the two keys of this module.
        serialize, deserialize
            A savepoint as bytes, and back.
        discard
            Removes the state of a savepoint, see `SavepointStore`.
        """
        return SavepointStore(_choose(config, serialize, deserialize), discard)


def _choose(
    config: Mapping[str, str], serialize: Callable[[T], bytes], deserialize: Callable[[bytes], T]
) -> StateStore[T]:
    directory = _get(config, SAVEPOINT_DIRECTORY_KEY) or _get(config, "savepointsDir")
    backend = _get(config, SAVEPOINT_BACKEND_KEY) or ("filesystem" if directory else "jobmanager")
    if backend in _MEMORY:
        return HeapStateStore()
    if backend != "filesystem":
        return _fall_back(f"{SAVEPOINT_BACKEND_KEY} is {backend!r}, but it must be jobmanager or filesystem")
    storage = _get(config, "storage") or "filesystem"
    if storage in _MEMORY and not _get(config, "checkpointsDir"):
        return _fall_back(
            "checkpoints are kept in memory, so that a savepoint in files would point at state that goes with "
            f"this process. Set {OPTION_PREFIX}storage to filesystem"
        )
    if not directory:
        return _fall_back(f"savepoints are to be kept in files, but {OPTION_PREFIX}savepointsDir is not set")
    try:
        return FileSystemStateStore(directory, SAVEPOINT_FILE_PREFIX, serialize, deserialize)
    except StateStoreError as error:
        return _fall_back(f"the directory of savepoints cannot be used: {error}")


def _get(config: Mapping[str, str], name: str) -> str:
    value = config.get(OPTION_PREFIX + name)
    return str((config.get(name) if value is None else value) or "").strip()


def _fall_back(why: str) -> HeapStateStore[T]:
    _logger.warning("savepoints are kept in memory and lost when this process ends: %s.", why)
    return HeapStateStore()
