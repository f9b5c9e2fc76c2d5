"""Checkpoints and savepoints of each release: they are read, verified, and continued to the same result."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from spark_statestore import restore, verify
from tests.support.trees import files_below
from tests.system.upgrades.cases import CASES, CONTINUED, WRITTEN, write_input
from tests.system.upgrades.program import run_job
from tests.system.upgrades.write_release_sample import SAMPLES, rows_of

RELEASES = sorted(path.stem for path in SAMPLES.glob("*.json"))
QUERIES = [
    pytest.param(release, query, id=f"{release}-{query['checkpoint'].partition('/')[0]}")
    for release in RELEASES
    for query in json.loads((SAMPLES / f"{release}.json").read_text())
]

PLACES = [
    pytest.param(
        *query.values,
        place,
        id=f"{query.id}-{place}",
        marks=[] if place == "checkpoint" else pytest.mark.soak,
    )
    for query in QUERIES
    for place in ("checkpoint", "savepoint")
]


@pytest.fixture
def unpacked(release: str, tmp_path: Path) -> Path:
    """Return a directory with the checkpoints and savepoints of a release."""
    shutil.unpack_archive(SAMPLES / f"{release}.tar.xz", tmp_path / release, filter="data")
    return tmp_path / release


def move_input(checkpoint: Path, directory: Path) -> None:
    """Let the log of a query's file source name the files of another directory."""
    for path in (checkpoint / "sources/0").glob("[0-9]*"):
        moved = re.sub(r'"file:[^"]*/(\d+\.parquet)"', rf'"{directory.as_uri()}/\1"', path.read_text())
        path.write_text(moved)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def test_samples_are_small() -> None:
    assert RELEASES
    assert sum(path.stat().st_size for path in SAMPLES.iterdir()) <= 200 * 1024


@pytest.mark.first
@pytest.mark.parametrize("place", ["checkpoint", "savepoint"])
@pytest.mark.parametrize(("release", "query"), QUERIES)
def test_state_of_a_release_is_read_and_verified(unpacked: Path, query: dict[str, Any], place: str) -> None:
    path = str(unpacked / query[place])
    before = files_below(Path(path))
    assert rows_of(path) == query["state"]
    assert verify(path).problems == ()
    assert files_below(Path(path)) == before


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(("release", "query", "place"), PLACES)
def test_query_of_a_release_goes_on_as_if_uninterrupted(
    spark: Any, unpacked: Path, tmp_path: Path, query: dict[str, Any], place: str
) -> None:
    checkpoint = str(unpacked / query["checkpoint"])
    if place == "savepoint":
        checkpoint = str(tmp_path / "restored")
        restore(str(unpacked / query["savepoint"]), checkpoint)
    source = CASES[query["case"]].reads
    write_input(tmp_path, source, range(len(WRITTEN + CONTINUED)))
    move_input(Path(checkpoint), tmp_path / source)
    job = {**query, "checkpoint": checkpoint, "input": str(tmp_path / source)}
    result = run_job(spark.newSession(), job)
    assert result["error"] is None
    assert result["output"] == query["output"]
    assert verify(checkpoint).problems == ()
