"""What the backend's process loads before its first commit, and what it never loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.harness import Provider


@pytest.mark.skipif(sys.platform != "linux", reason="tells loaded libraries from the process's memory map")
def test_a_backend_that_has_committed_has_loaded_neither_pandas_nor_numpy(spark: Any, tmp_path: Path):
    # What other tests have had their backends load says nothing.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    provider = Provider(spark, f"file:{tmp_path}", backend__python=str(python))
    store = provider.open(0)
    store.put(("a", 1), (2, "b"))
    store.commit()
    provider.close()
    pid = spark._jvm.org.apache.spark.sql.statestore.ProviderHarness.backendPid(str(python))
    backend = psutil.Process(pid)
    loaded = [mapped.path for mapped in backend.memory_maps()]
    backend.kill()
    assert any("pyarrow" in path for path in loaded)
    assert [path for path in loaded if "pandas" in path or "numpy" in path] == []


def test_others_in_the_backend_may_import_pandas_and_numpy():
    code = (
        "from spark_statestore.server.__main__ import _import_pyarrow\n"
        "_import_pyarrow()\n"
        "from spark_statestore.server import lifecycle\n"
        "lifecycle._settle_without_pandas()\n"
        "import sys, pyarrow\n"
        "pyarrow.array(['a'])\n"
        "assert {'numpy', 'pandas'}.isdisjoint(sys.modules)\n"
        "import numpy\n"
        "assert numpy.arange(3).sum() == 3\n"
        "import pandas\n"
        "pandas.DataFrame({'a': [1]})\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
