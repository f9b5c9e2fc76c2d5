"""Damaged streams are replaced by streams with exactly the same state, or the version is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from spark_statestore.errors import CheckpointIOError, CheckpointNotFoundError, CorruptCheckpointError
from spark_statestore.files import LocalFileSystem
from spark_statestore.files.request_context import RequestContext, enter
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.file_handles import SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.store.changelog import DELETE, PUT
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.healing import heal, read_healed, readable_metadata, smallest_chain, steps_of
from spark_statestore.store.lineage import changes, past_version
from spark_statestore.store.reader import damaged_streams
from tests.support.damage import Damage, damaged
from tests.support.effort import EFFORT
from tests.unit.store import stores
from tests.unit.store.stores import attempt_id, message, named, open_store, snapshot

Rows = dict[bytes, bytes]

LARGE = 700


def load(directory: Path, name: CheckpointName) -> Rows:
    """Read a version of a new instance of the store, healed."""
    return stores.load(open_store(directory), name, healed=True)["default"]


@dataclass
class Stored:
    """Ten versions with two uploaded bases, a run, streams in files and inline, and a replaced attempt.

    The chains are 1; 1 2; 1 2 3; B2 3 4; B2 3 4 5; B2 R 6; B2 R 6; B6 8; B6 8 9; 10. Version 7 changed
    nothing, version 10 wrote everything, R are the changes of the versions 3 to 5.
    """

    directory: Path
    ids: bool
    rows: dict[int, Rows] = field(default_factory=lambda: {0: {}})
    names: dict[int, CheckpointName] = field(default_factory=dict)
    handles: dict[int, IncrementalStateHandle] = field(default_factory=dict)
    attempts: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.add(1, {b"a": b"1", b"b": b"1" * LARGE, b"gone": b"1"})
        self.add(2, {b"a": b"2"})
        self.add(3, {b"c": b"of an attempt that was replaced" * LARGE})
        self.add(3, {b"c": b"3" * LARGE, b"d": b"3"}, [b"a"])
        self.add(4, {b"a": b"4"}, [b"d"], base=snapshot(open_store(self.directory), 2, self.rows[2]))
        self.add(5, {b"e": b"5"})
        assert set(self.rows[2]) <= set(self.rows[5])
        since = dict(self.rows[5].items() - self.rows[2].items())
        self.add(6, {b"a": b"6"}, [b"gone"], snapshot(open_store(self.directory), 5, since, since=2))
        self.add(7, {})
        self.add(8, {b"gone": b"8"}, base=snapshot(open_store(self.directory), 6, self.rows[6]))
        self.add(9, {b"a": b"9"}, [b"e"])
        self.add(10, {b"a": b"10"}, [b"gone"], full=True)

    def add(
        self,
        version: int,
        put: Rows,
        removed: list[bytes] | None = None,
        base: IncrementalStateHandle | None = None,
        *,
        full: bool = False,
    ) -> None:
        by = attempt_id()
        rows = {key: value for key, value in self.rows[version - 1].items() if key not in (removed or [])}
        self.rows[version] = rows | put
        if full:
            put, removed = self.rows[version], []
        self.names[version] = CheckpointName(version, by if self.ids else None)
        pending = begin_checkpoint(open_store(self.directory), self.names[version], by, named())
        if put or removed:
            pending.write(0, message(put, removed or []))
        parent = None if full else self.handles.get(version - 1)
        committed = pending.publish(parent, self.attempts.get(version - 1), base)
        self.handles[version], self.attempts[version] = committed.handle, by

    def streams(self) -> dict[str, ChainEntry]:
        """Return the streams by the names that the class uses."""
        by_name = {}
        for version, handle in self.handles.items():
            for entry in handle:
                if entry.since is not None:
                    by_name["R"] = entry
                elif entry.full and entry.version != version and entry.version > 1:
                    by_name[f"B{entry.version}"] = entry
                else:
                    by_name.setdefault(f"{entry.version}", entry)
        return by_name

    def place(self, entry: ChainEntry) -> tuple[Path, int, int]:
        """Return the file of a stream, its first byte there and its size."""
        stream = entry.state.delegate_state_handle
        start = INLINE_STATE_OFFSET if isinstance(stream, SegmentFileStateHandle) else 0
        path = next(path for path in self.directory.rglob("*") if str(path) == stream.path)
        return path, start, entry.state.state_size

    def damages(self, entry: ChainEntry) -> Iterator[Damage]:
        """Yield damage of one stream at every kind of place, which leaves metadata with it intact."""
        path, start, size = self.place(entry)
        data = path.read_bytes()
        for at in (0, 9, 17, size // 2, size - 1):
            changed = bytearray(data)
            changed[start + at] ^= 4
            yield Damage(path, f"byte {at} of the stream flipped", bytes(changed))
        if start == 0:
            for length in (0, 10, size // 2, size - 1):
                yield Damage(path, f"cut to {length} bytes", data[:length])
            yield Damage(path, "written twice", data + data)
            yield Damage(path, "missing", None)
            for file in (self.directory / "shared").iterdir():
                if file != path:
                    yield Damage(path, f"{file} in its place", file.read_bytes())


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
    sample = Stored(tmp_path / "state" / "0" / "3", request.param)
    assert set(sample.streams()) == {*"12345689", "10", "R", "B2", "B6"}
    segments = {
        name
        for name, entry in sample.streams().items()
        if isinstance(entry.state.delegate_state_handle, SegmentFileStateHandle)
    }
    assert segments == set("245689")
    return sample


# By damaged stream, the versions that are read from other streams, and those that nothing covers.
HEALED = {"1": {2, 3}, "2": {2, 3}, "3": {5}, "4": {5}, "5": {5}, "6": {6, 7}, "8": set(), "9": set()}
HEALED |= {"B2": {4, 5, 6, 7}, "R": {6, 7}, "B6": {8, 9}, "10": set()}
REFUSED = {"1": {1}, "3": {3, 4}, "4": {4}, "8": {8, 9}, "9": {9}, "10": {10}}


def test_load_is_exact_or_refused_after_damage_of_any_stream(
    stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    for stream, entry in stored.streams().items():
        for damage in stored.damages(entry):
            with damaged(damage):
                healed, refused = set(), set()
                for version, name in stored.names.items():
                    caplog.clear()
                    try:
                        assert load(stored.directory, name) == stored.rows[version], version
                    except CorruptCheckpointError as error:
                        refused.add(version)
                        text = str(error)
                        assert entry.state.stream_state_handle_id in text
                        assert str(name) in text
                    for record in caplog.records:
                        assert f"operator 0, partition 3, store default, {name} at " in record.message
                        assert entry.state.stream_state_handle_id in record.message.partition("instead")[0]
                        healed.add(version)
                assert (healed, refused) == (HEALED[stream], REFUSED.get(stream, set())), stream


def is_covered(version: int, intact: set[str]) -> bool:
    """Return True if streams lead to a version, from the description of the store alone."""
    before = (
        {"R": 2, "1": 0, "10": 0}
        | {f"B{n}": 0 for n in (2, 6)}
        | {f"{n}": n - 1 for n in (2, 3, 4, 5, 6, 8, 9)}
    )
    after = {"R": 5, "B2": 2, "B6": 6} | {f"{n}": n for n in (1, 2, 3, 4, 5, 6, 8, 9, 10)}
    return (
        version == 0
        or (version == 7 and is_covered(6, intact))
        or any(after[stream] == version and is_covered(before[stream], intact) for stream in intact)
    )


@settings(max_examples=60 * EFFORT, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_load_is_healed_if_and_only_if_intact_streams_cover_the_version(
    stored: Stored, data: st.DataObject
) -> None:
    streams = stored.streams()
    broken = data.draw(st.sets(st.sampled_from(sorted(streams)), min_size=1))
    # Without its metadata, older versions may not be known to be ancestors.
    removed = data.draw(st.one_of(st.none(), st.integers(1, 10)))
    originals = {path: path.read_bytes() for path, *_ in map(stored.place, streams.values())}
    metadata = None if removed is None else stored.directory / stored.names[removed].directory / "_metadata"
    try:
        for name in broken:
            path, start, size = stored.place(streams[name])
            changed = bytearray(path.read_bytes())
            changed[start + data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
            path.write_bytes(changed)
        if metadata is not None:
            originals.setdefault(metadata, metadata.read_bytes())
            metadata.unlink()
            broken |= {f"{removed}"} & set("245689")
        for version, name in stored.names.items():
            is_readable = version != removed and is_covered(version, streams.keys() - broken)
            try:
                assert load(stored.directory, name) == stored.rows[version]
                assert is_readable, version
            except (CorruptCheckpointError, CheckpointNotFoundError):
                assert removed is not None or not is_readable, version
    finally:
        for path, content in originals.items():
            path.write_bytes(content)


def test_heal_uses_the_attempts_of_the_version_only(stored: Stored) -> None:
    """Version 3 is written again after a rollback: what the later versions have is another history."""
    abandoned = stored.attempts[3]
    stored.attempts = {2: stored.attempts[2]}
    rows, descendants = stored.rows.copy(), stored.streams()
    stored.add(3, {b"c": b"3" * (LARGE - 1)})
    name = stored.names[3]
    (own_entry,) = [entry for entry in stored.handles[3] if entry.version == 3]
    path, *_ = stored.place(own_entry)
    with damaged(Damage(path, "missing", None)), pytest.raises(CorruptCheckpointError):
        load(stored.directory, name)
    # The abandoned version 4 still is the child of the abandoned version 3, in format v1 by its other name.
    path, *_ = stored.place(descendants["B2"])
    with damaged(Damage(path, "missing", None)):
        assert load(stored.directory, stored.names[4]) == rows[4] != stored.rows[3]
        past = past_version(open_store(stored.directory), CheckpointName(3, name.id and abandoned), abandoned)
        assert past.metadata.attempt_id == abandoned


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), TimeoutError("slow"), OSError(5, "I/O")])
@pytest.mark.parametrize("failing", ["B6", "R"])
def test_heal_raises_failures_of_storage(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, error: OSError, failing: str
) -> None:
    """They do not show that a stream is damaged, neither one of the version nor a substitute."""
    places = {name: stored.place(entry)[0] for name, entry in stored.streams().items()}
    store, name = open_store(stored.directory), stored.names[8]
    metadata = store.load(name)
    opened = LocalFileSystem.open_input

    def failing_open(self: LocalFileSystem, path: str) -> object:
        if path == str(places[failing]):
            raise error
        return opened(self, path)

    monkeypatch.setattr(LocalFileSystem, "open_input", failing_open)
    broken = {"B6": "R", "R": "B6"}[failing]
    with damaged(Damage(places[broken], "missing", None)), pytest.raises(CheckpointIOError):
        heal(store, name, metadata, damaged_streams(store, name, metadata))


def test_heal_reads_nothing_else_if_no_stream_is_damaged(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, name = open_store(stored.directory), stored.names[9]
    metadata = store.load(name)
    monkeypatch.setattr(store, "described", None)

    def failing(_: object) -> None:
        raise CorruptCheckpointError("of another cause")

    with pytest.raises(CorruptCheckpointError, match="of another cause"):
        read_healed(store, name, metadata, failing)


def test_streams_are_read_only_while_the_client_is_connected(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was killed does not have a large state read to its end, which takes a permit of another."""
    store, name = open_store(stored.directory), stored.names[6]
    metadata = store.load(name)
    opened = LocalFileSystem.open_input
    paths: list[str] = []

    def recording_open(self: LocalFileSystem, path: str) -> object:
        paths.append(path)
        return opened(self, path)

    monkeypatch.setattr(LocalFileSystem, "open_input", recording_open)
    base, run, _ = (stored.place(stored.streams()[stream])[0] for stream in ("B2", "R", "6"))
    with damaged(Damage(base, "missing", None)):
        before = enter(RequestContext(60.0, is_connected=lambda: len(paths) < 2))
        try:
            with pytest.raises(ConnectionAbortedError):
                heal(store, name, metadata, damaged_streams(store, name, metadata))
        finally:
            enter(before)
    assert paths == [str(base), str(run)]


