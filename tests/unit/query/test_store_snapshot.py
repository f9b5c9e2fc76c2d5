"""Tests of store snapshots, read from versions and written as full snapshots."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_statestore.errors import CorruptCheckpointError
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.query import QueryCheckpoint, StoreVersion
from spark_statestore.query import store_snapshot as module
from spark_statestore.query.store_snapshot import StoreSnapshot, read_store, write_store
from spark_statestore.storage import CheckpointName
from spark_statestore.store.changelog import DELETE, MERGE, PUT
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.lineage import apply
from spark_statestore.store.metadata import ColumnFamily, StoreId
from tests.support.effort import EFFORT
from tests.support.trees import files_below

STORE = StoreId(0, 0)
FAMILIES = ("one", "many", "empty")
Change = tuple[str, int, bytes, bytes | None]
Rows = dict[str, dict[bytes, list[bytes]]]

keys = st.sampled_from([b"", b"a" * 8, b"b" * 8, bytes(40), b"\xff" * 16])
values = st.sampled_from([b"", b"1", b"2", bytes(900)])


@st.composite
def versions(draw: st.DrawFn) -> list[list[Change]]:
    """Changes of several versions; a value is appended to keys that there are, and of one state alone."""
    present: dict[str, set[bytes]] = defaultdict(set)
    changes_by_version = []
    for _ in range(draw(st.integers(1, 4))):
        changes: list[Change] = []
        for _ in range(draw(st.integers(0, 12))):
            state, key = draw(st.sampled_from(["one", "many"])), draw(keys)
            op = draw(
                st.sampled_from([PUT, DELETE] + [MERGE, MERGE] * (state == "many" and key in present[state]))
            )
            (present[state].discard if op == DELETE else present[state].add)(key)
            changes.append((state, op, key, None if op == DELETE else draw(values)))
        changes_by_version.append(changes)
    return changes_by_version


def described(rows: Rows) -> tuple[ColumnFamily, ...]:
    values = {"many": sum(map(len, rows["many"].values()))}
    return tuple(
        ColumnFamily(name, len(rows[name]), "{}", "{}", "hash", 0, values=values.get(name))
        for name in FAMILIES
    )


def commit_all(checkpoint: QueryCheckpoint, changes_by_version: list[list[Change]]) -> Rows:
    """Commit versions one on top of the other, and give what they leave."""
    rows: Rows = {name: {} for name in FAMILIES}
    store = checkpoint.open(STORE)
    handle = None
    for version, changes in enumerate(changes_by_version, 1):
        batches = []
        for state, op, key, value in changes:
            arrays = [
                pa.array([cell], field.type)
                for cell, field in zip((op, key, value), CHANGE_SCHEMA, strict=True)
            ]
            batches.append((state, pa.record_batch(arrays, schema=CHANGE_SCHEMA)))
            apply(rows[state], batches[-1][1])
        pending = begin_checkpoint(store, CheckpointName(version), f"{version:016x}", described(rows))
        for state, batch in batches:
            pending.write(FAMILIES.index(state), batch.serialize())
        handle = pending.publish(handle, None, None).handle
    return rows


def rows_of(content: StoreSnapshot) -> Rows:
    rows: Rows = {state.name: {} for state in content.column_families}
    for name, table in content.rows():
        for row in table.to_pylist():
            rows[name].setdefault(row["key"], []).append(row["value"])
    return rows


@given(changes_by_version=versions(), memory=st.sampled_from([None, 1500]))
@settings(max_examples=60 * EFFORT)
def test_store_snapshot_copies_the_result_of_a_changelog(
    tmp_path_factory: pytest.TempPathFactory, changes_by_version: list[list[Change]], memory: int | None
):
    directory = tmp_path_factory.mktemp("content")
    source, target = (QueryCheckpoint(str(directory / name)) for name in ("source", "target"))
    expected = commit_all(source, changes_by_version)
    name = CheckpointName(len(changes_by_version))
    content = read_store(source, StoreVersion(STORE, name), memory)
    assert rows_of(content) == expected
    # Twice the same.
    assert rows_of(content) == expected

    attempt_id = "00000000000000aa"
    new = CheckpointName(9, attempt_id)
    # The numbers are counted, not believed.
    wrong = replace(
        content, column_families=tuple(replace(state, rows=77) for state in content.column_families)
    )
    write_store(target.open(STORE), new, attempt_id, wrong)
    copied = read_store(target, StoreVersion(STORE, new))
    assert copied.column_families == content.column_families == described(expected)
    assert rows_of(copied) == expected
    # In one stream that builds on nothing.
    metadata = target.open(STORE).metadata(new)
    assert (metadata.parent_attempt_id, metadata.handle.base_version) == (None, 9)
    assert [entry.full for entry in metadata.handle] == [True] * any(expected.values())


# Strings differ in the last bytes of their words.
@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_read_store_beyond_the_memory_limit_reads_several_times(tmp_path: Path, byteorder: Any) -> None:
    checkpoint = QueryCheckpoint(str(tmp_path))
    changes = [
        (state, PUT, number.to_bytes(8, byteorder), bytes(100))
        for number in range(99)
        for state in FAMILIES[:2]
    ]
    expected = commit_all(checkpoint, [changes, [("one", DELETE, bytes(8), None)]])
    version = StoreVersion(STORE, CheckpointName(2))
    for memory, several in ((None, False), (1 << 20, False), (10_000, True)):
        tables: dict[str, list[pa.Table]] = {name: [] for name in FAMILIES}
        for name, rows in read_store(checkpoint, version, memory).rows():
            tables[name].append(rows)
        assert (len(tables["one"]) > 2) == several
        assert all(rows.nbytes < 10_000 for rows in tables["one"] + tables["many"]) == several
        for name in FAMILIES:
            keys = [key for rows in tables[name] for key in rows["key"].to_pylist()]
            assert sorted(keys) == sorted(expected[name])


def test_read_store_with_a_memory_limit_verifies_before_it_yields(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(tmp_path))
    commit_all(checkpoint, [[("one", PUT, number.to_bytes(8, "little"), bytes(100)) for number in range(99)]])
    (path,) = tmp_path.rglob("_metadata")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError):
        next(read_store(checkpoint, StoreVersion(STORE, CheckpointName(1)), 1000).rows())


def test_read_store_with_a_memory_limit_counts_rows(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(tmp_path))
    commit_all(checkpoint, [[("one", PUT, number.to_bytes(8, "little"), bytes(100)) for number in range(99)]])
    version = StoreVersion(STORE, CheckpointName(1))
    metadata = checkpoint.open(STORE).metadata(version.name)
    wrong = replace(
        metadata, column_families=tuple(replace(state, rows=98) for state in metadata.column_families)
    )
    for memory in (1000, None):
        with pytest.raises(CorruptCheckpointError, match="has 99 values in the state 'one', but 98"):
            list(module._rows(checkpoint.open(STORE), version.name, wrong, memory))


def test_read_store_with_a_memory_limit_refuses_keys_that_are_no_rows(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(tmp_path))
    expected = commit_all(checkpoint, [[("one", PUT, b"%09d" % number, bytes(100)) for number in range(99)]])
    version = StoreVersion(STORE, CheckpointName(1))
    assert rows_of(read_store(checkpoint, version, 1 << 20)) == expected
    with pytest.raises(CorruptCheckpointError, match="keys that are no UnsafeRows"):
        rows_of(read_store(checkpoint, version, 1000))


KEYS_AND_VALUES = [
    *(("many", PUT, b"%d" % key, b"first") for key in range(4)),
    *(("many", MERGE, b"%d" % key, b"second") for key in range(4)),
]
SIZES = [
    ("many", PUT, b"%d" % key, bytes(size)) for key, size in enumerate((300, 300, 300, 2000, 300, 900, 99))
]


@pytest.mark.parametrize(
    ("limit", "most", "changes", "batches"),
    [
        ("_BATCH_ROWS", 3, KEYS_AND_VALUES, 3),
        # Three rows, the one that exceeds the limit alone, one, and two of exactly the limit with their keys.
        ("_BATCH_BYTES", 1000, SIZES, 5),
    ],
    ids=["rows", "bytes"],
)
def test_write_store_splits_rows_into_batches(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    most: int,
    changes: list[Change],
    batches: int,
) -> None:
    monkeypatch.setattr(module, limit, most)
    checkpoint = QueryCheckpoint(str(tmp_path))
    expected = commit_all(checkpoint, [changes])
    first, second = (StoreVersion(STORE, CheckpointName(version)) for version in (1, 2))
    write_store(checkpoint.open(STORE), second.name, "00000000000000aa", read_store(checkpoint, first))
    assert rows_of(read_store(checkpoint, second)) == expected
    (entry,) = checkpoint.open(STORE).metadata(second.name).handle
    assert len(entry.state.state_name_to_partition_offsets["many"].offsets) == batches


def test_write_store_writes_no_version_if_the_read_fails(tmp_path: Path) -> None:
    checkpoint = QueryCheckpoint(str(tmp_path))
    commit_all(checkpoint, [[("one", PUT, b"a", random.Random(1).randbytes(3_000_000))]])
    content = read_store(checkpoint, StoreVersion(STORE, CheckpointName(1)))

    def rows() -> Iterator[tuple[str, pa.Table]]:
        yield from content.rows()
        raise CorruptCheckpointError("the rest cannot be read")

    target = QueryCheckpoint(str(tmp_path / "target"))
    with pytest.raises(CorruptCheckpointError, match="the rest"):
        write_store(target.open(STORE), CheckpointName(1), "00000000000000aa", replace(content, rows=rows))
    assert files_below(tmp_path / "target") == {}
