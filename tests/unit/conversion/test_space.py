"""Tests of the size of the state that is converted: archives are not inflated without a limit."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile

import pytest

from spark_statestore.conversion import space
from spark_statestore.errors import CorruptCheckpointError


def archive(metadata: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as files:
        files.writestr("metadata", metadata)
    return data.getvalue()


def test_table_bytes_adds_the_tables_of_a_snapshot() -> None:
    node = {
        "sstFiles": [{"localFileName": "1.sst", "sizeBytes": 5}, {"localFileName": "2.sst", "sizeBytes": 7}]
    }
    assert space._table_bytes(archive(b"v1\n" + json.dumps(node).encode()), "file:///1.zip") == 12


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        archive(b"v1\n[1]"),
        archive(b"v1\n" + b"[" * 100_000),
        archive(b'v1\n{"sstFiles":[]}', zipfile.ZIP_LZMA),
    ],
)
def test_table_bytes_is_0_for_another_form(data: bytes) -> None:
    assert space._table_bytes(data, "file:///1.zip") == 0


def test_table_bytes_inflates_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = archive(bytes(50_000_000))
    monkeypatch.setattr(space, "_LARGEST_METADATA", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match=r"metadata in file:///1\.zip is more than"):
            space._table_bytes(data, "file:///1.zip")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
