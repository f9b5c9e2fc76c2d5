"""Tests of redistribution: every row in its new partition, or an error and no copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore import (
    CheckpointNotFoundError,
    QueryRunningError,
    RescaleError,
    clone,
    rescale,
    restore,
    savepoint,
)
from spark_statestore.query import QueryCheckpoint, parallel
from spark_statestore.query.savepoint import Kind
from spark_statestore.query.store_snapshot import StoreSnapshot, read_store, write_store
from spark_statestore.rescaling import murmur3, redistribute, spool
from spark_statestore.rows import decode_rows
from spark_statestore.rows.types import parse_schema
from spark_statestore.savepoints.copy import CheckpointCopy
from spark_statestore.storage import CheckpointName
from spark_statestore.store.changelog_apply import ROW_SCHEMA
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.testing.stores import attempt_id
from tests.support.effort import EFFORT
from tests.unit.query.stored_query import StoredQuery, schema
from tests.unit.rows.encoder import encode_row

BATCH = 4

SCHEMA = schema(a="long", b="string")
NOTHING = schema()

# Of each state whether its keys have several values.
FAMILIES = {"one": False, "many": True}

Key = tuple[int | None, str | None]
# By state and key, the values.
Rows = Mapping[str, Mapping[Key, list[bytes]]]


def encoded(key: Key) -> bytes:
    return encode_row(["long", "string"], key)


def partition_of(key: Key, partitions: int) -> int:
    columns = decode_rows(pa.array([encoded(key)]), SCHEMA).flatten()
    hashes = murmur3.hash_columns(columns, parse_schema(SCHEMA).children, 1)
    return int(murmur3.partitions_of(hashes, partitions)[0])


def write(
    directory: Path,
    partitions: int,
    rows: Rows,
    *,
    moved: int = 0,
    operator: str = "transformWithStateExec",
    checkpoints_dir: str | None = None,
) -> QueryCheckpoint:
    """Write a checkpoint with these rows; `moved` shifts each row by so many partitions from its own."""
    checkpoint = QueryCheckpoint(str(directory), checkpoints_dir=checkpoints_dir)
    node = {
        "operatorInfo": {"operatorId": 0, "operatorName": operator},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}],
    }
    conf = {"conf": {"spark.sql.shuffle.partitions": str(partitions)}}
    for path, text in {
        "metadata": json.dumps({"id": "f013e4c2-9d1b-4c1e-8a52-6f6f6a3d2c11"}),
        f"offsets/{BATCH}": f"v1\n{json.dumps(conf)}",
        f"commits/{BATCH}": "v1\n{}",
        "state/0/_metadata/metadata": f"v1\n{json.dumps(node)}",
    }.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    column_families = tuple(
        ColumnFamily(name, 0, SCHEMA, NOTHING, "hash", 0, values=0 if several else None)
        for name, several in FAMILIES.items()
    )
    for partition in range(partitions):
        tables = [
            (name, pa.Table.from_pylist(stored_rows, ROW_SCHEMA))
            for name, keys in rows.items()
            if (
                stored_rows := [
                    {"key": encoded(key), "value": value}
                    for key, values in keys.items()
                    if (partition_of(key, partitions) + moved) % partitions == partition
                    for value in values
                ]
            )
        ]
        store = StoreId(0, partition)
        content = StoreSnapshot(store, column_families, lambda tables=tables: iter(tables))
        write_store(checkpoint.open(store), CheckpointName(BATCH + 1), attempt_id(), content)
    return checkpoint


def rows_by_partition(checkpoint: QueryCheckpoint) -> list[dict[str, dict[bytes, list[bytes]]]]:
    """Return the rows of a checkpoint, by partition."""
    partitions = []
    for version in checkpoint.stores():
        column_families: dict[str, dict[bytes, list[bytes]]] = {}
        for name, table in read_store(checkpoint, version).rows():
            for row in table.to_pylist():
                column_families.setdefault(name, {}).setdefault(row["key"], []).append(row["value"])
        partitions.append(column_families)
    return partitions


def where(rows: Rows, partitions: int) -> list[dict[str, dict[bytes, list[bytes]]]]:
    """Return the rows by the partition that the rule assigns."""
    expected: list[dict[str, dict[bytes, list[bytes]]]] = [{} for _ in range(partitions)]
    for name, keys in rows.items():
        for key, values in keys.items():
            expected[partition_of(key, partitions)].setdefault(name, {})[encoded(key)] = values
    return expected


keys = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=9))
values = st.binary(max_size=9)
column_families = st.fixed_dictionaries(
    {
        "one": st.dictionaries(keys, st.lists(values, min_size=1, max_size=1), max_size=30),
        "many": st.dictionaries(keys, st.lists(values, min_size=1, max_size=9), max_size=9),
    }
)


@settings(max_examples=15 * EFFORT)
@given(
    rows=column_families,
    old=st.integers(1, 5),
    new=st.integers(1, 9),
    few=st.integers(1, 20),
    local=st.sampled_from(["file", "several stores at a time, as if this were remote"]),
    apart=st.booleans(),
)
def test_rescaled_moves_each_row_to_the_partition_of_its_key(
    tmp_path_factory: pytest.TempPathFactory,
    rows: Rows,
    old: int,
    new: int,
    few: int,
    local: str,
    apart: bool,
) -> None:
    directory = tmp_path_factory.mktemp("query")
    location = str(directory / "states") if apart else None
    before = write(directory / "old", old, rows, checkpoints_dir=location)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "_BATCH_ROWS", few)
        patch.setattr(parallel, "_LOCAL", local)
        reports: list[tuple[int, int]] = []
        batch = rescale(
            before.url,
            str(directory / "new"),
            new,
            checkpoints_dir=location,
            stopped=True,
            progress=lambda count, total: reports.append((count, total)),
        )
        assert batch == BATCH
        copies = str(directory / "new"), str(directory / "again")
        assert rescale(*copies, old, checkpoints_dir=location, stopped=True) == BATCH
    assert reports == [(stores, new) for stores in range(new + 1)]
    after, again = (QueryCheckpoint(copy, checkpoints_dir=location) for copy in copies)
    assert rows_by_partition(after) == where(rows, new)
    assert partitions_seen_by_spark(directory / "new") == list(map(str, range(new)))
    assert after.operator(0).partitions == new
    assert after.offsets(BATCH).shuffle_partitions == new
    assert rows_by_partition(again) == rows_by_partition(before) == where(rows, old)


SOME: Rows = {"one": {(number, "x"): [b"%d" % number] for number in range(50)}}


@pytest.mark.parametrize("kind", ["canonical", "pointer"])
def test_restore_redistributes_a_savepoint(tmp_path: Path, kind: Kind) -> None:
    before = write(tmp_path / "old", 4, SOME)
    new_savepoint = savepoint(before.url, str(tmp_path), kind)
    assert restore(new_savepoint, str(tmp_path / "new"), partitions=7) == BATCH
    assert rows_by_partition(QueryCheckpoint(str(tmp_path / "new"))) == where(SOME, 7)


def test_rescaled_refuses_rows_in_a_wrong_partition(tmp_path: Path) -> None:
    before = write(tmp_path / "old", 4, SOME, moved=1)
    wrong = r"partition 0, store default: \d+ of the \d+ rows of the state 'one' .* among 4"
    with pytest.raises(RescaleError, match=wrong):
        rescale(before.url, str(tmp_path / "new"), 7, stopped=True)
    assert not (tmp_path / "new").exists()
    assert len(before.stores()) == 4


def test_rescaled_refuses_a_query_whose_state_it_cannot_distribute(tmp_path: Path) -> None:
    before = write(tmp_path / "old", 4, SOME)
    new = str(tmp_path / "new")
    with pytest.raises(ValueError, match="is 0, but it must be at least 1"):
        rescale(before.url, new, 0, stopped=True)
    offsets = tmp_path / "old" / "offsets" / str(BATCH)
    entry = offsets.read_bytes()
    offsets.write_bytes(before.offsets(BATCH).with_conf(redistribute.STRICT_DISTRIBUTION, "false").encode())
    with pytest.raises(RescaleError, match="useStrictDistribution=false"):
        rescale(before.url, new, 7, stopped=True)
    offsets.write_bytes(entry)
    (tmp_path / "old" / "state" / "0" / "2" / f"chk-{BATCH + 1}" / "_metadata").unlink()
    with pytest.raises(CheckpointNotFoundError, match="partition 2"):
        rescale(before.url, new, 7, stopped=True)
    unknown = write(tmp_path / "unknown", 2, SOME, operator="somethingNew")
    with pytest.raises(RescaleError, match=r"\(somethingNew\), store default: this release does not know"):
        rescale(unknown.url, new, 7, stopped=True)
    empty = write(tmp_path / "empty", 2, {}, operator="somethingNew")
    assert rescale(empty.url, new, 7, stopped=True) == BATCH


def partitions_seen_by_spark(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in (checkpoint / "state" / "0").iterdir() if path.name != "_metadata")


@pytest.mark.parametrize("location", [None, "states"])
def test_rescaled_keeps_one_partition_of_an_operator_without_grouping_columns(
    tmp_path: Path, location: str | None
) -> None:
    location = location and str(tmp_path / location)
    before = write(tmp_path / "old", 4, {}, operator="stateStoreSave", checkpoints_dir=location)
    stores = [StoreId(0, partition) for partition in range(4)]
    for store in stores:
        shutil.rmtree(urlsplit(before.open(store).url).path)
    row = ("default", pa.Table.from_pylist([{"key": b"", "value": b"all"}], ROW_SCHEMA))
    state = ColumnFamily("default", 0, NOTHING, NOTHING, "hash", 0)
    content = StoreSnapshot(stores[0], (state,), lambda: iter([row]))
    write_store(before.open(stores[0]), CheckpointName(BATCH + 1), attempt_id(), content)

    reports: list[tuple[int, int]] = []
    rescale(
        before.url,
        str(tmp_path / "new"),
        7,
        checkpoints_dir=location,
        stopped=True,
        progress=lambda count, total: reports.append((count, total)),
    )
    assert reports == [(0, 1), (1, 1)]
    after = QueryCheckpoint(str(tmp_path / "new"), checkpoints_dir=location)
    assert partitions_seen_by_spark(tmp_path / "new") == ["0"]
    assert rows_by_partition(after) == [{"default": {b"": [b"all"]}}]
    # As in Spark's log.
    assert after.operator(0).partitions == 7


def test_rescale_of_a_running_query_makes_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = StoredQuery(tmp_path / "old")
    query.run(ann=1)
    with pytest.raises(QueryRunningError, match="It seems to run"):
        rescale(query.url, str(tmp_path / "new"), 3)

    write = CheckpointCopy.write

    def write_and_run(copy: CheckpointCopy) -> None:
        write(copy)
        query.run(ann=2)

    monkeypatch.setattr(CheckpointCopy, "write", write_and_run)
    with pytest.raises(QueryRunningError, match="written commits/1, offsets/1, sources/0/1 during the copy"):
        rescale(query.url, str(tmp_path / "new"), 3, stopped=True)
    assert not (tmp_path / "new").exists()
    monkeypatch.undo()
    # A savepoint of it is taken as it is, and so is a clone.
    new_savepoint = savepoint(query.url, str(tmp_path / "savepoints"))
    assert rescale(new_savepoint.path, str(tmp_path / "of a savepoint"), 3) == 1
    assert clone(query.url, str(tmp_path / "clone"), partitions=3) == 1
