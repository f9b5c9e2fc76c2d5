"""The command ``convert``, in a process of its own with its own Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.golden import Recordings
from tests.spark.queries import OURS, ROCKSDB
from tests.spark.test_conversion import Converted, snapshot
from tests.unit.cli.another_process import run_elsewhere

pytestmark = pytest.mark.slow


def test_commands_convert_query_and_back(spark: Any, tmp_path: Path) -> None:
    query = Converted(spark, tmp_path, Recordings("conversion"), "aggregation, update mode", ROCKSDB, 2)
    query.run(0, 1)
    source, moved, back = str(query.query.checkpoint), str(tmp_path / "moved"), str(tmp_path / "back")
    files = snapshot(query.query.checkpoint)
    settings = ["--stopped", "--master", "local[2]", "--conf", "spark.driver.memory=512m"]
    # A process has one Spark session.
    ((planned, plan),), ((code, report),) = (
        run_elsewhere([["convert", source, moved, *settings, *more]]) for more in (["--dry-run"], [])
    )
    assert planned == code == 0, report
    assert plan["dry_run"]
    assert plan["states"] == []
    assert (report["source_provider"], report["provider"], report["batch"]) == (ROCKSDB, OURS, 1)
    (state,) = report["states"]
    assert state["rows"] == report["rows"] > 0
    assert snapshot(query.query.checkpoint) == files
    query.go_on_from(Path(moved), OURS)
    query.run(2)

    ((code, report),) = run_elsewhere(
        [["convert", moved, back, "--to", "rocksdb", "--partitions", "3", *settings]]
    )
    assert code == 0, report
    assert report["partitions"] == {"0": 3}
    query.go_on_from(Path(back), ROCKSDB)
    query.run(3)
