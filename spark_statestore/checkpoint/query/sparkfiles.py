"""Spark's own files in a checkpoint location, read as Spark reads them: with Hadoop's checksums."""

from __future__ import annotations

import json
import re
import struct
import zlib
from typing import Final

from spark_statestore.checkpoint.files import FileSystem
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError

__all__ = ["check_log_entry", "read_checked"]

# Hadoop's checksums of a local file lie beside it: a header, then a CRC-32 for each chunk, all big endian.
_CHECKSUMS: Final = struct.Struct(">4sI")
_MAGIC: Final = b"crc\0"

_VERSION: Final = re.compile(r"v\d+")


def read_checked(files: FileSystem, path: str) -> bytes:
    """A file of Spark's, compared with Hadoop's checksums where Hadoop keeps any.

    Raises
    ------
    CheckpointNotFoundError
        If it is not there.
    CorruptCheckpointError
        If it does not match: Spark then refuses to read it.
    CheckpointIOError
        If it cannot be read.
    """
    with failing_to("read", files, path):
        try:
            data = files.read(path)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{files.url(path)} is not there. Copy it back from a backup, or go on from an earlier batch."
            ) from error
        # Only Hadoop's client of local files writes them.
        if files.scheme != "file":
            return data
        directory, _, name = path.rpartition("/")
        try:
            checksums = files.read(f"{directory}/.{name}.crc")
        except FileNotFoundError:
            return data
    if not _matches(data, checksums):
        raise CorruptCheckpointError(
            f"{files.url(path)} does not match Hadoop's checksums in .{name}.crc beside it: it is damaged, or was changed "
            f"by hand. Copy it back from a backup, or go on from an earlier batch; if the change is meant, remove .{name}.crc."
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
    """Check that a file is an entry of a source's log: a line with the version, then lines of JSON.

    Raises
    ------
    CorruptCheckpointError
        If it is not.
    """
    try:
        version, *lines = data.decode().split("\n")
        if not _VERSION.fullmatch(version):
            raise ValueError(f"the first line is {version!r}, which is no version of a log")
        for line in lines:
            json.loads(line)
    except ValueError as error:
        raise CorruptCheckpointError(
            f"{where} is not an entry of a source's log: {error}. Copy it back from a backup, or go on from an earlier "
            "batch; nothing was changed."
        ) from error
