"""Storage options through a query that is exact with each, before and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import run_to

# First bytes of a frame of each codec; Arrow writes them behind the length of each buffer.
FRAMES = {"zstd": bytes.fromhex("28b52ffd")}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_query_is_exact_with_each_compression(spark: Any, tmp_path: Path, compression: str) -> None:
    options = {"compression": compression, "fileStateThreshold": "0"}
    run_to(spark.newSession(), tmp_path, 1, **options)
    streams = [f.read_bytes() for f in tmp_path.glob("state/0/*/shared/*")]
    assert streams
    for codec, frame in FRAMES.items():
        assert any(frame in stream for stream in streams) == (codec == compression), codec
    # A stream written with any setting can be read with every other.
    run_to(spark.newSession(), tmp_path, 4, compression="none" if compression == "zstd" else "zstd")


def test_query_is_exact_with_fsync(spark: Any, tmp_path: Path) -> None:
    run_to(spark.newSession(), tmp_path, 1, fsync="true")
    run_to(spark.newSession(), tmp_path, 3, fsync="true")
