"""Savepoints, copies and rollbacks on S3, served by moto."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore import clone, list_savepoints, restore, rollback, savepoint
from spark_statestore.errors import CheckpointExistsError, CorruptCheckpointError
from spark_statestore.query import QueryCheckpoint
from tests.support.s3 import list_objects, put_object
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.unit.savepoints.written_query import WrittenQuery, content


def test_query_resumes_from_savepoints_of_both_kinds(bucket: str, tmp_path: Path):  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint", with_ids=True)
    query.run(put={b"large": bytes(700)})
    taken = [savepoint(query.url, f"s3://{bucket}/savepoints", kind) for kind in ("canonical", "pointer")]
    rows = dict(query.rows)
    query.run()
    assert list_savepoints(f"s3://{bucket}/savepoints") == taken
    for number, one in enumerate(taken):
        # With Spark's scheme, and to another file system.
        for place in (f"s3a://{bucket}/new/{number}", str(tmp_path / str(number))):
            assert restore(one, place) == 0
            assert content(QueryCheckpoint(place)) == rows
    with pytest.raises(CheckpointExistsError, match="is not empty"):
        restore(taken[0], f"s3://{bucket}/new/0", claim_mode="claim")
    restore(taken[1], f"s3://{bucket}/new/2", claim_mode="claim")
    assert list_savepoints(f"s3://{bucket}/savepoints") == taken[:1]


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
