"""Tests of maintenance on S3 (moto): the clock of the storage, and URLs of schema files."""

from __future__ import annotations

import json
import time
import uuid

import pytest

from spark_statestore.errors import QueryRunningError
from spark_statestore.query.rollback import rollback
from spark_statestore.query.verify import verify
from tests.support.s3 import list_objects
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.unit.savepoints.written_query import WrittenQuery


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
