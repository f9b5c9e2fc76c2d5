"""Shared state and retention against a model, with real files.

Run `SharedStateRegistryMachine` with Hypothesis, or a subclass of it that overrides `open_files`::

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(SharedStateRegistryMachine)
"""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.location import FsCompletedCheckpointStorageLocation
from spark_statestore.checkpoint.completed.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    JobStatus,
    SavepointFormatType,
)
from spark_statestore.checkpoint.completed.store import StandaloneCompletedCheckpointStore
from spark_statestore.checkpoint.files import FileSystem, LocalFileSystem, join
from spark_statestore.checkpoint.registry import RestoreMode, SharedStateRegistry
from spark_statestore.errors import IllegalStateError
from spark_statestore.state.handles import (
    ChainEntry,
    FileStateHandle,
    IncrementalStateHandle,
    OperatorStreamStateHandle,
    PlaceholderStreamStateHandle,
    RelativeFileStateHandle,
    StreamStateHandle,
)
from spark_statestore.state.objects import CompositeStateHandle, StateObject, discard_all
from spark_statestore.state.operator_state import OperatorState

__all__ = ["SharedStateRegistryMachine"]

_KEYS = ("a", "b")

_SAVEPOINTS = {
    "savepoint": CheckpointProperties.for_savepoint(savepoint_format=SavepointFormatType.NATIVE),
    "stop": CheckpointProperties.for_sync_savepoint(savepoint_format=SavepointFormatType.NATIVE),
}


class _KeyedState(CompositeStateHandle):
    """Streams under keys that the task chooses, so that one key can have several files in turn."""

    def __init__(self, streams: dict[str, StreamStateHandle]) -> None:
        self.streams = streams
        self.shared = False

    def register_shared_states(self, registry: SharedStateRegistry, checkpoint_id: int) -> None:
        self.shared = True
        for key, stream in self.streams.items():
            self.streams[key] = registry.register_reference(key, stream, checkpoint_id)

    @property
    def checkpointed_size(self) -> int:
        return self.state_size

    @property
    def state_size(self) -> int:
        return sum(stream.state_size for stream in self.streams.values())

    def discard_state(self) -> None:
        if not self.shared:
            discard_all(self.streams.values())


@dataclass(eq=False)
class _Attempt:
    """A checkpoint in the making, and what it is made of."""

    number: int
    states: dict[int, StateObject]
    metadata: FileStateHandle | None = None

    def paths(self) -> set[str]:
        """The files it needs."""
        found = set() if self.metadata is None else {self.metadata.path}
        for state in self.states.values():
            found |= set(_paths(state))
        return found


@dataclass
class _Key:
    """What the registry must know of a key."""

    path: str
    users: set[int] = field(default_factory=set)
    confirmed: bool = False


def _paths(state: StateObject) -> Iterable[str]:
    match state:
        case FileStateHandle():
            yield state.path
        case _KeyedState():
            for stream in state.streams.values():
                yield from _paths(stream)
        case IncrementalStateHandle():
            for entry in state:
                yield from _paths(entry.state.delegate_state_handle)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


