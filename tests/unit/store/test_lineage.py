"""Lineage, replay and the net changes of each commit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_statestore.errors import CheckpointNotFoundError, IllegalStateError
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.store.changelog import DELETE, MERGE, PUT
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import begin_checkpoint, begin_snapshot
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.lineage import (
    PastVersion,
    apply,
    changes,
    column_family_of,
    lineage,
    past_version,
    replay,
    streams_since,
)
from spark_statestore.store.metadata import CheckpointMetadata, ColumnFamily
from spark_statestore.store.reader import read_version
from tests.support.effort import EFFORT
from tests.unit.store.stores import Change, attempt_id, change_batch, open_store

FamilyRows = dict[str, dict[bytes, list[bytes]]]

keys = st.sampled_from([b"a", b"b"])
# The large ones go to files of their own.
values = st.one_of(st.binary(max_size=3), st.just(b"x" * 600))
drafts = st.lists(st.tuples(st.sampled_from([PUT, DELETE, MERGE, MERGE]), keys, values), max_size=6)


@dataclass(frozen=True)
class Step:
    """One batch: what it does to each state; None leaves the state out, or removes it."""

    changed: dict[str, list[Change] | None]
    anew: frozenset[str] = frozenset()
    whole: bool = False
    rebased: bool = False
    attempts: int = 1


steps = st.builds(
    Step,
    st.fixed_dictionaries({"default": drafts, "list": st.one_of(st.none(), drafts)}),
    st.sampled_from([frozenset(), frozenset(), frozenset(["list"])]),
    st.booleans(),
    st.booleans(),
    st.integers(1, 2),
)


@dataclass(frozen=True)
class Version:
    """A version as its writer knows it."""

    number: int
    attempt_id: str | None
    column_families: FamilyRows
    created_at_version: dict[str, int]
    handle: IncrementalStateHandle | None


EMPTY = Version(0, None, {}, {}, None)


def all_of(rows: dict[bytes, list[bytes]]) -> list[Change]:
    return [
        (MERGE if i else PUT, key, value) for key, values_ in rows.items() for i, value in enumerate(values_)
    ]


def effective(rows: dict[bytes, list[bytes]], drafted: list[Change]) -> list[Change]:
    """Apply changes to rows; return those that have an effect."""
    effective_changes = []
    for op, key, value in drafted:
        if op == DELETE and key not in rows:
            continue
        change = (op, key, None if op == DELETE else value)
        apply(rows, change_batch([change]))
        effective_changes.append(change)
    return effective_changes


def commit(store: StoreDirectory, parent: Version, step: Step, *, with_ids: bool) -> Version:
    number = parent.number + 1
    column_families: FamilyRows = {}
    created_at_version: dict[str, int] = {}
    sent: dict[str, list[Change]] = {}
    for name, drafted in step.changed.items():
        if drafted is None:
            continue
        is_inherited = name in parent.column_families and name not in step.anew
        created_at_version[name] = parent.created_at_version[name] if is_inherited else number
        column_families[name] = (
            {k: list(v) for k, v in parent.column_families[name].items()} if is_inherited else {}
        )
        sent[name] = effective(column_families[name], drafted)
        if step.whole or parent.handle is None:
            sent[name] = all_of(column_families[name])
    by = attempt_id()
    base = None
    if step.rebased and parent.handle is not None:
        snapshot = begin_snapshot(
            store, parent.number, described(parent.column_families, parent.created_at_version)
        )
        for i, rows in enumerate(parent.column_families.values()):
            if rows:
                snapshot.write(i, change_batch(all_of(rows)).serialize())
        base = snapshot.finish()
    pending = begin_checkpoint(
        store,
        CheckpointName(number, by if with_ids else None),
        by,
        described(column_families, created_at_version),
    )
    for i, part in enumerate(sent.values()):
        if part:
            pending.write(i, change_batch(part).serialize())
    whole = step.whole or parent.handle is None
    committed = pending.publish(None if whole else parent.handle, parent.attempt_id, None if whole else base)
    return Version(number, by, column_families, created_at_version, committed.handle)


def described(column_families: FamilyRows, created_at_version: dict[str, int]) -> tuple[ColumnFamily, ...]:
    return tuple(
        ColumnFamily(
            name,
            len(rows),
            "{}",
            "{}",
            "hash",
            0,
            values=sum(map(len, rows.values())),
            created_at_version=created_at_version[name],
        )
        for name, rows in column_families.items()
    )


def write(store: StoreDirectory, history: list[Step], *, with_ids: bool) -> list[Version]:
    """Commit all steps; of several attempts the last one counts."""
    versions = [EMPTY]
    for step in history:
        tried = [commit(store, versions[-1], step, with_ids=with_ids) for _ in range(step.attempts)]
        versions.append(tried[-1])
    return versions


def name_of(version: Version, *, with_ids: bool) -> CheckpointName:
    return CheckpointName(version.number, version.attempt_id if with_ids else None)


def rows_of(store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata) -> FamilyRows:
    rows: FamilyRows = {state.name: {} for state in metadata.column_families}
    for state, changed in read_version(store, name, metadata):
        apply(rows[state], changed)
    return rows


def after(store: StoreDirectory, version: PastVersion, before: FamilyRows) -> FamilyRows:
    """Apply the changes of a commit to the rows before it."""
    names = {"default", "list", "never"}
    families: FamilyRows = {name: {k: list(v) for k, v in before.get(name, {}).items()} for name in names}
    for state, changed in changes(store, version, names):
        apply(families[state], changed)
    return {name: rows for name, rows in families.items() if rows}


def nonempty(column_families: FamilyRows) -> FamilyRows:
    return {name: rows for name, rows in column_families.items() if rows}


@pytest.mark.parametrize("with_ids", [False, True])
@settings(max_examples=40 * EFFORT)
@given(history=st.lists(steps, min_size=1, max_size=6))
def test_changes_applied_to_the_parent_give_the_version(with_ids: bool, history: list[Step]) -> None:
    with TemporaryDirectory() as directory:
        store = open_store(directory)
        versions = write(store, history, with_ids=with_ids)
        past = lineage(store, name_of(versions[-1], with_ids=with_ids), 1)
        assert [version.metadata.attempt_id for version in past] == [
            version.attempt_id for version in versions[1:]
        ]
        for version, (before, now) in zip(past, pairwise(versions), strict=True):
            assert after(store, version, before.column_families) == nonempty(now.column_families)


@pytest.mark.parametrize("with_ids", [False, True])
@settings(max_examples=40 * EFFORT)
@given(history=st.lists(steps, min_size=1, max_size=6))
def test_replay_from_any_ancestor_gives_the_version(with_ids: bool, history: list[Step]) -> None:
    with TemporaryDirectory() as directory:
        store = open_store(directory)
        versions = write(store, history, with_ids=with_ids)
        end = name_of(versions[-1], with_ids=with_ids)
        for start in versions[1:]:
            metadata = replay(store, name_of(start, with_ids=with_ids), end)
            assert rows_of(store, end, metadata) == versions[-1].column_families
            # Only a commit that wrote everything may have a newer snapshot.
            whole = [i for i, step in enumerate(history, 1) if step.whole]
            bases = [entry.version for entry in metadata.handle if entry.full]
            assert all(version <= start.number or version in whole for version in bases)


@pytest.mark.parametrize("with_ids", [False, True])
@settings(max_examples=40 * EFFORT)
@given(history=st.lists(steps, min_size=2, max_size=6))
def test_streams_since_an_ancestor_turn_it_into_the_version(with_ids: bool, history: list[Step]) -> None:
    with TemporaryDirectory() as directory:
        store = open_store(directory)
        versions = write(store, history, with_ids=with_ids)
        end = past_version(store, name_of(versions[-1], with_ids=with_ids))
        for start in versions[1:-1]:
            entries = streams_since(store, end, start.number, str(start.attempt_id))
            later = [entry for entry in replay_entries(store, start, end, with_ids) if not entry.full]
            if any(step.whole for step in history[start.number :]):
                assert entries is None
                continue
            whole = end.metadata.handle.state_size
            if sum(entry.state.state_size for entry in later) >= whole:
                assert entries is None
                continue
            assert entries == later
            if start.created_at_version == versions[-1].created_at_version:
                rows = {name: {k: list(v) for k, v in f.items()} for name, f in start.column_families.items()}
                handle = IncrementalStateHandle(end.name.version, start.number, entries)
                for name, batch in read_version(store, end.name, replace(end.metadata, handle=handle)):
                    apply(rows[name], batch)
                assert rows == versions[-1].column_families


def replay_entries(
    store: StoreDirectory, start: Version, end: PastVersion, with_ids: bool
) -> list[ChainEntry]:
    chain = replay(store, name_of(start, with_ids=with_ids), end.name).handle
    return [entry for entry in chain if entry.version > start.number]


@pytest.mark.parametrize("with_ids", [False, True])
def test_streams_since_another_attempt_or_a_distant_version_are_none(tmp_path: Path, with_ids: bool) -> None:
    store = open_store(tmp_path)
    large = Step({"default": [(PUT, bytes([i]), b"x" * 600) for i in range(100)]})
    versions = write(store, [large, *[puts(a=b"1")] * 18], with_ids=with_ids)
    end = past_version(store, name_of(versions[-1], with_ids=with_ids))

    def since(version: int, by: str | None = None) -> list[ChainEntry] | None:
        return streams_since(store, end, version, by or str(versions[version].attempt_id))

    assert [entry.version for entry in since(16) or ()] == [17, 18, 19]
    assert len(since(3) or ()) == 16
    assert since(2) is None
    assert since(19) is None
    assert since(16, attempt_id()) is None
    # Without the metadata in between the version is read as a whole, and reports what is missing.
    Path(store.metadata_path(name_of(versions[18], with_ids=with_ids))).unlink()
    assert since(17) is None
    assert [entry.version for entry in since(18) or ()] == [19]


def puts(**rows: bytes) -> Step:
    return Step({"default": [(PUT, key.encode(), value) for key, value in rows.items()]})


def test_lineage_follows_the_attempt_that_was_built_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = commit(store, EMPTY, puts(a=b"first"), with_ids=False)
    built = commit(store, first, puts(b=b"1"), with_ids=False)
    # Later, and of no consequence for the version that was built already.
    commit(store, EMPTY, puts(a=b"second"), with_ids=False)
    past = lineage(store, CheckpointName(2), 1)
    assert [version.metadata.attempt_id for version in past] == [first.attempt_id, built.attempt_id]
    assert after(store, past[0], {}) == {"default": {b"a": [b"first"]}}
    assert past_version(store, CheckpointName(1)).metadata.attempt_id != first.attempt_id


@pytest.mark.parametrize("with_ids", [False, True])
def test_lineage_error_names_the_version_that_is_not_retained(tmp_path: Path, with_ids: bool) -> None:
    store = open_store(tmp_path)
    versions = write(
        store, [puts(a=b"1"), puts(b=b"2"), Step(puts(c=b"3").changed, whole=True)], with_ids=with_ids
    )
    end = name_of(versions[-1], with_ids=with_ids)
    store.load(end)
    assert discard_versions(store, end, str(versions[-1].attempt_id), 3, 0) > 0
    past = lineage(store, end, 3)
    for request in (
        lambda: lineage(store, end, 2),
        lambda: replay(store, CheckpointName(2), end),
        # The commit wrote everything: what it changed shows only beside the version before.
        lambda: list(changes(store, past[0], ["default"])),
    ):
        with pytest.raises(
            CheckpointNotFoundError,
            match=r"operator 0, partition 3.* 2\b.* does not exist; .* versions 3 to 3",
        ):
            request()
    assert rows_of(store, end, replay(store, CheckpointName(3), end)) == versions[-1].column_families


def test_replay_refuses_an_attempt_that_is_no_ancestor(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = (commit(store, EMPTY, puts(a=b"1"), with_ids=True) for _ in range(2))
    end = name_of(commit(store, first, puts(b=b"2"), with_ids=True), with_ids=True)
    with pytest.raises(CheckpointNotFoundError, match=rf"{second.attempt_id}\), but on .*{first.attempt_id}"):
        replay(store, name_of(second, with_ids=True), end)


def test_lineage_error_of_a_version_without_parent(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    start = Version(4, None, {}, {}, None)
    end = name_of(commit(store, start, puts(a=b"1"), with_ids=True), with_ids=True)
    with pytest.raises(CheckpointNotFoundError, match="has no parent"):
        lineage(store, end, 4)


@pytest.mark.parametrize("oldest", [0, 3])
def test_lineage_refuses_a_version_that_is_no_ancestor(tmp_path: Path, oldest: int) -> None:
    store = open_store(tmp_path)
    write(store, [puts(a=b"1"), puts(b=b"2")], with_ids=False)
    with pytest.raises(IllegalStateError, match=f"version {oldest} is not an ancestor"):
        lineage(store, CheckpointName(2), oldest)


def test_changes_of_a_full_snapshot_come_in_several_batches(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    large = {f"k{i}": bytes([i]) * 400_000 for i in range(8)}
    write(store, [puts(**large)], with_ids=False)
    batches = list(changes(store, past_version(store, CheckpointName(1)), ["default"]))
    assert [changed.num_rows for _, changed in batches] == [3, 3, 2]


def test_column_family_of_is_that_of_the_newest_version_that_has_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    both = Step({"default": [], "list": [(PUT, b"a", b"1")]})
    write(store, [both, both, puts(a=b"1")], with_ids=False)
    past = lineage(store, CheckpointName(3), 1)
    assert column_family_of(store, past, "list") == past[1].metadata.column_families[1]
    with pytest.raises(
        CheckpointNotFoundError, match=r"version 3 .* no column family 'lists', only default, list\."
    ):
        column_family_of(store, past, "lists")


def key_of(change: Change) -> bytes:
    return change[1]


def changes_of(store: StoreDirectory, version: int) -> list[Change]:
    ((_, batch),) = changes(store, past_version(store, CheckpointName(version)), ["default"])
    return sorted(((row["op"], row["key"], row["value"]) for row in batch.to_pylist()), key=key_of)


def test_changes_distinguish_added_values_from_replaced_ones(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first: list[Change] = [(PUT, key, b"1") for key in (b"longer", b"other", b"same", b"gone")]
    then: list[Change] = [
        (MERGE, b"longer", b"2"),
        (MERGE, b"longer", b"3"),
        (PUT, b"other", b"2"),
        (MERGE, b"other", b"3"),
        (DELETE, b"gone", None),
        (PUT, b"new", b"1"),
        (MERGE, b"new", b"1"),
    ]
    write(store, [Step({"default": first}), Step({"default": then}, whole=True)], with_ids=False)
    assert changes_of(store, 2) == sorted(then, key=key_of)


def test_changes_of_a_full_snapshot_merge_to_keys_without_values(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first: list[Change] = [(PUT, key, b"1") for key in (b"longer", b"anew")]
    added: list[Change] = [(MERGE, b"anew", b"3"), (MERGE, b"new", b"1"), (MERGE, b"new", b"2")]
    parent = commit(store, EMPTY, Step({"default": first}), with_ids=False)
    # The snapshot of the shim keeps the record type of a key's first value.
    snapshot = [(PUT, b"longer", b"1"), (MERGE, b"longer", b"2"), *added]
    rows = {b"longer": [b"1", b"2"], b"anew": [b"3"], b"new": [b"1", b"2"]}
    pending = begin_checkpoint(
        store, CheckpointName(2), attempt_id(), described({"default": rows}, {"default": 1})
    )
    pending.write(0, change_batch(snapshot).serialize())
    pending.publish(None, parent.attempt_id, None)
    expected = [(MERGE, b"longer", b"2"), (DELETE, b"anew", None), *added]
    assert changes_of(store, 2) == sorted(expected, key=key_of)
