"""Tests of checksums that are combined from those of parts."""

from __future__ import annotations

import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.formats.checksums import RunningChecksum, combine


@given(st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 5000))
def test_combine_gives_the_checksum_of_consecutive_pieces(a: bytes, b: bytes, times: int) -> None:
    b = b * times
    assert combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


@pytest.mark.parametrize("size", [1023, 1024, 1025, (1 << 25) + 3])
def test_combine_accepts_large_sizes(size: int) -> None:
    piece = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert combine(zlib.crc32(b"a"), zlib.crc32(piece), size) == zlib.crc32(piece, zlib.crc32(b"a"))


def test_running_checksum_mixes_known_and_computed_parts() -> None:
    running = RunningChecksum()
    running.update([(b"abc", None), (memoryview(b"defg"), zlib.crc32(b"defg")), (b"h", None)], lambda: None)
    assert running.value == zlib.crc32(b"abcdefgh")