class SharedStateRegistryMachine(RuleBasedStateMachine):
    """A job that takes checkpoints and savepoints, fails, and starts again from one of them.

    A file that a retained checkpoint, a checkpoint in the making, a savepoint or a snapshot that
    was not claimed needs is there at every moment; and in the end, when newer checkpoints have
    taken their place and files can be deleted, nothing else is.
    """

    def open_files(self, directory: str) -> FileSystem:
        """The file system to run on; override it to try another one.

        Parameters
        ----------
        directory
            An empty local directory, which is removed afterwards.
        """
        return LocalFileSystem()

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.mkdtemp()
        self.files = _refusing(self.open_files(self.scratch), lambda: self.refuses)
        self.refuses = False
        self.root = join(self.scratch, "job")
        self.last_number = 0
        self.written = 0
        self.policy = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
        self.most = 1
        self.queue: list[Callable[[], None]] | None = None
        self.registry: SharedStateRegistry
        self.store: StandaloneCompletedCheckpointStore
        self.pending: list[_Attempt] = []
        self.made: dict[CompletedCheckpoint, _Attempt] = {}
        # What the job does not own: it must stay whatever happens.
        self.kept: set[str] = set()
        # What nobody owns any more, as after a crash: it may stay.
        self.orphans: set[str] = set()
        self.keys: dict[str, _Key] = {}

    @initialize(
        most=st.integers(1, 3), policy=st.sampled_from(CheckpointRetentionPolicy), later=st.booleans()
    )
    def start(self, most: int, policy: CheckpointRetentionPolicy, later: bool) -> None:
        """Begin with an empty job."""
        self.most, self.policy = most, policy
        self.queue = [] if later else None
        self.begin_job()

    def begin_job(self) -> None:
        """Begin with an empty registry and store."""
        execute = self.queue.append if self.queue is not None else None
        self.registry = SharedStateRegistry(execute)
        self.store = StandaloneCompletedCheckpointStore(self.most, self.registry, executor=execute)
        self.keys = {}

    # Checkpoints

    @precondition(lambda self: len(self.pending) < 2)
    @rule(data=st.data())
    def begin_checkpoint(self, data: st.DataObject) -> None:
        """A task reports its state: new files, files it sent before, or files it wrote twice."""
        self.last_number += 1
        number = self.last_number
        streams: dict[str, StreamStateHandle] = {}
        for key in data.draw(st.sets(st.sampled_from(_KEYS))):
            streams[key] = self.stream_for(data, key)
        known = self.reusable()
        used = data.draw(st.sets(st.sampled_from(known))) if known else set()
        entries = [self.again(data, path) for path in sorted(used)]
        entries += [self.write(f"shared/{number}") for _ in range(data.draw(st.integers(0, 1)))]
        keyed = _KeyedState(streams)
        states: dict[int, StateObject] = {
            0: keyed,
            1: _chain(number, entries),
            2: self.write(f"chk-{number}/state"),
        }
        sent = {key: stream for key, stream in streams.items() if isinstance(stream, FileStateHandle)}
        self.registry.register_all(states.values(), number)
        self.check_registered(number, keyed, sent)
        self.pending.append(_Attempt(number, states))

    def stream_for(self, data: st.DataObject, key: str) -> StreamStateHandle:
        """The stream of a key: a new file, or the known one in one of several forms."""
        known = self.keys.get(key)
        if known is None:
            return self.write(f"shared/{key}")
        kinds = ["placeholder", "same"]
        if known.confirmed or not any(known.path in attempt.paths() for attempt in self.pending):
            # A failover aborts what was pending before the task writes a file again.
            kinds.append("written again")
        kind = data.draw(st.sampled_from(kinds))
        if kind == "placeholder":
            return PlaceholderStreamStateHandle(key)
        return self.write(f"shared/{key}") if kind == "written again" else self.again(data, known.path)

    def check_registered(self, number: int, state: _KeyedState, sent: dict[str, FileStateHandle]) -> None:
        """Each key must have the file that the rules give it."""
        for key, stream in state.streams.items():
            known = self.keys.get(key)
            replaces = known is not None and key in sent and sent[key].path != known.path
            if known is None or (replaces and not known.confirmed):
                known = self.keys[key] = _Key(sent[key].path)
            known.users.add(number)
            _require(list(_paths(stream)) == [known.path], f"{key} has {stream}, not {known.path}")

    @rule()
    def refer_to_an_unknown_stream(self) -> None:
        """A placeholder for a stream that nobody has is an error."""
        try:
            self.registry.register_reference("none", PlaceholderStreamStateHandle("none"), self.last_number)
        except IllegalStateError:
            return
        raise AssertionError("a placeholder for an unknown stream was accepted")

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def complete_checkpoint(self, data: st.DataObject) -> None:
        """A checkpoint is complete; older ones that are still pending are given up."""
        attempt = data.draw(st.sampled_from(self.pending))
        self.complete(attempt, CheckpointProperties.for_checkpoint(self.policy))
        for key in self.keys.values():
            key.confirmed |= attempt.number in key.users
        for older in [other for other in self.pending if other.number < attempt.number]:
            self.abort(older)

    def complete(self, attempt: _Attempt, properties: CheckpointProperties) -> None:
        """Publish a checkpoint and add it to the store."""
        attempt.metadata = self.write(f"chk-{attempt.number}/_metadata")
        checkpoint = self.describe(attempt, properties)
        self.made[checkpoint] = attempt
        if attempt in self.pending:
            self.pending.remove(attempt)
        self.store.add_checkpoint_and_subsume_oldest_one(checkpoint)
        self.forget_unused_keys()

    def describe(
        self,
        attempt: _Attempt,
        properties: CheckpointProperties,
        restored: CheckpointProperties | None = None,
    ) -> CompletedCheckpoint:
        """A checkpoint of these states."""
        if attempt.metadata is None:
            raise AssertionError("it has no metadata")
        directory = join(self.root, f"chk-{attempt.number}")
        location = FsCompletedCheckpointStorageLocation(
            self.files, directory, attempt.metadata, self.files.url(directory)
        )
        state = OperatorState("operator", 3, 3, attempt.states)
        return CompletedCheckpoint(attempt.number, 0, 0, {"operator": state}, properties, location, restored)

    def forget_unused_keys(self) -> None:
        """The registry forgets what no checkpoint from the oldest retained one on uses."""
        # It does so when the queue runs: until then the model could be wrong about a key.
        self.drain()
        retained = self.store.all_checkpoints
        if retained[-1].properties.is_synchronous or not all(old.properties.is_savepoint for old in retained):
            lowest = min(old.checkpoint_id for old in retained)
            self.keys = {name: key for name, key in self.keys.items() if max(key.users) >= lowest}

    @rule(kind=st.sampled_from(sorted(_SAVEPOINTS)), size=st.integers(0, 2))
    def take_savepoint(self, kind: str, size: int) -> None:
        """A savepoint has files of its own, which are the user's from then on."""
        self.last_number += 1
        number = self.last_number
        own = [self.write(f"chk-{number}/own") for _ in range(size)]
        attempt = _Attempt(number, {1: _chain(number, own)})
        if kind == "stop":
            for pending in list(self.pending):
                self.abort(pending)
        self.complete(attempt, _SAVEPOINTS[kind])
        self.kept |= attempt.paths()

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def abort_checkpoint(self, data: st.DataObject) -> None:
        """A checkpoint is given up: its own state is discarded, shared state is the registry's."""
        self.abort(data.draw(st.sampled_from(self.pending)))

    def abort(self, attempt: _Attempt) -> None:
        """Give up a checkpoint."""
        self.pending.remove(attempt)
        try:
            discard_all(attempt.states.values())
        except OSError:
            self.orphans |= set(_paths(attempt.states[2]))

    # Failures

    @rule()
    def refuse_deletions(self) -> None:
        """From now on nothing can be deleted."""
        self.refuses = True

    @rule()
    def allow_deletions(self) -> None:
        """From now on files can be deleted again."""
        self.refuses = False

    @precondition(lambda self: self.queue)
    @rule(most=st.integers(1, 5))
    def run_later(self, most: int) -> None:
        """Run some of the deletions that wait."""
        for _ in range(most):
            if self.queue:
                self.queue.pop(0)()

    def drain(self) -> None:
        """Run all that waits, and what it leads to."""
        while self.queue:
            self.run_later(1)

    @precondition(lambda self: self.store.all_checkpoints)
    @rule(data=st.data(), mode=st.sampled_from(RestoreMode), status=st.sampled_from([None, *JobStatus]))
    def restart(self, data: st.DataObject, mode: RestoreMode, status: JobStatus | None) -> None:
        """The job crashes or ends, and another one starts from one of its checkpoints."""
        retained = self.store.all_checkpoints
        for attempt in list(self.pending):
            self.abort(attempt)
        if status is not None:
            self.store.shutdown(status)
            retained = [old for old in retained if not old.should_be_discarded_on_shutdown(status)]
        self.drain()
        if status is not None and not self.refuses:
            self.check_exactly({path for old in retained for path in self.made[old].paths()})
        # Nobody owns what the old job left, except for the one that the new job starts from.
        self.orphans |= self.present() - self.kept
        self.begin_job()
        if not retained:
            self.made = {}
            return
        old = data.draw(st.sampled_from(retained))
        attempt = self.made[old]
        attempt = _Attempt(attempt.number, _fresh(attempt.states), attempt.metadata)
        paths = attempt.paths()
        properties = {
            RestoreMode.CLAIM: CheckpointProperties.for_checkpoint(self.policy),
            RestoreMode.NO_CLAIM: CheckpointProperties.for_unclaimed_snapshot(),
            RestoreMode.LEGACY: CheckpointProperties.for_savepoint(),
        }[mode]
        restored = self.describe(attempt, properties, old.restored_properties or old.properties)
        if mode is not RestoreMode.CLAIM:
            self.kept |= paths
        elif self.kept & paths - self.savepoint_paths(old):
            # Other snapshots that are not this job's need its files: claiming it would be a mistake.
            self.made = {}
            return
        else:
            self.kept -= paths
            self.orphans -= paths
        self.made = {restored: attempt}
        restored.register_shared_states_after_restored(self.registry, mode)
        keyed = attempt.states.get(0)
        if isinstance(keyed, _KeyedState):
            streams = [(key, path) for key, stream in keyed.streams.items() for path in _paths(stream)]
            self.keys = {key: _Key(path, {attempt.number}, True) for key, path in streams}
        self.store.add_checkpoint_and_subsume_oldest_one(restored)

    def savepoint_paths(self, checkpoint: CompletedCheckpoint) -> set[str]:
        """The files of a savepoint, which nobody else needs."""
        if checkpoint.sharing_files_strategy.shares_files or checkpoint.restored_properties is not None:
            return set()
        return self.made[checkpoint].paths()

    # What must hold

    @invariant()
    def what_is_needed_is_there(self) -> None:
        """Nothing that is needed was deleted."""
        if not hasattr(self, "store"):
            return
        needed = set(self.kept)
        for checkpoint in self.store.all_checkpoints:
            needed |= self.made[checkpoint].paths()
        for attempt in self.pending:
            needed |= attempt.paths()
        missing = needed - self.present()
        _require(not missing, f"deleted, but needed: {sorted(missing)}")

    @rule()
    def check_nothing_else_stays(self) -> None:
        """In the end, when new checkpoints have taken over, nothing else is there."""
        for attempt in list(self.pending):
            self.abort(attempt)
        self.refuses = False
        for _ in range(self.most):
            self.last_number += 1
            attempt = _Attempt(self.last_number, {})
            self.complete(attempt, CheckpointProperties.for_checkpoint(self.policy))
        self.store.clean_up()
        self.drain()
        self.check_exactly({path for old in self.store.all_checkpoints for path in self.made[old].paths()})

    def check_exactly(self, needed: set[str]) -> None:
        """Nothing may be there but what is needed, is not the job's, or was left by an earlier one."""
        left = self.present() - needed - self.kept - self.orphans
        _require(not left, f"needed by nobody, but there: {sorted(left)}")

    def teardown(self) -> None:
        """Check for the last time, and remove the directory."""
        try:
            if hasattr(self, "store"):
                self.check_nothing_else_stays()
                self.what_is_needed_is_there()
        finally:
            shutil.rmtree(self.scratch)

    # Files

    def write(self, name: str) -> FileStateHandle:
        """A new file."""
        self.written += 1
        path = join(self.root, name if name.endswith("_metadata") else f"{name}-{self.written}")
        self.files.make_directory(path.rpartition("/")[0])
        self.files.create(path, b"state")
        return FileStateHandle(self.files, path, 5)

    def again(self, data: st.DataObject, path: str) -> FileStateHandle:
        """Another handle to a file: absolute, or relative to its directory."""
        directory, _, name = path.rpartition("/")
        if data.draw(st.booleans()):
            return RelativeFileStateHandle(self.files, directory, name, 5)
        return FileStateHandle(self.files, path, 5)

    def reusable(self) -> list[str]:
        """The shared files of the newest checkpoint, which a task may send again in full."""
        latest = self.store.latest_checkpoint
        if latest is None or not latest.sharing_files_strategy.shares_files:
            return []
        states = self.made[latest].states
        return sorted({path for number in (0, 1) if number in states for path in _paths(states[number])})

    def present(self) -> set[str]:
        """Every file that is there."""
        return {status.path for status in self.files.list_files(self.root)}


