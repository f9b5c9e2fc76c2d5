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


WHOLE = encoded("0/0/chk-1/_metadata", "0/1/chk-1/_metadata")
*_, INLINE_LENGTH, _ = HEADER.unpack_from(WHOLE)
INDEX = WHOLE[: HEADER.size] + WHOLE[HEADER.size + INLINE_LENGTH :]


def test_index_is_decoded_without_the_logical_files() -> None:
    assert decode_index(INDEX, "") == decode_index(WHOLE, "")


@pytest.mark.parametrize("file", [WHOLE, INDEX], ids=["whole", "index"])
@pytest.mark.parametrize("damage", range(0, 300, 7))
def test_damaged_file_is_refused(file: bytes, damage: int) -> None:
    data = bytearray(file)
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
