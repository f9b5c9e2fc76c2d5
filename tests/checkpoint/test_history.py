"""What a store went through: its past, the changes of each commit, and versions made of those."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore.checkpoint.history import (
    PastVersion,
    apply,
    changes,
    described_state,
    lineage,
    past_version,
    replay,
)
from spark_statestore.checkpoint.metadata import CheckpointMetadata, NamedState
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError, IllegalStateError
from spark_statestore.state.changes import APPEND, CHANGE_SCHEMA, PUT, REMOVE
from spark_statestore.state.handles import IncrementalStateHandle
from tests.checkpoint.stores import attempt, open_store
from tests.effort import EFFORT

States = dict[str, dict[bytes, list[bytes]]]
Change = tuple[int, bytes, bytes | None]

keys = st.sampled_from([b"a", b"b"])
# The large ones go to files of their own.
values = st.one_of(st.binary(max_size=3), st.just(b"x" * 600))
drafts = st.lists(st.tuples(st.sampled_from([PUT, REMOVE, APPEND, APPEND]), keys, values), max_size=6)


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
    attempt: str | None
    states: States
    since: dict[str, int]
    handle: IncrementalStateHandle | None


EMPTY = Version(0, None, {}, {}, None)


def batch(found: list[Change]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CHANGE_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA)


def all_of(rows: dict[bytes, list[bytes]]) -> list[Change]:
    return [
        (APPEND if i else PUT, key, value) for key, values_ in rows.items() for i, value in enumerate(values_)
    ]


def effective(rows: dict[bytes, list[bytes]], drafted: list[Change]) -> list[Change]:
    """The changes that a store can be asked for, applied to its rows."""
    done = []
    for op, key, value in drafted:
        if op != PUT and key not in rows:
            continue
        change = (op, key, None if op == REMOVE else value)
        apply(rows, batch([change]))
        done.append(change)
    return done


def commit(store: VersionStore, parent: Version, step: Step, *, with_ids: bool) -> Version:
    number = parent.number + 1
    states: States = {}
    since: dict[str, int] = {}
    sent: dict[str, list[Change]] = {}
    for name, drafted in step.changed.items():
        if drafted is None:
            continue
        kept = name in parent.states and name not in step.anew
        since[name] = parent.since[name] if kept else number
        states[name] = {k: list(v) for k, v in parent.states[name].items()} if kept else {}
        sent[name] = effective(states[name], drafted)
        if step.whole or parent.handle is None:
            sent[name] = all_of(states[name])
    by = attempt()
    base = None
    if step.rebased and parent.handle is not None:
        snapshot = store.begin_snapshot(parent.number, described(parent.states, parent.since))
        for i, rows in enumerate(parent.states.values()):
            if rows:
                snapshot.write(i, batch(all_of(rows)).serialize())
        base = snapshot.finish()
    pending = store.begin(CheckpointName(number, by if with_ids else None), by, described(states, since))
    for i, found in enumerate(sent.values()):
        if found:
            pending.write(i, batch(found).serialize())
    whole = step.whole or parent.handle is None
    done = pending.publish(None if whole else parent.handle, parent.attempt, None if whole else base)
    return Version(number, by, states, since, done.handle)


def described(states: States, since: dict[str, int]) -> tuple[NamedState, ...]:
    return tuple(
        NamedState(
            name, len(rows), "{}", "{}", "hash", 0, values=sum(map(len, rows.values())), since=since[name]
        )
        for name, rows in states.items()
    )


def write(store: VersionStore, history: list[Step], *, with_ids: bool) -> list[Version]:
    """Commit all steps; of several attempts the last one counts."""
    versions = [EMPTY]
    for step in history:
        tried = [commit(store, versions[-1], step, with_ids=with_ids) for _ in range(step.attempts)]
        versions.append(tried[-1])
    return versions


def name_of(version: Version, *, with_ids: bool) -> CheckpointName:
    return CheckpointName(version.number, version.attempt if with_ids else None)


def rows_of(store: VersionStore, name: CheckpointName, metadata: CheckpointMetadata) -> States:
    found: States = {state.name: {} for state in metadata.states}
    for state, changed in store.read(name, metadata):
        apply(found[state], changed)
    return found


def after(store: VersionStore, version: PastVersion, before: States) -> States:
    """The states before a commit and its changes."""
    names = {"default", "list", "never"}
    found: States = {name: {k: list(v) for k, v in before.get(name, {}).items()} for name in names}
    for state, changed in changes(store, version, names):
        apply(found[state], changed)
    return {name: rows for name, rows in found.items() if rows}


def nonempty(states: States) -> States:
    return {name: rows for name, rows in states.items() if rows}


@pytest.mark.parametrize("with_ids", [False, True])
@settings(max_examples=40 * EFFORT)
@given(history=st.lists(steps, min_size=1, max_size=6))
def test_the_changes_of_each_version_make_it_of_the_one_before(with_ids: bool, history: list[Step]) -> None:
    with TemporaryDirectory() as directory:
        store = open_store(directory)
        written = write(store, history, with_ids=with_ids)
        past = lineage(store, name_of(written[-1], with_ids=with_ids), 1)
        assert [version.metadata.attempt for version in past] == [version.attempt for version in written[1:]]
        for version, (before, now) in zip(past, pairwise(written), strict=True):
            assert after(store, version, before.states) == nonempty(now.states)


@pytest.mark.parametrize("with_ids", [False, True])
@settings(max_examples=40 * EFFORT)
@given(history=st.lists(steps, min_size=1, max_size=6))
def test_a_replay_from_any_version_gives_the_version(with_ids: bool, history: list[Step]) -> None:
    with TemporaryDirectory() as directory:
        store = open_store(directory)
        written = write(store, history, with_ids=with_ids)
        end = name_of(written[-1], with_ids=with_ids)
        for start in written[1:]:
            metadata = replay(store, name_of(start, with_ids=with_ids), end)
            assert rows_of(store, end, metadata) == written[-1].states
            # Only a commit that wrote everything may have a newer snapshot.
            whole = [i for i, step in enumerate(history, 1) if step.whole]
            bases = [entry.version for entry in metadata.handle if entry.full]
            assert all(version <= start.number or version in whole for version in bases)


def puts(**rows: bytes) -> Step:
    return Step({"default": [(PUT, key.encode(), value) for key, value in rows.items()]})


def test_a_replay_reads_no_newer_snapshot(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    rebased = Step({"default": [(PUT, b"c", b"3")]}, rebased=True)
    end = name_of(write(store, [puts(a=b"1"), puts(b=b"2"), rebased], with_ids=False)[-1], with_ids=False)
    (snapshot,) = (tmp_path / "shared").iterdir()
    snapshot.unlink()
    with pytest.raises(CorruptCheckpointError):
        rows_of(store, end, store.load(end))
    rows = rows_of(store, end, replay(store, CheckpointName(2), end))
    assert rows == {"default": {b"a": [b"1"], b"b": [b"2"], b"c": [b"3"]}}


def test_the_attempt_that_was_built_on_counts(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = commit(store, EMPTY, puts(a=b"first"), with_ids=False)
    built = commit(store, first, puts(b=b"1"), with_ids=False)
    # Later, and of no consequence for the version that was built already.
    commit(store, EMPTY, puts(a=b"second"), with_ids=False)
    past = lineage(store, CheckpointName(2), 1)
    assert [version.metadata.attempt for version in past] == [first.attempt, built.attempt]
    assert after(store, past[0], {}) == {"default": {b"a": [b"first"]}}
    assert past_version(store, CheckpointName(1)).metadata.attempt != first.attempt


@pytest.mark.parametrize("with_ids", [False, True])
def test_a_version_that_is_not_retained_is_named(tmp_path: Path, with_ids: bool) -> None:
    store = open_store(tmp_path)
    written = write(
        store, [puts(a=b"1"), puts(b=b"2"), Step(puts(c=b"3").changed, whole=True)], with_ids=with_ids
    )
    end = name_of(written[-1], with_ids=with_ids)
    store.load(end)
    assert store.cleanup(end, str(written[-1].attempt), 3, 0) > 0
    past = lineage(store, end, 3)
    for asked in (
        lambda: lineage(store, end, 2),
        lambda: replay(store, CheckpointName(2), end),
        # The commit wrote everything: what it changed shows only beside the version before.
        lambda: list(changes(store, past[0], ["default"])),
    ):
        with pytest.raises(
            CheckpointNotFoundError, match=r"operator 0, partition 3.* 2\b.* not there; .* versions 3 to 3"
        ):
            asked()
    assert rows_of(store, end, replay(store, CheckpointName(3), end)) == written[-1].states


def test_another_attempt_is_no_past(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    one, other = (commit(store, EMPTY, puts(a=b"1"), with_ids=True) for _ in range(2))
    end = name_of(commit(store, one, puts(b=b"2"), with_ids=True), with_ids=True)
    with pytest.raises(CheckpointNotFoundError, match=rf"{other.attempt}\), but on .*{one.attempt}"):
        replay(store, name_of(other, with_ids=True), end)


def test_an_id_whose_past_is_unknown_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    start = Version(4, None, {}, {}, None)
    end = name_of(commit(store, start, puts(a=b"1"), with_ids=True), with_ids=True)
    with pytest.raises(CheckpointNotFoundError, match="does not say on which attempt at version 4"):
        lineage(store, end, 4)


@pytest.mark.parametrize("oldest", [0, 3])
def test_there_is_no_past_before_the_first_version_and_after_the_last(tmp_path: Path, oldest: int) -> None:
    store = open_store(tmp_path)
    write(store, [puts(a=b"1"), puts(b=b"2")], with_ids=False)
    with pytest.raises(IllegalStateError, match=f"from {oldest} to 2"):
        lineage(store, CheckpointName(2), oldest)


def test_a_large_difference_comes_in_several_batches(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    large = {f"k{i}": bytes([i]) * 400_000 for i in range(8)}
    write(store, [puts(**large)], with_ids=False)
    found = list(changes(store, past_version(store, CheckpointName(1)), ["default"]))
    assert [changed.num_rows for _, changed in found] == [3, 3, 2]


def test_a_state_is_described_by_the_newest_version_that_has_it(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    both = Step({"default": [], "list": [(PUT, b"a", b"1")]})
    write(store, [both, both, puts(a=b"1")], with_ids=False)
    past = lineage(store, CheckpointName(3), 1)
    assert described_state(store, past, "list") == past[1].metadata.states[1]
    with pytest.raises(
        CheckpointNotFoundError, match=r"version 3 .* no state 'lists', they have default, list\."
    ):
        described_state(store, past, "lists")


def test_a_difference_tells_more_values_from_other_values(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first = [(PUT, key, b"1") for key in (b"longer", b"other", b"same", b"gone")]
    then = [
        (APPEND, b"longer", b"2"),
        (APPEND, b"longer", b"3"),
        (PUT, b"other", b"2"),
        (APPEND, b"other", b"3"),
    ]
    then += [(REMOVE, b"gone", b""), (PUT, b"new", b"1"), (APPEND, b"new", b"1")]
    write(store, [Step({"default": first}), Step({"default": then}, whole=True)], with_ids=False)
    ((_, found),) = changes(store, past_version(store, CheckpointName(2)), ["default"])
    told = [tuple(row.values()) for row in found.to_pylist()]
    expected = [(op, key, value or None) for op, key, value in then]
    assert sorted(told, key=lambda change: change[1]) == sorted(expected, key=lambda change: change[1])
