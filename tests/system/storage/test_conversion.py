"""A query that is moved from Spark's RocksDB store to this one on a real service, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from benchmarks.s3.stores import session_settings
from benchmarks.stores import CHANGELOG
from tests.spark.counting import GROUPS, Program
from tests.support.services import Service

pytestmark = pytest.mark.storage

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"


def move(places: Sequence[Path | str], confs: Mapping[str, str]) -> None:
    """Move a query along checkpoint locations; it continues from each."""
    with Program("move", places=list(map(str, places)), confs=confs, cluster=False) as program:
        for _ in places[1:]:
            assert program.next("converted") == GROUPS
            assert program.next("continued") >= 2
        program.end()


def test_local_query_is_moved_to_a_service_without_a_connector(
    container: str, built: Path, tmp_path: Path
) -> None:
    move([tmp_path / "before", f"{container}/here", tmp_path / "after"], {FORMAT: "2"})


@pytest.mark.parametrize("checkpoint_format", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_query_on_s3_is_moved_with_a_connector(
    service: Service, container: str, built: Path, checkpoint_format: int
) -> None:
    if service.name != "minio":
        pytest.skip("the connector is for S3")
    confs = dict(session_settings(service, service.endpoint, {})[CHANGELOG].confs)
    url = container.replace("s3://", "s3a://")
    move([f"{url}/{number}" for number in range(3)], confs | {FORMAT: str(checkpoint_format)})
