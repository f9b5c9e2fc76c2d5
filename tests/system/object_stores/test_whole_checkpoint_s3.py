"""Queries whose whole checkpoint is on S3, served by moto, without a Hadoop connector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.s3 import list_objects
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.system.object_stores.whole_checkpoint_runs import Runs, outputs

QUERIES = ("aggregation, update mode", "outer join", "transformWithState, Scala, timers")


@pytest.mark.parametrize(
    ("checkpoint_format", "queries"),
    [
        pytest.param(2, QUERIES[1:2], id="v2"),
        pytest.param(1, QUERIES, id="v1, each", marks=pytest.mark.soak),
        pytest.param(2, QUERIES, id="v2, each", marks=pytest.mark.soak),
    ],
)
def test_killed_queries_resume_from_s3(
    built: Path,
    bucket: str,  # noqa: F811
    tmp_path: Path,
    checkpoint_format: int,
    queries: Sequence[str],
) -> None:
    runs = Runs(tmp_path / "input", queries, checkpoint_format)
    runs.write_input(range(4))
    local, remote = tmp_path / "local.jsonl", tmp_path / "remote.jsonl"
    runs.finish(str(tmp_path / "checkpoints"), local)
    expected = outputs(local)
    assert {name for name, _ in expected} == set(queries)
    url = f"s3://{bucket}/checkpoints"
    # Killed after the query's first batch. A query killed between its source's log and the log of offsets
    # would take two inputs into one batch, so there is one.
    runs = Runs(tmp_path / "remote-input", queries, checkpoint_format)
    runs.write_input(range(1))
    for query in queries:
        runs.kill(
            url, remote, lambda rows_by_batch, query=query: any(name == query for name, _ in rows_by_batch)
        )
    runs.write_input(range(1, 4))
    runs.finish(url, remote)
    assert outputs(remote) == expected
    assert list_objects(f"{bucket}/checkpoints/0/commits")


def test_first_run_of_a_query_publishes_its_commits_together(
    built: Path,
    bucket: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    # The directories of a new checkpoint do not exist on an object store, so Spark does not list them.
    runs = Runs(tmp_path / "input", QUERIES[:1], 1)
    runs.write_input(range(3))
    runs.finish(f"s3://{bucket}/checkpoints", tmp_path / "output.jsonl")
    objects = list_objects(f"{bucket}/checkpoints/0/state")
    assert any("/_merged/" in path for path in objects)
    # The first version of each of two stores has a file of its own, see `commit_version`.
    assert sum(path.endswith("/_metadata") for path in objects) == 2