def test_readable_metadata_leaves_only_its_state_unverified(stored: Stored) -> None:
    store, name = open_store(stored.directory), stored.names[5]
    path, start, size = stored.place(stored.streams()["5"])
    data = path.read_bytes()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        path.write_bytes(changed)
        if start <= at < start + size:
            assert readable_metadata(store, name).handle == stored.handles[5]
            with pytest.raises(CorruptCheckpointError):
                readable_metadata(store, name, "0" * 16)
        else:
            with pytest.raises(CorruptCheckpointError):
                readable_metadata(store, name)


def test_steps_of_a_chain_lead_to_its_version(stored: Stored) -> None:
    (run,) = [entry for entry in stored.handles[6] if entry.since is not None]
    delta = next(entry for entry in stored.handles[9] if entry.version == 9)
    chains = [
        IncrementalStateHandle(2, 1, []),
        IncrementalStateHandle(9, 1, [run]),
        IncrementalStateHandle(11, 0, [run, delta]),
    ]
    for chain in (*stored.handles.values(), *chains):
        assert smallest_chain(steps_of(chain), chain.version) == chain
        assert smallest_chain(steps_of(chain), chain.version + 1) is None


def test_changes_of_a_full_snapshot_are_computed_from_other_streams(stored: Stored) -> None:
    path, *_ = stored.place(stored.streams()["B6"])
    store, name = open_store(stored.directory), stored.names[10]
    with damaged(Damage(path, "missing", None)):
        ((_, batch),) = changes(store, past_version(store, name), ["default"])
    assert sorted(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == [
        (PUT, b"a", b"10"),
        (DELETE, b"gone", None),
    ]
