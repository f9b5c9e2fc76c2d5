"""Rescaling on S3, served by moto, through s3fs."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from spark_statestore import RescaleError, rescale
from spark_statestore.checkpoint.query import QueryCheckpoint
from tests.checkpoint.test_s3 import bucket, endpoint, pytestmark  # noqa: F401
from tests.savepoint.rescale.test_redistribute import BATCH, SOME, kept, where, write


def test_state_is_spread_to_s3_and_on_it(bucket: str, tmp_path: Path) -> None:  # noqa: F811
    before = write(tmp_path / "old", 4, SOME)
    assert rescale(before.url, f"s3a://{bucket}/new", 7) == BATCH
    assert rescale(f"s3://{bucket}/new", f"s3://{bucket}/again", 4) == BATCH
    assert kept(QueryCheckpoint(f"s3://{bucket}/new")) == where(SOME, 7)
    assert kept(QueryCheckpoint(f"s3://{bucket}/again")) == where(SOME, 4)


def test_what_is_refused_leaves_nothing(bucket: str, tmp_path: Path) -> None:  # noqa: F811
    before = write(tmp_path / "old", 4, SOME, moved=1)
    with pytest.raises(RescaleError):
        rescale(before.url, f"s3://{bucket}/new", 7)
    assert fsspec.filesystem("s3").find(f"{bucket}/new") == []
