"""Verification, repair and collection of orphans on S3, served by moto, through s3fs."""

from __future__ import annotations

import json
import uuid

import fsspec
import pytest

from spark_statestore.checkpoint.query.gc import DAY, gc
from spark_statestore.checkpoint.query.verify import verify
from spark_statestore.savepoint.repair import repair
from tests.checkpoint.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.savepoint.written import WrittenQuery

LARGE = {b"large": bytes(700)}

both_formats = pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])


@both_formats
def test_what_is_broken_is_found_and_repaired(bucket: str, with_ids: bool) -> None:  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint", with_ids)
    for _ in range(3):
        query.run(put=LARGE)
    assert verify(f"s3a://{bucket}/checkpoint").problems == ()
    files = fsspec.filesystem("s3")
    (stream,) = files.glob(f"{bucket}/checkpoint/state/1/0/left/shared/3-*")
    files.pipe_file(stream, b"damaged")
    (problem,) = verify(query.url).problems
    assert (problem.what, problem.kind) == ("operator 1, partition 0, store left", "damaged")
    files.rm_file(stream)
    (problem,) = verify(query.url).problems
    assert problem.kind == "missing"
    assert repair(query.url).batch == 1
    found = verify(query.url)
    assert (found.batch, found.ok) == (1, True)


def test_schema_files_are_where_spark_looks_for_them(bucket: str) -> None:  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint")
    query.run()
    # Copies name them by their path in the bucket, Spark by a URL.
    for place in ("/checkpoint", f"s3a://{bucket}/checkpoint"):
        url = f"{place}/state/0/_stateSchema/default/0_{uuid.uuid4()}"
        store = {
            "storeName": "default",
            "numColsPrefixKey": 0,
            "numPartitions": 2,
            "stateSchemaFilePaths": [url],
        }
        info = {"operatorId": 0, "operatorName": "transformWithState"}
        operator = {"operatorInfo": info, "stateStoreInfo": [store], "operatorPropertiesJson": ""}
        fsspec.filesystem("s3").rm_file(query.checkpoint.path("state/0/_metadata/metadata"))
        query.write("state/0/_metadata/v2/0", f"v2\n{json.dumps(operator)}".encode())
        (problem,) = verify(query.url).problems
        assert (problem.what, problem.kind) == ("the schemas of operator 0", "missing")
        query.write(f"state/0/_stateSchema/default/{url.rpartition('/')[2]}", b"schema")
        assert verify(query.url).ok
        query.write("state/0/_metadata/metadata", b"")


def test_orphans_are_collected_by_age(bucket: str) -> None:  # noqa: F811
    query = WrittenQuery(f"s3://{bucket}/checkpoint", with_ids=True)
    query.begin(put=LARGE)
    query.instances = {store: query.open(store) for store in query.stores}
    query.run(put=LARGE)
    files = fsspec.filesystem("s3")
    before = files.find(f"{bucket}/checkpoint")
    planned = gc(query.url)
    # Each of the four stores has an attempt that lost, and its stream.
    assert (planned.orphans, planned.young) == ((), 8)
    # As a day later.
    done = gc(query.url, older_than=-DAY)
    assert len(done.orphans) == 8
    assert done.bytes > 8 * 300
    left = {f"s3://{path}" for path in before} - {orphan.url for orphan in done.orphans}
    assert {f"s3://{path}" for path in files.find(f"{bucket}/checkpoint")} == left
    assert verify(query.url).ok
