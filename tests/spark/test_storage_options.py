"""Storage options through a query that is exact with each, before and after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.counting import run_to

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
