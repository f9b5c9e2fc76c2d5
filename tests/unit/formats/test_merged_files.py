"""Physical files of merged metadata that are damaged, truncated, or name other paths are refused."""

from __future__ import annotations

import zlib

import pytest

from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.formats.merged_files import MergedObject, decode_index, encode_physical_file
from spark_statestore.formats.metadata import HEADER
from tests.unit.storage.merged import attempt, metadata


def encoded(*paths: str) -> bytes:
    objects = [
        MergedObject(path, attempt(number), 0, data, zlib.crc32(data))
        for number, path in enumerate(paths)
        if (data := bytes(metadata(number)))
    ]
    return bytes(encode_physical_file(attempt(0), objects))


@pytest.mark.parametrize("damage", range(0, 300, 7))
def test_damaged_file_is_refused(damage: int) -> None:
    data = bytearray(encoded("0/0/chk-1/_metadata", "0/1/chk-1/_metadata"))
    data[damage % len(data)] ^= 0x10
    with pytest.raises((CorruptCheckpointError, UnsupportedFormatError), match="2-2-0"):
        decode_index(bytes(data), "file:///_merged/2-2-0")


@pytest.mark.parametrize("damage", range(0, 300, 7))
def test_damaged_index_is_refused_without_the_logical_files(damage: int) -> None:
    whole = encoded("0/0/chk-1/_metadata", "0/1/chk-1/_metadata")
    *_, inline_length, _ = HEADER.unpack_from(whole)
    data = bytearray(whole[: HEADER.size] + whole[HEADER.size + inline_length :])
    assert decode_index(bytes(data), "") == decode_index(whole, "")
    data[damage % len(data)] ^= 0x10
    with pytest.raises((CorruptCheckpointError, UnsupportedFormatError), match="2-2-0"):
        decode_index(bytes(data), "file:///_merged/2-2-0")


@pytest.mark.parametrize("length", [0, 1, 39, 40, 100, -1])
def test_truncated_file_is_refused(length: int) -> None:
    data = encoded("0/0/chk-1/_metadata")
    with pytest.raises(CorruptCheckpointError, match="2-2-0"):
        decode_index(data[:length], "file:///_merged/2-2-0")


@pytest.mark.parametrize(
    "hostile", ["../0/chk-1/_metadata", "0/0/../chk-1/_metadata", "0/0/chk-1/other", "/etc/passwd"]
)
def test_index_with_another_path_is_refused(hostile: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="it has the path"):
        decode_index(encoded(hostile), "file:///_merged/2-2-0")
