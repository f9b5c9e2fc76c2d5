"""A state machine that compares the versions of a store with plain dicts, across several instances."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.files import FileSystem, open_file_system, parent_of
from spark_statestore.options import StorageOptions
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.handle_codec import decode_handle, encode_handle
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.store.commit import Committed, PendingSnapshot, begin_checkpoint, begin_snapshot
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.holds import announce_holds, holds_directory_of
from spark_statestore.store.metadata import StoreId, decode_metadata
from spark_statestore.testing.stores import load, message, named

T = TypeVar("T")

_FAMILIES = ("default", "timers")

_Content = dict[str, dict[bytes, bytes]]

_keys = st.sampled_from([b"a", b"b", b"c"])
# The large ones go to files of their own.
_values = st.one_of(st.binary(max_size=4), st.integers(0, 255).map(lambda n: bytes([n]) * 600))
_changes = st.fixed_dictionaries({state: st.dictionaries(_keys, _values, max_size=2) for state in _FAMILIES})
_removals = st.fixed_dictionaries({state: st.sets(_keys, max_size=1) for state in _FAMILIES})


@dataclass(repr=False)
class _CommittedVersion:
    """A version that an instance has loaded or committed."""

    name: CheckpointName
    attempt_id: str
    rows: _Content
    handle: IncrementalStateHandle | None


@dataclass(repr=False)
class _Instance:
    """One instance of the store, as the provider of one executor holds it."""

    store: StoreDirectory
    versions: dict[int, _CommittedVersion] = field(default_factory=dict)
    committed: _CommittedVersion | None = None
    base: IncrementalStateHandle | None = None
    # An instance of an earlier run of the query: it commits no more, but its maintenance still runs.
    outdated: bool = False


def _copy(rows: _Content) -> _Content:
    return {state: dict(content) for state, content in rows.items()}


class VersionStoreMachine(RuleBasedStateMachine):
    """A state machine of the driver: it commits versions in order, with repeated attempts and rollbacks.

    Any instance may have made an attempt that the driver does not commit. In format v1 the last attempt at a
    version counts, while an instance that made an earlier one continues from its own.

    Pass a subclass to `hypothesis.stateful.run_state_machine_as_test` to run it against your own storage:
    override `make_directory` for its location, and the attributes for its configuration.

    Attributes
    ----------
    options
        Options of the store.
    with_ids
        Whether versions have ids (Spark's checkpoint format v2) or numbers alone (v1).
    store
        The store.
    merges
        Whether some commits are in merged files.
    hands_over
        Whether each instance is in a process of its own, of an executor: the driver publishes what it merges.
    """

    with_ids = False
    options = StorageOptions(file_state_threshold=512, compression=None)
    store = StoreId(0, 3)
    merges = False
    hands_over = False

    def make_directory(self) -> str:
        """Return the URL of a new directory for one run; by default a local one.

        It ends in the store's operator and partition, as in a query's state directory.
        """
        self._scratch = tempfile.TemporaryDirectory()
        return f"{self._scratch.name}/{self.store.operator}/{self.store.partition}"

    def remove_directory(self) -> None:
        """Remove the directory after the run."""
        self._scratch.cleanup()

    def perform(self, operation: Callable[[], T]) -> T | None:
        """Perform an operation that may be interrupted.

        Returns
        -------
        object or None
            The result of the operation, never None; None if it was interrupted.
        """
        return operation()

    def __init__(self) -> None:
        super().__init__()
        self.url = self.make_directory()
        self.merged: dict[str, MergedFiles] = {}
        _, self.directory = open_file_system(self.url, fsync=self.options.fsync)
        self.instances: list[_Instance] = []
        self.attempts = 0
        # State of the driver: its version, the names of the versions before it, and the
        # attempts at the next one that it may still accept.
        self.version = 0
        self.timeline: dict[int, CheckpointName] = {}
        self.pending: list[CheckpointName] = []
        # Expected content of storage: rows and attempt of each name.
        self.stored: dict[CheckpointName, tuple[_Content, str]] = {}
        # Held versions with their content when the hold was made.
        self.held_versions: dict[int, tuple[CheckpointName, _Content, str]] = {}
        self.highest = 0
        self.horizon = 0
        self.retained = 1

    @initialize(retained=st.integers(1, 3))
    def start(self, retained: int) -> None:
        self.retained = retained
        self.instances = [self.new_executor()]

    def new_instance(self) -> _Instance:
        merged_of = self.merged_of if self.merges else None
        return _Instance(StoreDirectory(self.store, self.url, self.options, merged_of=merged_of))

    def new_executor(self) -> _Instance:
        if not self.hands_over:
            return self.new_instance()
        instance = _Instance(StoreDirectory(self.store, self.url, self.options, merged_of=MergedFiles))
        assert instance.store.merged is not None
        instance.store.merged.reports_discards = True
        return instance

    def merged_of(self, files: FileSystem, state_directory: str) -> MergedFiles:
        """Return the merged files that the instances of a run share."""
        return self.merged.setdefault(state_directory, MergedFiles(files, state_directory))

    @property
    def takes_bases(self) -> bool:
        return self.options.storage == "filesystem"

    def draw(self, data: st.DataObject, instances: list[_Instance]) -> _Instance:
        return data.draw(st.sampled_from(instances))

    @property
    def current(self) -> list[_Instance]:
        return [instance for instance in self.instances if not instance.outdated]

    # Opening

    def open(self, instance: _Instance) -> _CommittedVersion:
        committed = instance.versions.get(self.version)
        if self.version == 0:
            committed = _CommittedVersion(CheckpointName(0), "", {state: {} for state in _FAMILIES}, None)
            instance.versions = {0: committed}
        elif committed is not None and committed.name == self.timeline[self.version]:
            instance.versions = {v: m for v, m in instance.versions.items() if v <= self.version}
            if instance.base is not None and instance.base.version > self.version:
                instance.base = None
        else:
            name = self.timeline[self.version]
            metadata = instance.store.load(name)
            rows, attempt_id = self.stored[name]
            assert metadata.attempt_id == attempt_id
            committed = _CommittedVersion(name, attempt_id, rows, metadata.handle)
            instance.versions, instance.base = {self.version: committed}, None
        instance.committed = committed
        return committed

    # Committing

    @rule(
        data=st.data(),
        put=_changes,
        removed=_removals,
        full=st.integers(0, 5).map(lambda n: n == 0),
        accept=st.integers(0, 3).map(lambda n: n != 0),
        answer_lost=st.integers(0, 7).map(lambda n: n == 0),
    )
    def commit(
        self, data: st.DataObject, put: _Content, removed: dict[str, set[bytes]], full: bool, accept: bool,
        answer_lost: bool,
    ) -> None:  # fmt: skip
        instance = self.draw(data, self.current)
        parent = self.open(instance)
        rows = _copy(parent.rows)
        for state in _FAMILIES:
            removed[state] = {key for key in removed[state] if rows[state].pop(key, None) is not None}
            rows[state] |= put[state]
            removed[state] -= put[state].keys()
        self.attempts += 1
        attempt_id = f"{self.attempts:016x}"
        name = CheckpointName(self.version + 1, attempt_id if self.with_ids else None)
        handle = None if full else parent.handle
        base = instance.base if handle else None

        merge = self.merges and data.draw(st.booleans())

        def publish() -> Committed:
            pending = begin_checkpoint(
                instance.store, name, attempt_id, named(*_FAMILIES), merge=merge, hand_over=self.hands_over
            )
            if handle is None:
                self.write(pending, rows, {state: set() for state in _FAMILIES})
            else:
                self.write(pending, put, removed)
            result = pending.publish(handle, parent.attempt_id or None, base)
            if result.metadata is not None and self.hands_over:
                driver = self.new_instance().store
                path = f"{self.store.operator}/{self.store.partition}/{name.directory}/{METADATA_FILE_NAME}"
                assert driver.publish_merged([attempt_id], [(path, result.metadata)])[0] == []
                driver.sweep_merged()
            elif merge and not self.hands_over:
                assert instance.store.publish_merged([attempt_id])[0] == []
                instance.store.sweep_merged()
            return result

        result = self.perform(publish)
        if result is not None and answer_lost:
            result = self.perform(publish)
        if result is None:
            self.look_at(name, rows, attempt_id)
            return
        context = instance.store.context
        travelled = decode_handle(encode_handle(result.handle, context), context)
        assert isinstance(travelled, IncrementalStateHandle)
        instance.versions[self.version + 1] = _CommittedVersion(name, attempt_id, rows, travelled)
        instance.base = None
        self.stored[name] = (rows, attempt_id)
        self.pending = [*self.pending, name] if self.with_ids else [name]
        if accept:
            self.accept_as(name)

    def look_at(self, name: CheckpointName, rows: _Content, attempt_id: str) -> None:
        """Check that an interrupted commit took effect as a whole or not at all."""
        fresh = self.new_instance().store
        try:
            loaded_id = fresh.load(name).attempt_id
        except CheckpointNotFoundError:
            assert name not in self.stored, f"{name} is gone"
        else:
            candidates = [(rows, attempt_id), *([self.stored[name]] if name in self.stored else [])]
            (self.stored[name],) = [candidate for candidate in candidates if candidate[1] == loaded_id]
            assert load(fresh, name) == self.stored[name][0], name
        # The batch has failed, and with it the attempts that go by the same name.
        self.pending = [pending_name for pending_name in self.pending if pending_name != name]

    def write(self, pending: PendingSnapshot, put: _Content, removed: dict[str, set[bytes]]) -> None:
        for number, state in enumerate(_FAMILIES):
            if put[state] or removed[state]:
                pending.write(number, message(put[state], sorted(removed[state])))

    def accept_as(self, name: CheckpointName) -> None:
        self.version = name.version
        self.timeline[name.version] = name
        self.pending = []
        self.highest = max(self.highest, self.version)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        self.accept_as(data.draw(st.sampled_from(self.pending)))

    @rule(data=st.data(), put=_changes)
    def abandon(self, data: st.DataObject, put: _Content) -> None:
        instance = self.draw(data, self.current)
        self.open(instance)
        self.attempts += 1
        attempt_id = f"{self.attempts:016x}"
        name = CheckpointName(self.version + 1, attempt_id if self.with_ids else None)
        pending = begin_checkpoint(instance.store, name, attempt_id, named(*_FAMILIES))
        self.write(pending, put, {state: set() for state in _FAMILIES})
        pending.abandon()

    # Snapshots ahead of a commit

    @precondition(lambda self: self.takes_bases and any(max(i.versions, default=0) > 0 for i in self.current))
    @rule(
        data=st.data(),
        abandon=st.integers(0, 5).map(lambda n: n == 0),
        merge=st.integers(0, 3).map(lambda n: n != 0),
    )
    def upload_snapshot(self, data: st.DataObject, abandon: bool, merge: bool) -> None:
        """Upload a full snapshot, or a run of several streams of a version."""
        instance = self.draw(data, [i for i in self.current if max(i.versions, default=0) > 0])
        version = data.draw(st.sampled_from([v for v in sorted(instance.versions) if v > 0]))
        rows, handle = instance.versions[version].rows, instance.versions[version].handle
        assert handle is not None
        ends = {handle.base_version, *(entry.version for entry in handle)}
        starts = sorted(v for v in ends if v < version and v in instance.versions)
        since = data.draw(st.sampled_from(starts)) if merge and starts else None
        removed: dict[str, set[bytes]] = {state: set() for state in _FAMILIES}
        if since is not None:
            old = instance.versions[since].rows
            removed = {state: old[state].keys() - rows[state].keys() for state in _FAMILIES}
            rows = {state: dict(rows[state].items() - old[state].items()) for state in _FAMILIES}

        def write() -> PendingSnapshot:
            pending = begin_snapshot(instance.store, version, named(*_FAMILIES), since)
            self.write(pending, rows, removed)
            if abandon:
                pending.abandon()
            else:
                instance.base = pending.finish()
            return pending

        self.perform(write)

    # Retention

    @precondition(lambda self: any(self.may_clean(i) for i in self.instances))
    @rule(data=st.data(), most=st.sampled_from([0, 0, 1, 2]))
    def cleanup(self, data: st.DataObject, most: int) -> None:
        instance = self.draw(data, [i for i in self.instances if self.may_clean(i)])
        committed = instance.committed
        assert committed is not None
        before = self.files()
        retain_from = committed.name.version - self.retained
        removed = self.perform(
            lambda: discard_versions(instance.store, committed.name, committed.attempt_id, retain_from, most)
        )
        self.report_discards(instance)
        if removed is None:
            self.horizon = max(self.horizon, retain_from)
        elif self.stored[committed.name][1] != committed.attempt_id:
            assert removed == 0
            assert self.files() == before
        else:
            self.horizon = max(self.horizon, retain_from)
        self.check_promised()

    def report_discards(self, instance: _Instance) -> None:
        merged = instance.store.merged
        if self.hands_over and merged is not None and not instance.outdated:
            driver = self.new_instance().store.merged
            assert driver is not None
            driver.discard_reported(merged.take_discarded())

    def may_clean(self, instance: _Instance) -> bool:
        # The provider waits while a snapshot of its own is on its way.
        return (
            instance.committed is not None
            and instance.base is None
            and instance.committed.name.version > self.retained
        )

    @precondition(lambda self: self.version > self.retained)
    @rule()
    def full_cleanup(self) -> None:
        instance = self.new_instance()
        committed = self.open(instance)
        self.horizon = max(self.horizon, self.version - self.retained)
        discard_versions(instance.store, committed.name, committed.attempt_id, self.horizon, 0)
        self.check_promised()
        extra = self.files() - self.needed(instance.store)
        assert not extra, extra
        # Another one finds nothing more to do.
        second = self.new_instance()
        self.open(second)
        assert discard_versions(second.store, committed.name, committed.attempt_id, self.horizon, 0) == 0

    @precondition(lambda self: len(self.held_versions) < 2 and any(v >= self.horizon for v in self.timeline))
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """Hold a version, as another process does, that no cleanup has passed."""
        version = data.draw(st.sampled_from([v for v in self.timeline if v >= self.horizon]))
        name = self.timeline[version]
        self.held_versions.setdefault(version, (name, *self.stored[name]))
        files, path = self.hold_of(version)
        announce_holds(files, path.rpartition("/")[0])
        files.replace(path, b"")

    @precondition(lambda self: self.held_versions)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.held_versions)))
        del self.held_versions[version]
        files, path = self.hold_of(version)
        files.delete(path)
        files.sync_directory(parent_of(path))

    def hold_of(self, version: int) -> tuple[FileSystem, str]:
        directory = holds_directory_of(self.directory, self.store)
        assert directory is not None, "the store must be in a query's state directory"
        return self.instances[0].store.files, f"{directory}/{version}-hold"

    def files(self) -> set[str]:
        # An instance of an ended run sees the merged files of that run.
        files = self.new_instance().store.files
        start = f"{self.directory}/"
        paths = {status.path.removeprefix(start) for status in files.list_files(self.directory)}
        # It keeps the directory on object stores.
        return paths - {"shared/kept"}

    def needed(self, store: StoreDirectory) -> set[str]:
        """Return the files of held versions and of those from the horizon on, including unused snapshots."""
        names = self.files()
        needed: set[str] = set()
        versions_in_use: set[int] = set()
        for name in names:
            top, _, file = name.partition("/")
            version = (
                int(top[4:].partition("_")[0]) if top.startswith("chk-") else int(file.partition("-")[0])
            )
            if version < self.horizon and version not in self.held_versions:
                continue
            needed.add(name)
            if not file.startswith(METADATA_FILE_NAME):
                continue
            metadata = decode_metadata(store.files.read(f"{self.directory}/{name}"), store.context, name)
            for entry in metadata.handle:
                stream = entry.state.delegate_state_handle
                if isinstance(stream, SegmentFileStateHandle):
                    versions_in_use.add(entry.version)
                else:
                    assert isinstance(stream, FileStateHandle)
                    needed.add(stream.path.removeprefix(f"{self.directory}/"))
        # All attempts at a version whose changes are still used stay together.
        return needed | {
            name
            for name in names
            if name.startswith("chk-") and int(name[4:].split("/")[0].split("_")[0]) in versions_in_use
        }

    # Instances come and go

    @precondition(lambda self: len(self.instances) < 4)
    @rule()
    def move_to_another_executor(self) -> None:
        self.instances.append(self.new_executor())

    @precondition(lambda self: len(self.current) > 1)
    @rule(data=st.data())
    def lose_executor(self, data: st.DataObject) -> None:
        self.instances.remove(self.draw(data, self.current))

    @precondition(lambda self: self.version > 0)
    @rule(data=st.data(), linger=st.booleans())
    def restart_the_query(self, data: st.DataObject, linger: bool) -> None:
        lowest = max(self.highest - self.retained, self.horizon, 0)
        versions = [v for v in [0, *self.timeline] if lowest <= v <= self.version]
        if not versions:
            return
        self.version = data.draw(st.sampled_from(sorted(versions, reverse=True)))
        self.timeline = {v: name for v, name in self.timeline.items() if v <= self.version}
        self.pending = []
        for instance in self.instances:
            instance.outdated = True
        self.merged = {}
        self.instances = [self.new_executor(), *(self.instances[:2] if linger else [])]

    # Checks

    @rule()
    def check_promised(self) -> None:
        """Check that every version that the driver may request has its rows."""
        fresh = self.new_instance().store
        for version, name in self.timeline.items():
            if version >= self.horizon:
                assert load(fresh, name) == self.stored[name][0], name
        for name in self.pending:
            assert load(fresh, name) == self.stored[name][0], name
        for name, rows, attempt_id in self.held_versions.values():
            assert load(fresh, name, attempt_id) == rows, name

    def teardown(self) -> None:
        try:
            if self.instances:
                self.check_promised()
        finally:
            self.remove_directory()
