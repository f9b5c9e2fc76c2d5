"""The contract tests of `spark_statestore.testing`: what they need, and that they notice a broken storage."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spark_statestore.testing as contracts
from spark_statestore.checkpoint.files import MemoryFileSystem
from spark_statestore.checkpoint.files.base import Buffer
from spark_statestore.checkpoint.streams import CheckpointedStateScope, MemCheckpointStreamFactory
from spark_statestore.testing import CheckpointStreamTests, FileSystemTests


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_without_pytest_or_hypothesis_they_say_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import spark_statestore.testing"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: spark_statestore.testing needs pytest and Hypothesis")
    assert "pip install 'spark-statestore[testing]'" in last
    assert missing in last


def test_the_rest_of_the_package_needs_neither() -> None:
    program = (
        "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None; "
        "import pkgutil, importlib, spark_statestore as s; "
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(s.__path__, 'spark_statestore.', lambda _: 0)"
        " if not m.name.startswith('spark_statestore.testing') and not m.name.endswith('__main__')]"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_they_are_not_collected_themselves() -> None:
    for name in contracts.__all__:
        assert not name.startswith("Test")


def test_a_file_system_that_replaces_is_noticed() -> None:
    class Replacing(MemoryFileSystem):
        def create(self, path: str, data: Buffer) -> None:
            self.replace(path, data)

    test = FileSystemTests().test_a_created_file_is_there_whole_and_is_never_replaced
    test(MemoryFileSystem(), "/d")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test(Replacing(), "/d")


def test_a_stream_that_loses_a_byte_is_noticed() -> None:
    class Losing(MemCheckpointStreamFactory):
        def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope):
            out = super().create_checkpoint_state_output_stream(scope)
            write = out.write
            out.write = lambda data: write(data[:-1])
            return out

    test = CheckpointStreamTests().test_what_is_written_is_read
    test(MemCheckpointStreamFactory(1 << 20), CheckpointedStateScope.SHARED)
    with pytest.raises(AssertionError):
        test(Losing(1 << 20), CheckpointedStateScope.SHARED)
