"""The file system contract, fault injection, and a state machine of the store; needs pytest and Hypothesis.

A class with two fixtures tests your own file system against the contract of this package's file systems::

    class TestMyFiles(FileSystemTests):
        @pytest.fixture
        def files(self) -> FileSystem:
            return MyFileSystem()

        @pytest.fixture
        def directory(self) -> str:
            return "/an/empty/directory"

Class attributes, such as ``creates_exclusively``, exclude guarantees that the file system does not give;
every test can be overridden. `VersionStoreMachine` runs commits, aborts and reloads of the store on it, and
compares the result with plain dicts; `FaultInjectingFileSystem` fails at chosen calls.
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
    "damage_machine",
    "file_systems",
    "version_machine",
)
# Assertion rewriting shows the values of a failing assertion, as in a test module.
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _ASSERTING))

from spark_statestore.testing.crash_machine import CrashingVersionStoreMachine
from spark_statestore.testing.damage_machine import DamagedVersionStoreMachine
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import CrashedError, Fault
from spark_statestore.testing.file_systems import FileSystemTests
from spark_statestore.testing.version_machine import VersionStoreMachine

__all__ = [
    "CrashedError",
    "CrashingVersionStoreMachine",
    "DamagedVersionStoreMachine",
    "Fault",
    "FaultInjectingFileSystem",
    "FileSystemTests",
    "VersionStoreMachine",
]
