"""Checksums that are put together from those of parts."""

from __future__ import annotations

import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.checkpoint.streams.checksums import RunningChecksum, combine


@given(st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 5000))
def test_the_checksum_of_two_pieces_follows_from_those_of_each(a: bytes, b: bytes, times: int) -> None:
    b = b * times
    assert combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)


@pytest.mark.parametrize("size", [1023, 1024, 1025, (1 << 25) + 3])
def test_a_piece_may_be_large(size: int) -> None:
    piece = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert combine(zlib.crc32(b"a"), zlib.crc32(piece), size) == zlib.crc32(piece, zlib.crc32(b"a"))


def test_a_stream_is_summed_up_from_what_is_known_and_what_is_not() -> None:
    running = RunningChecksum()
    running.update([(b"abc", None), (memoryview(b"defg"), zlib.crc32(b"defg")), (b"h", None)], lambda: None)
    assert running.value == zlib.crc32(b"abcdefgh")
