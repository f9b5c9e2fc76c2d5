"""Tests of `spark_statestore.testing`: its requirements, and that contracts detect broken storage."""

from __future__ import annotations

import subprocess
import sys

import pytest

import spark_statestore.testing as contracts
from spark_statestore.files import MemoryFileSystem
from spark_statestore.files.base import Buffer
from spark_statestore.testing import FileSystemTests


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_missing_pytest_or_hypothesis_names_the_extra(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import spark_statestore.testing"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: spark_statestore.testing needs pytest and Hypothesis")
    assert "pip install 'spark-statestore[testing]'" in last
    assert missing in last


def test_package_imports_without_pytest_and_hypothesis() -> None:
    program = (
        "import sys; sys.modules['pytest'] = sys.modules['hypothesis'] = None; "
        "import pkgutil, importlib, spark_statestore as s; "
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(s.__path__, 'spark_statestore.', "
        "lambda _: 0)"
        " if not m.name.startswith('spark_statestore.testing') and not m.name.endswith('__main__')]"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_contracts_are_not_collected_by_pytest() -> None:
    for name in contracts.__all__:
        assert not name.startswith("Test")


def test_file_system_contract_detects_a_create_that_replaces() -> None:
    class Replacing(MemoryFileSystem):
        def create(self, path: str, data: Buffer) -> None:
            self.replace(path, data)

    test = FileSystemTests().test_create_is_atomic_and_exclusive
    test(MemoryFileSystem(), "/d")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test(Replacing(), "/d")
