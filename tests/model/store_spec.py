"""Specification of one store: commits, snapshots and cleanups of several executors, as interleaved steps.

Every step is one call to storage, or an action of Spark's driver. Rows are left out: a version is modelled by
the attempts that it consists of, and by the existence of their files. See INVARIANTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import follow, put

NONE = -1

# A stream: ("inside", attempt) is inside that attempt's metadata, ("file", attempt) in a separate file, and
# ("snapshot", number, version, attempt) is a full snapshot, written ahead of the commit that uses it, and
# ("run", (number, since), version, attempt) is a run of the changes since a version.
Stream = tuple
# A version by number alone, or by number and attempt.
Name = tuple


class Attempt(NamedTuple):
    """One attempt at a version, immutable once its metadata is published."""

    version: int
    parent: int
    chain: tuple[Stream, ...]


class Task(NamedTuple):
    """A commit in progress."""

    attempt_id: int
    step: str
    present: int = NONE


class Clean(NamedTuple):
    """A cleanup in progress."""

    step: str
    newest: int
    attempt_id: int
    horizon: int
    listed: frozenset[tuple[Name, int]] = frozenset()
    copies: frozenset[int] = frozenset()
    files: frozenset[Stream] = frozenset()
    # The previous index, if a load has replaced it concurrently.
    index: frozenset[int] | None = None


class Executor(NamedTuple):
    """State of the store on one executor."""

    version: int = NONE
    attempt_id: int = NONE
    # The versions that this executor knows to be committed.
    committed: tuple[int, int] = (NONE, NONE)
    snapshot: tuple[int, int, int] | None = None
    base: Stream | None = None
    # Attempts whose streams it tracks, own attempts that others may have replaced, and whether the index is
    # complete.
    index: frozenset[int] = frozenset()
    unverified: frozenset[int] = frozenset()
    complete: bool = False
    task: Task | None = None
    clean: Clean | None = None


class State(NamedTuple):
    """Storage, Spark's driver, and the executors."""

    # The metadata under each name, and the attempts kept beside it.
    metadata: frozenset[tuple[Name, int]]
    copies: frozenset[int]
    files: frozenset[Stream]
    attempts: tuple[Attempt, ...]
    finished_attempts: frozenset[int]
    # The committed attempt at each version: the driver's commit log.
    committed: tuple[int, ...]
    # The metadata under the version's name when it was committed.
    attempts_at_commit: tuple[int, ...]
    executors: tuple[Executor, ...]
    snapshots: int = 0
    rollbacks: int = 0
    cleanups: int = 0


