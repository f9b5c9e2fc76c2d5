"""Storage options through a query that is exact with each, before and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import run_to
from tests.spark.harness import Provider
from tests.spark.test_state_table import put

# First bytes of a frame of zstd; Arrow writes them behind the length of each buffer.
FRAME = bytes.fromhex("28b52ffd")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_query_is_exact_with_other_storage_options_than_before(
    spark: Any, tmp_path: Path, compression: str
) -> None:
    options = {"compression": compression, "fileStateThreshold": "0", "fsync": "true"}
    run_to(spark.newSession(), tmp_path, 1, **options)
    streams = [path.read_bytes() for path in tmp_path.glob("state/0/*/shared/*")]
    assert streams
    assert any(FRAME in stream for stream in streams) == (compression == "zstd")
    # A stream written with any setting can be read with every other.
    run_to(spark.newSession(), tmp_path, 4, compression="none" if compression == "zstd" else "zstd")


def test_stores_of_an_operator_have_directories_of_their_own(spark: Any, tmp_path: Path) -> None:
    # As a join has them.
    names = ["left-keyToNumValues", "left-keyWithIndexToValue"]
    (tmp_path / "query").mkdir()
    (tmp_path / "query/metadata").write_text('{"id":"0b94b1d4-5f3c-4b9c-8b39-0d1b5a1c4b11"}')

    def opened(name: str) -> Provider:
        return Provider(
            spark, f"file:{tmp_path}/query", store=name, backend__checkpointsDir=f"file:{tmp_path}/state"
        )

    for name in names:
        put(opened(name), 0, {("k", 1): (1, name)})
    assert [dict(opened(name).open_read(1).rows()) for name in names] == [
        {("k", 1): (1, name)} for name in names
    ]
