"""A session that `configure` made brings the Python half to executors that have not installed it."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import fsspec
import pyarrow
import pytest

from tests.spark.counting import Program


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter that has pyarrow and fsspec, but nothing of this project."""
    home = tmp_path / "bare"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    for package in pyarrow, fsspec:
        directory = Path(package.__file__).parent
        for path in directory.parent.glob(f"{directory.name}*"):
            if path.is_dir():
                (site / path.name).symlink_to(path)
    python = home / "bin" / "python"
    command = [python, "-c", "import pyarrow, fsspec; import spark_statestore"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "No module named 'spark_statestore'" in run.stderr
    return python


@pytest.mark.slow
def test_executors_without_the_package_get_it_from_the_session(
    built: Path, tmp_path: Path, bare_python: Path
) -> None:
    import pyspark

    environment = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": "",
        "PYTHONPATH": "",
    }
    confs = {"spark.master": "local-cluster[1,2,1024]", "spark.pyspark.python": str(bare_python)}
    with Program("count", environment, confs=confs, checkpoint=str(tmp_path / "checkpoint")) as program:
        running = program.next("running")
        (command,) = running["commands"]
        assert command[0] == str(bare_python)
        assert "spark_statestore-" in running["paths"][0]
        program.next("result")
        program.next("stopped")
        program.end()