@dataclass(frozen=True)
class StoreSpec:
    """The store's protocol, within bounds, and with injected faults."""

    # Spark's checkpoint format v2.
    with_ids: bool = False
    # Changes are inside metadata, rather than in separate files.
    inside: bool = True
    # Upper bounds on their numbers.
    versions: int = 2
    attempts: int = 3
    executors: int = 2
    snapshots: int = 0
    rollbacks: int = 0
    cleanups: int = 0
    # Versions that are kept before the newest.
    retained: int = 1
    # The versions at which several attempts are made; by default all.
    contended: frozenset[int] | None = None
    # Runs are written instead of full snapshots.
    runs: bool = False
    # Versions at which an attempt may write the whole state, instead of its changes.
    whole: frozenset[int] = frozenset()
    # Executors may be lost.
    crashes: bool = False
    # Initial steps, in this order, see `follow`.
    begin: tuple[str, ...] = ()
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        nothing: frozenset = frozenset()
        empty = State(nothing, nothing, nothing, (), nothing, (), (), (Executor(),) * self.executors)
        yield follow(self, empty, self.begin)

    def key(self, state: State) -> State:
        """Return a key that ignores the order of executors (symmetry reduction)."""
        return state._replace(executors=tuple(sorted(state.executors, key=hash)))

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        for number, executor in enumerate(state.executors):
            if executor.task is None:
                yield from self._start(state, number, executor)
            else:
                yield from self._commit(state, number, executor, executor.task)
            yield from self._snapshot(state, number, executor)
            if self.cleanups:
                yield from self._clean(state, number, executor)
            if self.crashes and executor != Executor():
                yield f"crash of {number}", _with(state, number, Executor())
        yield from self._drive(state)

    # Steps of the driver

    def _drive(self, state: State) -> Iterator[tuple[str, State]]:
        version = len(state.committed) + 1
        for attempt_id in sorted(state.finished_attempts):
            if state.attempts[attempt_id].version == version:
                after = state._replace(committed=(*state.committed, attempt_id))
                stored_id = self._served(after, version)
                yield (
                    f"accept {attempt_id} as version {version}",
                    after._replace(attempts_at_commit=(*state.attempts_at_commit, stored_id)),
                )
        if state.rollbacks < self.rollbacks and len(state.committed) > 1:
            target = len(state.committed) - 1
            # A rollback to an incomplete version is refused. A concurrent cleanup is an assumption, see
            # INVARIANTS.md.
            if not self._is_whole(state, self._served(state, target)) or any(
                e.clean for e in state.executors
            ):
                return
            # A new run of the query: no task uses the executors' state of the old run.
            yield (
                f"rollback to version {target}",
                state._replace(
                    committed=state.committed[:target],
                    attempts_at_commit=state.attempts_at_commit[:target],
                    executors=tuple(
                        executor._replace(version=NONE, attempt_id=NONE) for executor in state.executors
                    ),
                    rollbacks=state.rollbacks + 1,
                ),
            )

    # Commits

    def _start(self, state: State, number: int, executor: Executor) -> Iterator[tuple[str, State]]:
        version = len(state.committed) + 1
        if version > self.versions or len(state.attempts) >= self.attempts:
            return
        alone = self.contended is not None and version not in self.contended
        if alone and any(attempt.version == version for attempt in state.attempts):
            return
        parent = state.committed[-1] if state.committed else NONE
        if executor.version == version - 1 and (not self.with_ids or executor.attempt_id == parent):
            parent = executor.attempt_id
        else:
            parent = self._served(state, version - 1) if version > 1 else NONE
            index = frozenset() if parent == NONE else frozenset([parent])
            clean = executor.clean
            if clean is not None and clean.index is None:
                clean = clean._replace(index=executor.index)
            executor = executor._replace(
                version=version - 1,
                attempt_id=parent,
                base=None,
                index=index,
                unverified=frozenset(),
                complete=False,
                clean=clean,
            )
        attempt_id = len(state.attempts)
        own: Stream = ("inside" if self.inside else "file", attempt_id)
        before = () if parent == NONE else state.attempts[parent].chain
        write = "create" if self.inside or "metadata first" in self.faults else "write"
        for chain in {(*before, own), (own,)} if version in self.whole else {(*before, own)}:
            begun = executor._replace(committed=(version - 1, parent), task=Task(attempt_id, write))
            if executor.base is not None and len(chain) > 1:
                begun = begun._replace(task=Task(attempt_id, "find the base"))
            attempts = (*state.attempts, Attempt(version, parent, chain))
            yield (
                f"start attempt {attempt_id} at version {version} on {number}, from {parent}"
                + (", of everything" if len(chain) < len(before) + 1 else ""),
                _with(state._replace(attempts=attempts), number, begun),
            )

    def _commit(
        self, state: State, number: int, executor: Executor, task: Task
    ) -> Iterator[tuple[str, State]]:
        attempt_id = state.attempts[task.attempt_id]
        name = self._name(attempt_id.version, task.attempt_id)
        label = f"attempt {task.attempt_id} of {number}"
        current = dict(state.metadata).get(name, NONE)

        def continued(step: str, next_state: State = state, present: int = task.present) -> State:
            return _with(next_state, number, executor._replace(task=Task(task.attempt_id, step, present)))

        def ends(next_state: State) -> State:
            orphans = task.step in ("check", "replace")
            next_executor = executor._replace(
                version=attempt_id.version,
                attempt_id=task.attempt_id,
                index=executor.index | {task.attempt_id},
                unverified=executor.unverified if self.with_ids else executor.unverified | {task.attempt_id},
                complete=executor.complete and not orphans,
                base=None,
                task=None,
            )
            return _with(
                next_state._replace(finished_attempts=next_state.finished_attempts | {task.attempt_id}),
                number,
                next_executor,
            )

        write = "create" if self.inside else "write"
        if task.step == "find the base":
            base = executor.base
            assert base is not None
            oldest = 0 if "old base" in self.faults else attempt_id.version - 1 - self.retained
            uses_base = base in state.files and base[2] >= oldest
            since = base[1][1] if base[0] == "run" else 0
            if base[0] == "run" and "overtaken run" not in self.faults:
                # A full commit may have overtaken it.
                uses_base = uses_base and _version(state, attempt_id.chain[0]) <= since
            executor = executor._replace(complete=executor.complete and uses_base)
            next_state = state
            if uses_base:
                chain = (
                    *(s for s in attempt_id.chain if _version(state, s) <= since),
                    base,
                    *(s for s in attempt_id.chain if _version(state, s) > base[2]),
                )
                attempts = put(state.attempts, task.attempt_id, attempt_id._replace(chain=chain))
                next_state = state._replace(attempts=attempts)
            yield f"base {'taken' if uses_base else 'not taken'} by {label}", continued(write, next_state)
        elif task.step == "write":
            next_state = state._replace(files=state.files | {("file", task.attempt_id)})
            if "metadata first" in self.faults:
                yield f"write file of {label}", ends(next_state)
            else:
                yield f"write file of {label}", continued("create", next_state)
        elif task.step == "create":
            if current == NONE or "overwrite" in self.faults:
                next_state = self._replaced(state, name, task.attempt_id)
                if "metadata first" in self.faults and not self.inside:
                    next_state = next_state._replace(
                        finished_attempts=next_state.finished_attempts | {task.attempt_id}
                    )
                    yield f"create metadata of {label}", continued("write", next_state)
                else:
                    yield f"create metadata of {label}", ends(next_state)
            else:
                yield f"exists for {label}: {current}", continued("copy present", present=current)
        elif task.step == "copy present":
            copies = state.copies if "present not copied" in self.faults else state.copies | {task.present}
            yield f"copy {task.present} by {label}", continued("copy own", state._replace(copies=copies))
        elif task.step == "copy own":
            copies = state.copies if "own not copied" in self.faults else state.copies | {task.attempt_id}
            yield f"copy {task.attempt_id} by {label}", continued("check", state._replace(copies=copies))
        elif task.step == "check":
            # One step with the next one, except for the fault: INVARIANTS.md describes the remaining window.
            if len(state.committed) >= attempt_id.version and "no check" not in self.faults:
                failed = executor._replace(task=None, complete=False)
                yield f"refuse {label}", _with(state, number, failed)
            elif "slow check" in self.faults:
                yield f"check of {label}", continued("replace")
            else:
                yield f"replace metadata by {label}", ends(self._replaced(state, name, task.attempt_id))
        else:
            yield f"replace metadata by {label}", ends(self._replaced(state, name, task.attempt_id))

    def _replaced(self, state: State, name: Name, attempt_id: int) -> State:
        other_entries = {(other_name, by) for other_name, by in state.metadata if other_name != name}
        return state._replace(metadata=frozenset(other_entries | {(name, attempt_id)}))

    # Snapshots

    def _snapshot(self, state: State, number: int, executor: Executor) -> Iterator[tuple[str, State]]:
        if executor.snapshot is not None:
            version, attempt_id, since = executor.snapshot
            kind = ("run", (state.snapshots, since)) if self.runs else ("snapshot", state.snapshots)
            base: Stream = (*kind, version, attempt_id)
            next_state = state._replace(files=state.files | {base}, snapshots=state.snapshots + 1)
            # A snapshot of an undone version is not needed.
            next_base = base if executor.version >= version else None
            yield (
                f"end snapshot of version {version} on {number}",
                _with(next_state, number, executor._replace(snapshot=None, base=next_base)),
            )
        elif executor.version > 0 and executor.base is None and state.snapshots < self.snapshots:
            ends = [0]
            if self.runs:
                chain = state.attempts[executor.attempt_id].chain
                ends = [end for s in chain if (end := _version(state, s)) < executor.version]
            for since in ends:
                begun = executor._replace(snapshot=(executor.version, executor.attempt_id, since))
                stream = f"run since {since}" if self.runs else "snapshot"
                yield f"begin {stream} of version {executor.version} on {number}", _with(state, number, begun)

    # Cleanups

    def _clean(self, state: State, number: int, executor: Executor) -> Iterator[tuple[str, State]]:
        clean = executor.clean
        if clean is None:
            newest, attempt_id = executor.committed
            horizon = newest - self.retained
            for waiting in (executor.snapshot, executor.base and executor.base[2:]):
                if waiting is not None:
                    horizon = min(horizon, waiting[0])
            if horizon > 0 and state.cleanups < self.cleanups:
                begun = executor._replace(clean=Clean("current", newest, attempt_id, horizon))
                next_state = state._replace(cleanups=state.cleanups + 1)
                yield f"begin cleanup below {horizon} on {number}", _with(next_state, number, begun)
        elif clean.step == "current":
            current = dict(state.metadata).get(self._name(clean.newest, clean.attempt_id), NONE)
            if current != clean.attempt_id:
                yield (
                    f"leave cleanup to others on {number}",
                    _with(state, number, executor._replace(clean=None)),
                )
            elif not self._has_accepted(state, clean):
                yield f"log stops cleanup on {number}", _with(state, number, executor._replace(clean=None))
            else:
                checked = {a for a in executor.unverified if state.attempts[a].version <= clean.newest}
                replaced = any(
                    dict(state.metadata).get(self._name(state.attempts[a].version, a), NONE) != a
                    for a in checked
                    if state.attempts[a].version >= clean.horizon
                )
                executor = executor._replace(unverified=executor.unverified - checked)
                step = "list" if replaced or not executor.complete else "metadata"
                after = executor._replace(clean=clean._replace(step=step), complete=True)
                yield f"own for cleanup on {number}", _with(state, number, after)
        elif clean.step == "list":
            listed = clean._replace(
                step="read", listed=state.metadata, copies=state.copies, files=state.files
            )
            yield f"list on {number}", _with(state, number, executor._replace(clean=listed))
        elif clean.step == "read":
            retained_names = {name for name, _ in clean.listed if name[0] >= clean.horizon}
            attempts = {by for name, by in state.metadata if name in retained_names}
            attempts |= {a for a in clean.copies & state.copies if state.attempts[a].version >= clean.horizon}
            step = clean._replace(step="metadata")
            if clean.index is None:
                next_executor = executor._replace(index=executor.index | attempts, clean=step)
            else:
                next_executor = executor._replace(clean=step._replace(index=clean.index | attempts))
            yield f"read on {number}", _with(state, number, next_executor)
        elif clean.step == "metadata":
            used = self._used(state, executor, clean)
            inside = {state.attempts[s[-1]].version for s in used if s[0] == "inside"}
            names = {name for name, _ in clean.listed}
            names |= {self._name(state.attempts[a].version, a) for a in _index(executor)}
            gone = {n for n in names if n[0] < clean.horizon and n[0] not in inside}
            next_state = state._replace(
                metadata=frozenset((n, a) for n, a in state.metadata if n not in gone),
                copies=frozenset(
                    a for a in state.copies if self._name(state.attempts[a].version, a) not in gone
                ),
            )
            yield (
                f"discard versions {sorted(gone)} on {number}",
                _with(next_state, number, executor._replace(clean=clean._replace(step="streams"))),
            )
        else:
            used = self._used(state, executor, clean)
            registered = {s for a in _index(executor) for s in state.attempts[a].chain}
            orphans = {
                s
                for s in clean.files
                if s not in registered
                and (_version(state, s) < clean.horizon or "young orphans" in self.faults)
            }
            gone_streams = (registered | orphans) - used
            index = frozenset(a for a in executor.index if state.attempts[a].version >= clean.horizon)
            next_state = state._replace(files=state.files - gone_streams)
            yield (
                f"discard streams {sorted(map(str, gone_streams & state.files))} on {number}",
                _with(next_state, number, executor._replace(clean=None, index=index)),
            )

    def _has_accepted(self, state: State, clean: Clean) -> bool:
        """Return whether the commit log has the cleanup's newest version."""
        if "log not asked" in self.faults:
            return True
        if self.with_ids and "ids not asked" not in self.faults:
            return state.committed[clean.newest - 1 : clean.newest] == (clean.attempt_id,)
        return len(state.committed) >= clean.newest

    def _used(self, state: State, executor: Executor, clean: Clean) -> set[Stream]:
        # An attempt is unknown until its metadata is published; its executor tracks it then.
        return {
            stream
            for attempt_id in _index(executor)
            if state.attempts[attempt_id].version >= clean.horizon
            for stream in state.attempts[attempt_id].chain
        }

    # Lookups

    def _name(self, version: int, attempt_id: int) -> Name:
        return (version, attempt_id) if self.with_ids else (version,)

    def _served(self, state: State, version: int) -> int:
        """Return the attempt found at a committed version, NONE if there is none."""
        return dict(state.metadata).get(self._name(version, state.committed[version - 1]), NONE)

    def _is_whole(self, state: State, attempt_id: int) -> bool:
        there = {by for _, by in state.metadata} | state.copies
        return attempt_id != NONE and all(
            stream[-1] in there if stream[0] == "inside" else stream in state.files
            for stream in state.attempts[attempt_id].chain
        )

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def promised(state: State) -> range:
            newest = len(state.committed)
            # A rolled back query has the version of the rollback, and later ones.
            return range(newest if state.rollbacks else max(1, newest - self.retained), newest + 1)

        def whole(state: State) -> bool:
            return all(
                version == 0 or self._is_whole(state, self._served(state, version))
                for version in promised(state)
            )

        def settled(state: State) -> bool:
            return all(
                version == 0 or self._served(state, version) == state.attempts_at_commit[version - 1]
                for version in promised(state)
            )

        def applied(state: State) -> bool:
            return all(_is_continuous(state, state.attempts[a].chain) for a in state.finished_attempts)

        def committed(state: State) -> bool:
            return not self.with_ids or state.attempts_at_commit == state.committed

        return {
            "committed versions are complete": whole,
            "committed versions are immutable": settled,
            "the committed attempt is the one found": committed,
            "versions have each change once": applied,
        }


def _index(executor: Executor) -> frozenset[int]:
    clean = executor.clean
    return executor.index if clean is None or clean.index is None else clean.index


def _version(state: State, stream: Stream) -> int:
    return int(stream[2]) if stream[0] in ("snapshot", "run") else state.attempts[stream[-1]].version


def _is_continuous(state: State, chain: tuple[Stream, ...]) -> bool:
    """Return whether a chain begins with a full snapshot, and each stream applies to those before it."""
    ends = [_version(state, stream) for stream in chain]
    begins = [s[1][1] if s[0] == "run" else end - 1 for s, end in zip(chain, ends, strict=True)]
    return chain[0][0] != "run" and begins[1:] == ends[:-1]


def _with(state: State, number: int, executor: Executor) -> State:
    return state._replace(executors=put(state.executors, number, executor))
