"""Modules that the backend imports, and those that it must not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.harness import Provider


@pytest.mark.skipif(sys.platform != "linux", reason="reads loaded libraries from /proc")
def test_backend_commits_without_pandas_and_numpy(spark: Any, tmp_path: Path):
    # A new process, as backends of other tests may have loaded more.
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


def test_drivers_can_import_pandas_and_numpy_in_the_backend():
    code = (
        "from spark_statestore.backend.__main__ import _import_pyarrow\n"
        "_import_pyarrow()\n"
        "from spark_statestore.backend import lifecycle\n"
        "lifecycle._disable_pandas()\n"
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
