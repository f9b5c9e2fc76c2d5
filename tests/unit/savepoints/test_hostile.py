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
from tests.unit.savepoints.written_query import SMALL, WrittenQuery


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
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators=SMALL)
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
    query = WrittenQuery(str(tmp_path / "checkpoint"), operators=SMALL)
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


def describe(query: WrittenQuery, **changes: object) -> None:
    store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2} | changes
    node = {"operatorInfo": {"operatorId": 0, "operatorName": "dedupe"}, "stateStoreInfo": [store]}
    query.write("state/0/_metadata/metadata", f"v1\n{json.dumps(node)}".encode())


def link(query: WrittenQuery) -> None:
    secret = Path(query.url).parent / "secret"
    secret.write_bytes(b"precious")
    os.symlink(secret, Path(query.url) / "sources/0/7")


SCHEMA = "file:/x/state/0/_stateSchema/../../../../outside/made"
OFFSETS = b'v2\n{"batchWatermarkMs":0,"conf":{}}\n../../outside/made:{"logOffset":0}'


@pytest.mark.parametrize(
    ("change", "checkpoints_dir", "message"),
    [
        (lambda query: describe(query, stateSchemaFilePaths=[SCHEMA]), None, "a path outside of it"),
        (lambda query: describe(query, storeName="../../../outside/made"), None, "is not a name"),
        (lambda query: describe(query, numPartitions=1 << 40), None, "is not a number"),
        (lambda query: describe(query, numPartitions="2"), None, "is not a number"),
        (lambda query: query.write("offsets/0", OFFSETS), None, "a path outside of it"),
        (link, None, "is a symbolic link, or below one"),
        (
            lambda query: query.write("metadata", b'{"id":"../outside/made"}'),
            "states",
            "has no id of a query",
        ),
    ],
    ids=["schema", "store", "many partitions", "no number", "source", "link", "id"],
)
def test_copy_neither_reads_nor_writes_files_outside(
    tmp_path: Path, change: Callable[[WrittenQuery], None], checkpoints_dir: str | None, message: str
) -> None:
    query = WrittenQuery(str(tmp_path / "hostile" / "checkpoint"), operators=SMALL)
    query.run()
    # What a path of the source leads to, a path of the copy leads to as well.
    (tmp_path / "hostile" / "outside").mkdir()
    (tmp_path / "hostile" / "outside" / "made").write_bytes(b"content")
    change(query)
    state = checkpoints_dir and str(tmp_path / "hostile" / checkpoints_dir)
    with pytest.raises(CheckpointError, match=message):
        clone(query.url, str(tmp_path / "mine" / "checkpoint"), checkpoints_dir=state)
    assert files_below(tmp_path / "mine") == {}
