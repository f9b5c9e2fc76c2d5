"""Tests of `verify`, `repair`, `gc` and `rollback` on S3 (moto)."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from spark_statestore.errors import QueryRunningError
from spark_statestore.query.gc import DAY, gc
from spark_statestore.query.repair import repair
from spark_statestore.query.rollback import rollback
from spark_statestore.query.verify import verify
from tests.support.s3 import delete_object, list_objects, put_object
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.unit.savepoints.written_query import WrittenQuery

LARGE = {b"large": bytes(700)}


def test_verify_and_repair_find_and_remove_damage_on_s3(bucket: str) -> None:  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint", with_ids=True)
    for _ in range(3):
        query.run(put=LARGE)
    assert verify(f"s3a://{bucket}/checkpoint").problems == ()
    streams = list_objects(f"{bucket}/checkpoint/state/1/0/left/shared")
    (stream,) = [path for path in streams if "/shared/3-" in path]
    put_object(stream, b"damaged")
    (damaged,) = verify(query.url).problems
    delete_object(stream)
    (missing,) = verify(query.url).problems
    assert (damaged.kind, missing.kind) == ("damaged", "missing")
    assert damaged.what == missing.what == "operator 1, partition 0, store left"
    assert repair(query.url, stopped=True).batch == 1
    assert verify(query.url).ok


def test_rollback_refuses_a_query_that_is_young_by_the_storage_clock(
    bucket: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    query = WrittenQuery(f"s3://{bucket}/checkpoint")
    for _ in range(3):
        query.run()
    before = list_objects(f"{bucket}/checkpoint")
    real = time.time
    # Only this machine's clock is wrong, not that of the storage.
    monkeypatch.setattr(time, "time", lambda: real() + 24 * 3600)
    with pytest.raises(QueryRunningError, match=r"was written \d s ago"):
        rollback(query.url, 1)
    assert list_objects(f"{bucket}/checkpoint") == before


def test_verify_finds_schema_files_where_spark_does(bucket: str) -> None:  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint")
    query.run()
    metadata = query.checkpoint.path("state/0/_metadata/metadata")
    operator = json.loads(query.checkpoint.files.read(metadata).decode().split("\n")[1])
    # Copies name them by their path in the bucket, Spark by a URL.
    for location in ("/checkpoint", f"s3a://{bucket}/checkpoint"):
        name = f"state/0/_stateSchema/default/0_{uuid.uuid4()}"
        operator["stateStoreInfo"][0]["stateSchemaFilePaths"] = [f"{location}/{name}"]
        query.write("state/0/_metadata/metadata", f"v2\n{json.dumps(operator)}".encode())
        (problem,) = verify(query.url).problems
        assert (problem.what, problem.kind) == ("the schemas of operator 0", "missing")
        query.write(name, b"schema")
        assert verify(query.url).ok


def test_gc_removes_orphans_by_age(bucket: str) -> None:  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint", with_ids=True)
    query.begin(put=LARGE)
    query.instances = {store: query.open(store) for store in query.stores}
    query.run(put=LARGE)
    before = list_objects(f"{bucket}/checkpoint")
    planned = gc(query.url)
    # Each of the four stores has an attempt that lost, and its stream.
    assert (planned.orphans, planned.young) == ((), 8)
    # As a day later.
    report = gc(query.url, older_than=-DAY)
    assert len(report.orphans) == 8
    assert report.bytes > 8 * 300
    remaining = {f"s3://{path}" for path in before} - {orphan.url for orphan in report.orphans}
    assert {f"s3://{path}" for path in list_objects(f"{bucket}/checkpoint")} == remaining
    assert verify(query.url).ok
