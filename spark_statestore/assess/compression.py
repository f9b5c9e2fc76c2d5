"""Decompression of event logs, in the formats of Spark's codecs zstd, lz4 and snappy, and of gzip."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa

from spark_statestore.errors import EventLogError

_CHUNK: Final = 1 << 16

_ARROW_CHUNK: Final = 1 << 10
"""Bytes that are read at once from Arrow, which returns none of them where the stream is truncated."""
_ARROW_CHUNKS: Final = _CHUNK // _ARROW_CHUNK

_AGAIN: Final = "Copy it again from where Spark wrote it."

# Bytes of a block. Spark writes 32 KiB, and at most 64 KiB without a setting.
_LARGEST_BLOCK: Final = 64 << 20

_LZ4_MAGIC: Final = b"LZ4Block"
_LZ4_HEADER: Final = struct.Struct("<8sBiiI")
_LZ4_STORED: Final = 0x10

_SNAPPY_MAGIC: Final = b"\x82SNAPPY\x00"
_SNAPPY_VERSIONS: Final = 8

_LZF_MAGIC: Final = b"ZV"

_ARROW_MAGIC: Final = {b"\x28\xb5\x2f\xfd": "zstd", b"\x1f\x8b": "gzip"}
"""First bytes of the formats that Arrow reads as streams."""


class TruncatedError(Exception):
    """Raised at the end of compressed data that ends in the middle, as that of a running application."""


def decompress(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the content of a file; its first bytes tell the format.

    Parameters
    ----------
    stream
        The file, at its start.
    name
        Its URL, for errors.

    Raises
    ------
    TruncatedError
        If the file ends in the middle of compressed data, after all that can be decompressed.
    EventLogError
        If its format cannot be read, or it is damaged.
    """
    first = stream.read(_CHUNK)
    source = _Source(first, stream)
    if first.startswith(_LZ4_MAGIC):
        return _lz4_blocks(source, name)
    if first.startswith(_SNAPPY_MAGIC):
        return _snappy_blocks(source, name)
    for magic, codec in _ARROW_MAGIC.items():
        if first.startswith(magic):
            return _arrow_stream(source, codec, name)
    if first.startswith(_LZF_MAGIC):
        raise EventLogError(
            f"{name} is compressed with lzf, which cannot be read here: have Spark's history server "
            "export it, or set spark.eventLog.compression.codec to zstd for the next run."
        )
    return iter(lambda: source.read(_CHUNK), b"")


class _Source:
    """A stream whose first bytes have been read already, also as Arrow reads it."""

    closed = False

    def close(self) -> None:
        """Leave the stream to its owner."""

    def __init__(self, first: bytes, stream: BinaryIO) -> None:
        self._first = first
        self._stream = stream

    def read(self, size: int) -> bytes:
        """Read `size` bytes, fewer at the end alone."""
        parts = [self._first[:size]]
        self._first = self._first[size:]
        missing = size - len(parts[0])
        while missing and (part := self._stream.read(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)


def _arrow_stream(source: Any, codec: str, name: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), codec) as stream:
        part = b"-"
        while part:
            parts: list[bytes] = []
            try:
                while len(parts) < _ARROW_CHUNKS and (part := stream.read(_ARROW_CHUNK)):
                    parts.append(part)
            except OSError as error:
                yield b"".join(parts)
                if "truncated" in str(error).lower():
                    raise TruncatedError(str(error)) from error
                raise EventLogError(f"{name} is damaged: {error}. {_AGAIN}") from error
            yield b"".join(parts)


def _lz4_blocks(source: _Source, name: str) -> Iterator[bytes]:
    """Read the format of lz4-java's ``LZ4BlockOutputStream``."""
    while header := source.read(_LZ4_HEADER.size):
        if len(header) < _LZ4_HEADER.size:
            raise TruncatedError(name)
        magic, token, compressed, size, _ = _LZ4_HEADER.unpack(header)
        if magic != _LZ4_MAGIC or not 0 <= compressed <= _LARGEST_BLOCK or not 0 <= size <= _LARGEST_BLOCK:
            raise EventLogError(f"{name} is damaged: no block of lz4 where one begins. {_AGAIN}")
        block = source.read(compressed)
        if len(block) < compressed:
            raise TruncatedError(name)
        # A block without bytes ends each of several streams in one file.
        if size:
            is_stored = token & 0xF0 == _LZ4_STORED
            yield block if is_stored else _decompressed("lz4_raw", block, size, name)


def _snappy_blocks(source: _Source, name: str) -> Iterator[bytes]:
    """Read the format of snappy-java's ``SnappyOutputStream``."""
    while header := source.read(4):
        if header == _SNAPPY_MAGIC[:4]:
            source.read(len(_SNAPPY_MAGIC) - 4 + _SNAPPY_VERSIONS)
            continue
        size = int.from_bytes(header, "big")
        if size > _LARGEST_BLOCK:
            raise EventLogError(f"{name} is damaged: a block of snappy has {size} bytes. {_AGAIN}")
        block = source.read(size)
        if len(header) < 4 or len(block) < size:
            raise TruncatedError(name)
        length = _snappy_length(block)
        if length > _LARGEST_BLOCK:
            raise EventLogError(f"{name} is damaged: a block of snappy claims {length} bytes. {_AGAIN}")
        yield _decompressed("snappy", block, length, name)


def _snappy_length(block: bytes) -> int:
    """Return the uncompressed size with which a block of snappy begins, a varint."""
    length = 0
    for position, byte in enumerate(block[:5]):
        length |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            break
    return length


def _decompressed(codec: str, block: bytes, size: int, name: str) -> bytes:
    decompress_block: Callable[..., Any] = pa.Codec(codec).decompress
    try:
        return bytes(decompress_block(block, size, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise EventLogError(f"{name} is damaged: {error}. {_AGAIN}") from error
