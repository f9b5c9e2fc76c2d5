"""Archive that `configure` ships to executors without an installed package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.spark.counting import Program
from tests.support.bare import bare_python
from tests.support.spark_versions import is_since


@pytest.mark.slow
def test_executors_run_backend_and_operator_state_from_the_archive_alone(built: Path, tmp_path: Path) -> None:
    import pyspark

    python = bare_python(tmp_path / "bare")
    environment = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": "",
    }
    confs = {"spark.master": "local-cluster[1,2,1024]", "spark.pyspark.python": str(python)}
    arguments = {"confs": confs, "checkpoint": str(tmp_path / "checkpoint"), "task": str(tmp_path / "sink")}
    with Program("count", environment, **arguments) as program:
        running = program.next("running")
        paths = {
            command[0]: path for command, path in zip(running["commands"], running["paths"], strict=True)
        }
        # The driver's backend, for Spark's files, has the driver's interpreter.
        assert paths.keys() == {str(python), sys.executable}
        assert "spark_statestore-" in paths[str(python)]
        task = program.next("task")
        assert ".zip/spark_statestore/" in task["module"]
        assert task["numbers"] == [0, 1, 2]
        assert "Call it on the driver" in task["refused"]
        # A daemon of this package would not have found it.
        assert task["worker"] == ["pyspark.daemon", is_since("4.1")]
        program.next("result")
        program.next("stopped")
        program.end()
