"""Savepoints, copies, rollbacks and rescales on S3, served by moto."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore import clone, list_savepoints, rescale, restore, rollback, savepoint
from spark_statestore.errors import CheckpointExistsError, CorruptCheckpointError, RescaleError
from spark_statestore.query import QueryCheckpoint
from tests.support.s3 import list_objects, put_object
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.unit.rescaling.test_redistribute import BATCH, SOME, rows_by_partition, where, write
from tests.unit.savepoints.written_query import WrittenQuery, content


def test_query_resumes_from_savepoints_of_both_kinds(bucket: str, tmp_path: Path):  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint", with_ids=True)
    query.run(put={b"large": bytes(700)})
    savepoints = [
        savepoint(query.url, f"s3://{bucket}/savepoints", kind) for kind in ("canonical", "pointer")
    ]
    rows = dict(query.rows)
    query.run()
    assert list_savepoints(f"s3://{bucket}/savepoints") == savepoints
    for number, entry in enumerate(savepoints):
        # With Spark's scheme, and to another file system.
        for place in (f"s3a://{bucket}/new/{number}", str(tmp_path / str(number))):
            assert restore(entry, place) == 0
            assert content(QueryCheckpoint(place)) == rows
    with pytest.raises(CheckpointExistsError, match="is not empty"):
        restore(savepoints[0], f"s3://{bucket}/new/0", claim_mode="claim")
    restore(savepoints[1], f"s3://{bucket}/new/2", claim_mode="claim")
    assert list_savepoints(f"s3://{bucket}/savepoints") == savepoints[:1]


def test_rollback_on_s3(bucket: str):  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint")
    for _ in range(3):
        query.run()
    expected = content(query.checkpoint, 0)
    planned = rollback(query.url, 0, dry_run=True)
    assert rollback(query.url, 0, stopped=True) == planned
    assert query.checkpoint.batches() == [0]
    assert content(query.checkpoint) == expected
    aside = list_objects(f"{bucket}/checkpoint/rolled-back")
    assert {path.split("/", 4)[4] for path in aside} == {
        f"{log}/{batch}" for log in ("commits", "offsets", "sources/0") for batch in (1, 2)
    }


def test_failed_copy_leaves_no_objects(bucket: str):  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint")
    query.run(put={b"large": bytes(700)})
    (stream,) = list_objects(f"{bucket}/checkpoint/state/1/0/right/shared")
    put_object(stream, b"damaged")
    with pytest.raises(CorruptCheckpointError):
        clone(query.url, f"s3://{bucket}/new")
    assert list_objects(f"{bucket}/new") == []


def test_rescale_to_and_on_s3(bucket: str, tmp_path: Path) -> None:  # noqa: F811
    before = write(tmp_path / "old", 4, SOME)
    assert rescale(before.url, f"s3a://{bucket}/new", 7, stopped=True) == BATCH
    assert rescale(f"s3://{bucket}/new", f"s3://{bucket}/again", 4, stopped=True) == BATCH
    assert rows_by_partition(QueryCheckpoint(f"s3://{bucket}/new")) == where(SOME, 7)
    assert rows_by_partition(QueryCheckpoint(f"s3://{bucket}/again")) == where(SOME, 4)


def test_rejected_rescale_leaves_no_objects(bucket: str, tmp_path: Path) -> None:  # noqa: F811
    before = write(tmp_path / "old", 4, SOME, moved=1)
    with pytest.raises(RescaleError):
        rescale(before.url, f"s3://{bucket}/new", 7, stopped=True)
    assert list_objects(f"{bucket}/new") == []
