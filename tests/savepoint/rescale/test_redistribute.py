"""State goes to the partitions of its keys, all of it, and not at all if a row is where it does not belong."""

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

from spark_statestore import CheckpointNotFoundError, RescaleError, rescale, restore, savepoint
from spark_statestore.checkpoint.metadata import NamedState, StoreId
from spark_statestore.checkpoint.query import QueryCheckpoint
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.rows import decode_rows
from spark_statestore.rows.types import parse_schema
from spark_statestore.savepoint import at_once
from spark_statestore.savepoint.content import StoreContent, read_store, write_store
from spark_statestore.savepoint.rescale import murmur3, redistribute
from spark_statestore.savepoint.savepoint import Kind
from spark_statestore.state.fold import ROW_SCHEMA
from spark_statestore.testing.stores import attempt
from tests.effort import EFFORT
from tests.rows.encoder import encode_row

BATCH = 4

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in {"a": "long", "b": "string"}.items()
        ],
    }
)
NOTHING = json.dumps({"type": "struct", "fields": []})

# Of each state whether its keys have several values.
STATES = {"one": False, "many": True}

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
    """A query's checkpoint with such state, whose rows lie so many partitions behind where they belong."""
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
    states = tuple(
        NamedState(name, 0, SCHEMA, NOTHING, "hash", 0, values=0 if several else None)
        for name, several in STATES.items()
    )
    for partition in range(partitions):
        tables = [
            (name, pa.Table.from_pylist(found, ROW_SCHEMA))
            for name, keys in rows.items()
            if (
                found := [
                    {"key": encoded(key), "value": value}
                    for key, values in keys.items()
                    if (partition_of(key, partitions) + moved) % partitions == partition
                    for value in values
                ]
            )
        ]
        store = StoreId(0, partition)
        content = StoreContent(store, states, lambda tables=tables: iter(tables))
        write_store(checkpoint.open(store), CheckpointName(BATCH + 1), attempt(), content)
    return checkpoint


def kept(checkpoint: QueryCheckpoint) -> list[dict[str, dict[bytes, list[bytes]]]]:
    """What is kept, by partition."""
    found = []
    for version in checkpoint.stores():
        states: dict[str, dict[bytes, list[bytes]]] = {}
        for name, table in read_store(checkpoint, version).rows():
            for row in table.to_pylist():
                states.setdefault(name, {}).setdefault(row["key"], []).append(row["value"])
        found.append(states)
    return found


def where(rows: Rows, partitions: int) -> list[dict[str, dict[bytes, list[bytes]]]]:
    """Where it belongs."""
    found: list[dict[str, dict[bytes, list[bytes]]]] = [{} for _ in range(partitions)]
    for name, keys in rows.items():
        for key, values in keys.items():
            found[partition_of(key, partitions)].setdefault(name, {})[encoded(key)] = values
    return found


keys = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=9))
values = st.binary(max_size=9)
states = st.fixed_dictionaries(
    {
        "one": st.dictionaries(keys, st.lists(values, min_size=1, max_size=1), max_size=30),
        "many": st.dictionaries(keys, st.lists(values, min_size=1, max_size=9), max_size=9),
    }
)


@settings(max_examples=15 * EFFORT)
@given(
    rows=states,
    old=st.integers(1, 5),
    new=st.integers(1, 9),
    few=st.integers(1, 20),
    local=st.sampled_from(["file", "several stores at a time, as if this were remote"]),
)
def test_everything_goes_where_its_key_belongs(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, old: int, new: int, few: int, local: str
) -> None:
    directory = tmp_path_factory.mktemp("query")
    before = write(directory / "old", old, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redistribute, "_BATCH_ROWS", few)
        patch.setattr(at_once, "_LOCAL", local)
        assert rescale(before.url, str(directory / "new"), new) == BATCH
        assert rescale(str(directory / "new"), str(directory / "again"), old) == BATCH
    after = QueryCheckpoint(str(directory / "new"))
    assert kept(after) == where(rows, new)
    assert after.operator(0).partitions == new
    assert after.offsets(BATCH).shuffle_partitions == new
    assert kept(QueryCheckpoint(str(directory / "again"))) == kept(before) == where(rows, old)


SOME: Rows = {"one": {(number, "x"): [b"%d" % number] for number in range(50)}}