def _chain(number: int, streams: Iterable[StreamStateHandle]) -> IncrementalStateHandle:
    entries = [
        ChainEntry(
            number,
            False,
            OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=stream),
        )
        for stream in streams
    ]
    return IncrementalStateHandle(number, number, entries)


def _fresh(states: dict[int, StateObject]) -> dict[int, StateObject]:
    """The states as another process reads them."""
    fresh: dict[int, StateObject] = {}
    for number, state in states.items():
        match state:
            case _KeyedState():
                fresh[number] = _KeyedState(dict(state.streams))
            case IncrementalStateHandle():
                fresh[number] = IncrementalStateHandle(state.version, state.base_version, state.entries)
            case _:
                fresh[number] = state
    return fresh


def _refusing(files: FileSystem, refuses: Callable[[], bool]) -> FileSystem:
    """The file system, which deletes nothing while it refuses to."""

    def unless_refused(delete: Callable[..., None]) -> Callable[..., None]:
        def attempt(path: str, **how: bool) -> None:
            if refuses():
                raise PermissionError(f"{path} cannot be deleted now")
            delete(path, **how)

        return attempt

    # Others may use the same object.
    files = copy.copy(files)
    for name in ("delete", "delete_directory"):
        setattr(files, name, unless_refused(getattr(files, name)))
    return files
