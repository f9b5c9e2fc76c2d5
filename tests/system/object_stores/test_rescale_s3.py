"""Rescaling on S3, served by moto."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore import RescaleError, rescale
from spark_statestore.query import QueryCheckpoint
from tests.support.s3 import list_objects
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.unit.rescaling.test_redistribute import BATCH, SOME, kept, where, write


def test_rescale_to_and_on_s3(bucket: str, tmp_path: Path) -> None:  # noqa: F811
    before = write(tmp_path / "old", 4, SOME)
    assert rescale(before.url, f"s3a://{bucket}/new", 7, stopped=True) == BATCH
    assert rescale(f"s3://{bucket}/new", f"s3://{bucket}/again", 4, stopped=True) == BATCH
    assert kept(QueryCheckpoint(f"s3://{bucket}/new")) == where(SOME, 7)
    assert kept(QueryCheckpoint(f"s3://{bucket}/again")) == where(SOME, 4)


def test_rejected_rescale_leaves_no_objects(bucket: str, tmp_path: Path) -> None:  # noqa: F811
    before = write(tmp_path / "old", 4, SOME, moved=1)
    with pytest.raises(RescaleError):
        rescale(before.url, f"s3://{bucket}/new", 7, stopped=True)
    assert list_objects(f"{bucket}/new") == []