@pytest.mark.parametrize("kind", ["canonical", "pointer"])
def test_a_savepoint_is_restored_with_another_number_of_partitions(tmp_path: Path, kind: Kind) -> None:
    before = write(tmp_path / "old", 4, SOME)
    taken = savepoint(before.url, str(tmp_path), kind)
    assert restore(taken, str(tmp_path / "new"), partitions=7) == BATCH
    assert kept(QueryCheckpoint(str(tmp_path / "new"))) == where(SOME, 7)


def test_rows_that_are_not_where_they_belong_are_refused(tmp_path: Path) -> None:
    before = write(tmp_path / "old", 4, SOME, moved=1)
    wrong = r"partition 0, store default: \d+ of the \d+ rows of the state 'one' .* among 4"
    with pytest.raises(RescaleError, match=wrong):
        rescale(before.url, str(tmp_path / "new"), 7)
    assert not (tmp_path / "new").exists()
    assert len(before.stores()) == 4


def test_a_query_that_may_spread_rows_by_other_columns_is_refused(tmp_path: Path) -> None:
    before = write(tmp_path / "old", 1, SOME)
    entry = before.offsets(BATCH).with_conf(redistribute._STRICT, "false")
    (tmp_path / "old" / "offsets" / str(BATCH)).write_bytes(entry.encode())
    with pytest.raises(RescaleError, match="useStrictDistribution=false"):
        rescale(before.url, str(tmp_path / "new"), 7)


def test_a_state_that_is_not_known_is_refused_where_it_has_rows(tmp_path: Path) -> None:
    before = write(tmp_path / "old", 2, SOME, operator="somethingNew")
    with pytest.raises(RescaleError, match=r"\(somethingNew\), store default: this release does not know"):
        rescale(before.url, str(tmp_path / "new"), 7)
    empty = write(tmp_path / "empty", 2, {}, operator="somethingNew")
    assert rescale(empty.url, str(tmp_path / "new"), 7) == BATCH


def test_a_partition_that_is_gone_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    before = write(tmp_path / "old", 4, SOME)
    (tmp_path / "old" / "state" / "0" / "2" / f"chk-{BATCH + 1}" / "_metadata").unlink()
    with pytest.raises(CheckpointNotFoundError, match="partition 2"):
        rescale(before.url, str(tmp_path / "new"), 7)


def test_there_is_at_least_one_partition(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one partition, not 0"):
        rescale(write(tmp_path / "old", 4, SOME).url, str(tmp_path / "new"), 0)


def partitions_seen_by_spark(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in (checkpoint / "state" / "0").iterdir() if path.name != "_metadata")


def test_state_in_a_directory_of_its_own_has_directories_for_spark_too(tmp_path: Path) -> None:
    place = str(tmp_path / "states")
    before = write(tmp_path / "old", 4, SOME, checkpoints_dir=place)
    rescale(before.url, str(tmp_path / "new"), 7, checkpoints_dir=place)
    assert partitions_seen_by_spark(tmp_path / "new") == list("0123456")
    assert kept(QueryCheckpoint(str(tmp_path / "new"), checkpoints_dir=place)) == where(SOME, 7)


@pytest.mark.parametrize("place", [None, "states"])
def test_an_operator_with_nothing_to_spread_by_keeps_its_one_partition(
    tmp_path: Path, place: str | None
) -> None:
    place = place and str(tmp_path / place)
    before = write(tmp_path / "old", 4, {}, operator="stateStoreSave", checkpoints_dir=place)
    stores = [StoreId(0, partition) for partition in range(4)]
    for store in stores:
        shutil.rmtree(urlsplit(before.open(store).url).path)
    row = ("default", pa.Table.from_pylist([{"key": b"", "value": b"all"}], ROW_SCHEMA))
    state = NamedState("default", 0, NOTHING, NOTHING, "hash", 0)
    content = StoreContent(stores[0], (state,), lambda: iter([row]))
    write_store(before.open(stores[0]), CheckpointName(BATCH + 1), attempt(), content)

    rescale(before.url, str(tmp_path / "new"), 7, checkpoints_dir=place)
    after = QueryCheckpoint(str(tmp_path / "new"), checkpoints_dir=place)
    assert partitions_seen_by_spark(tmp_path / "new") == ["0"]
    assert kept(after) == [{"default": {b"": [b"all"]}}]
    # As Spark notes it.
    assert after.operator(0).partitions == 7
