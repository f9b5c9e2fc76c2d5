"""A session that `configure` made brings the Python half to executors that have not installed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bare import bare_python
from tests.spark.counting import Program


@pytest.mark.slow
def test_executors_without_the_package_get_it_from_the_session(built: Path, tmp_path: Path) -> None:
    import pyspark

    python = bare_python(tmp_path / "bare")
    environment = {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": "",
        "PYTHONPATH": "",
    }
    confs = {"spark.master": "local-cluster[1,2,1024]", "spark.pyspark.python": str(python)}
    with Program("count", environment, confs=confs, checkpoint=str(tmp_path / "checkpoint")) as program:
        running = program.next("running")
        (command,) = running["commands"]
        assert command[0] == str(python)
        assert "spark_statestore-" in running["paths"][0]
        program.next("result")
        program.next("stopped")
        program.end()
