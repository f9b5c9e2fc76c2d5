"""Log line of each executor with the location of state and its Python interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.counting import Program

MARK = " INFO Backend: state store: "


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        "filesystem",
        pytest.param("checkpointsDir", marks=pytest.mark.soak),
        pytest.param("memory", marks=pytest.mark.soak),
    ],
)
def test_each_executor_logs_storage_directory_and_interpreter_once(
    built: Path, tmp_path: Path, chosen: str
) -> None:
    checkpoint, elsewhere = tmp_path / "checkpoint", tmp_path / "elsewhere"
    options, destination = {
        "filesystem": ({}, f"storage filesystem, directory file:{checkpoint}/state"),
        "checkpointsDir": (
            {"checkpointsDir": f"file:{elsewhere}"},
            f"storage filesystem, directory file:{elsewhere}",
        ),
        "memory": ({"storage": "memory"}, "storage memory, directory none (state is on the driver)"),
    }[chosen]
    # Workers of a local cluster write logs below Spark's home.
    home = tmp_path / "home"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    confs = {
        "spark.master": "local-cluster[2,1,1024]",
        "spark.sql.shuffle.partitions": "6",
    }
    arguments = {"confs": confs, "configure": options, "checkpoint": str(checkpoint), "batch": 3}
    with Program("count", {"SPARK_HOME": str(home)}, **arguments) as program:
        program.next("running")
        program.next("result")
        program.next("stopped")
        program.end()
    logs = [path.read_text() for path in (home / "work").glob("*/*/stderr")]
    assert len(logs) == 2
    for log in logs:
        lines = [line.partition(MARK)[2] for line in log.splitlines() if MARK in line]
        assert lines == [f"{destination}, interpreter {sys.executable}"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://me:planted@bucket/x", "s3://...@bucket/x"),
        ("sftp://me:pl:anted@host:22/x@y", "sftp://...@host:22/x@y"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("file:/a/b", "file:/a/b"),
    ],
)
def test_executor_log_redacts_passwords_of_urls(spark: Any, url: str, shown: str) -> None:
    no_options = getattr(spark._jvm.scala.collection.immutable, "Map$").__getattr__("MODULE$").empty()
    options = spark._jvm.org.apache.spark.sql.statestore.provider.BackendOptions.parse(no_options)
    assert options.destination(url) == f"storage filesystem, directory {shown}"
