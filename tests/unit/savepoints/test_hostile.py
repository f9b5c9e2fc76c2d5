"""Tests of untrusted savepoints and checkpoints: no file outside of them is read or changed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_statestore import clone, dispose_savepoint, savepoint
from spark_statestore.errors import CheckpointError, CorruptCheckpointError
from spark_statestore.query.savepoint import encode_savepoint
from spark_statestore.savepoints.savepoint_holds import held_while, list_holds
from spark_statestore.store.metadata import StoreId
from tests.support.trees import files_below
from tests.unit.savepoints.written_query import WrittenQuery

ONE = {0: ("dedupe", 2, ("default",))}


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "x/../../../victim"},
        {"name": "../victim"},
        {"name": ""},
        {"query_id": "../../victim"},
        {"batch": -1},
        {"attempts": {StoreId(0, 0): "../../victim"}},
    ],
)
def test_disposal_removes_only_files_of_the_savepoint(tmp_path: Path, changes: dict[str, object]) -> None:
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators=ONE)
    query.run()
    pointer = savepoint(query.url, str(tmp_path / "savepoints"), "pointer")
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "checkpoint/state/victim").write_bytes(b"precious")
    # What such a name needs to lead anywhere.
    (tmp_path / "checkpoint/state/_holds/1-x").mkdir()
    path = Path(pointer.path.removeprefix("file://")) / "_metadata"
    path.write_bytes(encode_savepoint(dataclasses.replace(pointer, **changes)))  # type: ignore[arg-type]
    before = files_below(tmp_path)
    with pytest.raises(CorruptCheckpointError):
        dispose_savepoint(pointer.path)
    assert files_below(tmp_path) == before


def test_disposal_removes_no_hold_of_another_savepoint(tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators=ONE)
    query.run()
    victim, forged = (savepoint(query.url, str(tmp_path / "savepoints"), "pointer") for _ in range(2))
    with held_while(query.checkpoint, 0, "file:///copy") as copying:
        names = [hold.name for hold in list_holds(query.checkpoint)]
        path = Path(forged.path.removeprefix("file://")) / "_metadata"
        for name in (victim.name, copying.name.removeprefix("1-")):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(encode_savepoint(dataclasses.replace(forged, name=name)))
            dispose_savepoint(forged.path)
        assert [hold.name for hold in list_holds(query.checkpoint)] == names


def schema_elsewhere(query: WrittenQuery) -> None:
    describe(query, stateSchemaFilePaths=["file:/x/state/0/_stateSchema/../../../../outside/made"])


def store_elsewhere(query: WrittenQuery) -> None:
    describe(query, storeName="../../../outside/made")


def many_partitions(query: WrittenQuery) -> None:
    describe(query, numPartitions=1 << 40)


def no_number(query: WrittenQuery) -> None:
    describe(query, numPartitions="2")


def source_elsewhere(query: WrittenQuery) -> None:
    query.write("offsets/0", b'v2\n{"batchWatermarkMs":0,"conf":{}}\n../../outside/made:{"logOffset":0}')


def linked_file(query: WrittenQuery) -> None:
    secret = Path(query.url).parent / "secret"
    secret.write_bytes(b"precious")
    target = Path(query.url) / "sources/0/7"
    os.symlink(secret, target)


def other_id(query: WrittenQuery) -> None:
    query.write("metadata", b'{"id":"../outside/made"}')


def describe(query: WrittenQuery, **changes: object) -> None:
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2} | changes
    node = {"operatorInfo": {"operatorId": 0, "operatorName": "dedupe"}, "stateStoreInfo": [store]}
    query.write("state/0/_metadata/metadata", f"v1\n{json.dumps(node)}".encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (schema_elsewhere, "a path outside of it"),
        (store_elsewhere, "is not a name"),
        (many_partitions, "is not a number"),
        (no_number, "is not a number"),
        (source_elsewhere, "a path outside of it"),
        (linked_file, "is a symbolic link, or below one"),
        (other_id, "has no id of a query"),
    ],
)
def test_copy_neither_reads_nor_writes_files_outside(
    tmp_path: Path, change: Callable[[WrittenQuery], None], message: str
) -> None:
    query = WrittenQuery(str(tmp_path / "hostile" / "checkpoint"), operators=ONE)
    query.run()
    # What a path of the source leads to, a path of the copy leads to as well.
    (tmp_path / "hostile" / "outside").mkdir()
    (tmp_path / "hostile" / "outside" / "made").write_bytes(b"content")
    change(query)
    state = str(tmp_path / "hostile" / "elsewhere") if change is other_id else None
    with pytest.raises(CheckpointError, match=message):
        clone(query.url, str(tmp_path / "mine" / "checkpoint"), checkpoints_dir=state)
    assert [path for path in (tmp_path / "mine").rglob("*") if path.is_file()] == []
