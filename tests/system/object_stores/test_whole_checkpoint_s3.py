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
    reference, output = tmp_path / "reference.jsonl", tmp_path / "output.jsonl"
    runs = Runs(tmp_path / "input", queries, checkpoint_format)
    runs.write_input(range(4))
    runs.finish(f"s3://{bucket}/reference", reference)
    expected = outputs(reference)
    assert {name for name, _ in expected} == set(queries)
    # The directories of a new checkpoint do not exist on an object store, so Spark does not list them, and
    # the first run of a query publishes the commits of a batch together.
    objects = list_objects(f"{bucket}/reference/0/state")
    assert any("/_merged/" in path for path in objects)
    # The first version of each store has a file of its own, see `commit_version`.
    metadata = [path.partition("/chk-")[0] for path in objects if path.endswith("/_metadata")]
    assert len(metadata) == len(set(metadata)) >= 2
    # Killed after the query's first batch. A query killed between its source's log and the log of offsets
    # would take two inputs into one batch, so there is one.
    runs = Runs(tmp_path / "later-input", queries, checkpoint_format)
    runs.write_input(range(1))
    url = f"s3://{bucket}/killed"
    for query in queries:
        runs.kill(
            url, output, lambda rows_by_batch, query=query: any(name == query for name, _ in rows_by_batch)
        )
    runs.write_input(range(1, 4))
    runs.finish(url, output)
    assert outputs(output) == expected
    assert list_objects(f"{bucket}/killed/0/commits")
