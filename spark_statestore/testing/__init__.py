"""Contract tests and state machines that any storage can be run against; needs pytest and Hypothesis.

A file system, a stream factory or a storage of your own is held to the same contract as those of
this package by a class with a few fixtures::

    class TestMyFiles(FileSystemTests):
        @pytest.fixture
        def files(self) -> FileSystem:
            return MyFileSystem()

        @pytest.fixture
        def directory(self) -> str:
            return "/an/empty/directory"

What an implementation does not promise is said by a class attribute, such as
``creates_exclusively``; every test can be overridden too. The state machines take a storage through
methods to override, and compare what they find with a plain model; `FaultInjectingFileSystem` fails
where it is told to.
"""

from __future__ import annotations

try:
    import hypothesis  # noqa: F401
    import pytest
except ImportError as error:
    raise ImportError(
        f"spark_statestore.testing needs pytest and Hypothesis, and {error.name!r} is not installed for this "
        "interpreter: pip install 'spark-statestore[testing]'. Nothing else in this package needs them."
    ) from error

_ASSERTING = (
    "crash_machine",
    "file_systems",
    "operator_machine",
    "registry_machine",
    "storages",
    "storages_by_kind",
    "stream_machine",
    "streams",
    "streams_by_kind",
    "version_machine",
)
# So that a failing assertion shows its values, as in a test module.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _ASSERTING))

from spark_statestore.testing.crash_machine import CrashingVersionStoreMachine
from spark_statestore.testing.faults import CrashedError, Fault, FaultInjectingFileSystem
from spark_statestore.testing.file_systems import FileSystemTests
from spark_statestore.testing.operator_machine import OperatorStateMachine
from spark_statestore.testing.registry_machine import SharedStateRegistryMachine
from spark_statestore.testing.storages import CheckpointStorageTests
from spark_statestore.testing.storages_by_kind import (
    FsCheckpointStorageTests,
    MemoryCheckpointStorageTests,
)
from spark_statestore.testing.stream_machine import CheckpointStreamMachine
from spark_statestore.testing.streams import CheckpointStreamTests
from spark_statestore.testing.streams_by_kind import (
    FsCheckpointStreamTests,
    MemoryCheckpointStreamTests,
)
from spark_statestore.testing.version_machine import VersionStoreMachine

__all__ = [
    "CheckpointStorageTests",
    "CheckpointStreamMachine",
    "CheckpointStreamTests",
    "CrashedError",
    "CrashingVersionStoreMachine",
    "Fault",
    "FaultInjectingFileSystem",
    "FileSystemTests",
    "FsCheckpointStorageTests",
    "FsCheckpointStreamTests",
    "MemoryCheckpointStorageTests",
    "MemoryCheckpointStreamTests",
    "OperatorStateMachine",
    "SharedStateRegistryMachine",
    "VersionStoreMachine",
]
