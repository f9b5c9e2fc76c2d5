"""Reads of Spark's files in a checkpoint location, verified by Hadoop's checksums as Spark verifies them."""

from __future__ import annotations

import re
import struct
import zlib
from typing import Final

from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError, restore_from_backup
from spark_statestore.files import FileSystem
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.metadata import parse_json

# Hadoop's checksum file of a local file: a header, then a CRC-32 for each chunk, all big endian.
_CHECKSUMS: Final = struct.Struct(">4sI")
_MAGIC: Final = b"crc\0"

_VERSION: Final = re.compile(r"v\d+")


def read_checked(files: FileSystem, path: str) -> bytes:
    """Read a file of Spark's and verify it by Hadoop's checksums, if there are any."""
    with failing_to("read", files, path):
        try:
            data = files.read(path)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{files.url(path)} does not exist. {restore_from_backup()}"
            ) from error
        # Hadoop writes them for local files only.
        if files.scheme != "file":
            return data
        directory, _, name = path.rpartition("/")
        try:
            checksums = files.read(f"{directory}/.{name}.crc")
        except FileNotFoundError:
            return data
    if not _matches(data, checksums):
        raise CorruptCheckpointError(
            f"{files.url(path)} does not match Hadoop's checksums in .{name}.crc beside it: the file is "
            f"damaged or was edited. If the edit is intended, delete .{name}.crc. {restore_from_backup()}"
        )
    return data


def _matches(data: bytes, checksums: bytes) -> bool:
    if len(checksums) < _CHECKSUMS.size:
        return False
    magic, chunk = _CHECKSUMS.unpack_from(checksums)
    if magic != _MAGIC or chunk == 0:
        return False
    expected = b"".join(
        zlib.crc32(data[start : start + chunk]).to_bytes(4, "big") for start in range(0, len(data), chunk)
    )
    return checksums[_CHECKSUMS.size :] == expected


def check_log_entry(data: bytes, where: str) -> None:
    """Check that a file is an entry of a source's log: a line with the version, then lines of JSON."""
    try:
        version, *lines = data.decode().split("\n")
        if not _VERSION.fullmatch(version):
            raise ValueError(f"the first line is {version!r}, which is not a log version")
        for line in lines:
            parse_json(line)
    except ValueError as error:
        raise CorruptCheckpointError(
            f"{where} is not an entry of a source's log: {error}. " + restore_from_backup()
        ) from error
