"""The protocol of one store: commits, snapshots and clean-ups of several executors, in steps that others come between.

Every step is one call to storage, or something that Spark's driver does. Rows are left out: what a version is worth
is which attempts it is made of, and whether the files of all of them are there. See INVARIANTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.checker import follow

NONE = -1

# A stream: ("inside", attempt) lies in that attempt's metadata, ("file", attempt) in a file of its own, and
# ("snapshot", number, version, attempt) is what a version was, written ahead of the commit that takes it up.
Stream = tuple
# A version by number alone, or by number and attempt.
Name = tuple


class Attempt(NamedTuple):
    """One attempt at a version: never changed once its metadata is there."""

    version: int
    parent: int
    chain: tuple[Stream, ...]


class Task(NamedTuple):
    """A commit under way."""

    attempt: int
    step: str
    present: int = NONE


class Clean(NamedTuple):
    """A clean-up under way."""

    step: str
    newest: int
    attempt: int
    horizon: int
    listed: frozenset[tuple[Name, int]] = frozenset()
    copies: frozenset[int] = frozenset()
    files: frozenset[Stream] = frozenset()
    # What was known, if a load has begun anew meanwhile.
    known: frozenset[int] | None = None


class Executor(NamedTuple):
    """What one executor holds of the store."""

    version: int = NONE
    attempt: int = NONE
    # What Spark is known to have accepted, as this executor was told.
    accepted: tuple[int, int] = (NONE, NONE)
    snapshot: tuple[int, int] | None = None
    base: Stream | None = None
    # Attempts whose streams it knows, own ones that others may have replaced, and whether that is all there is.
    known: frozenset[int] = frozenset()
    unconfirmed: frozenset[int] = frozenset()
    complete: bool = False
    task: Task | None = None
    clean: Clean | None = None


class State(NamedTuple):
    """Storage, Spark's driver, and the executors."""

    # What is found under each name, and what is kept beside it.
    metadata: frozenset[tuple[Name, int]]
    copies: frozenset[int]
    files: frozenset[Stream]
    attempts: tuple[Attempt, ...]
    done: frozenset[int]
    # The attempt at each version that the driver believes in: its commit log.
    accepted: tuple[int, ...]
    # What was found under the version's name when it was accepted.
    found: tuple[int, ...]
    executors: tuple[Executor, ...]
    snapshots: int = 0
    rollbacks: int = 0
    cleanups: int = 0

    def __str__(self) -> str:
        return "\n".join(f"     {name} = {value}" for name, value in zip(self._fields, self, strict=True))


@dataclass(frozen=True)
class StoreSpec:
    """The store as it is, within bounds, and with the faults that are named.

    Attributes
    ----------
    with_ids
        Spark's checkpoint format v2.
    inside
        Whether changes lie inside of metadata, or in files of their own.
    versions, attempts, executors, snapshots, rollbacks, cleanups
        How many there may be.
    retained
        Versions that are kept before the newest.
    contended
        The versions at which several attempts are made; by default all.
    whole
        The versions at which an attempt may write everything, instead of what it changes.
    crashes
        Whether executors may be lost.
    begin
        Steps that are taken first, in this order, see `follow`.
    faults
        What is done wrong.
    """

    with_ids: bool = False
    inside: bool = True
    versions: int = 2
    attempts: int = 3
    executors: int = 2
    snapshots: int = 0
    rollbacks: int = 0
    retained: int = 1
    cleanups: int = 0
    contended: frozenset[int] | None = None
    whole: frozenset[int] = frozenset()
    crashes: bool = False
    begin: tuple[str, ...] = ()
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        nothing: frozenset = frozenset()
        empty = State(nothing, nothing, nothing, (), nothing, (), (), (Executor(),) * self.executors)
        yield follow(self, empty, self.begin)

    def key(self, state: State) -> State:
        """Executors are alike: in which order they stand makes no difference."""
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

    # What the driver does

    def _drive(self, state: State) -> Iterator[tuple[str, State]]:
        version = len(state.accepted) + 1
        for attempt in sorted(state.done):
            if state.attempts[attempt].version == version:
                after = state._replace(accepted=(*state.accepted, attempt))
                found = self._served(after, version)
                yield f"accept {attempt} as version {version}", after._replace(found=(*state.found, found))
        if state.rollbacks < self.rollbacks and len(state.accepted) > 1:
            kept = len(state.accepted) - 1
            # It is refused where the version is not whole. A clean-up under way is an assumption, see INVARIANTS.md.
            if not self._is_whole(state, self._served(state, kept)) or any(e.clean for e in state.executors):
                return
            # A new run of the query: what executors hold for the old one is used by no task any more.
            yield (
                f"rollback to version {kept}",
                state._replace(
                    accepted=state.accepted[:kept],
                    found=state.found[:kept],
                    executors=tuple(one._replace(version=NONE, attempt=NONE) for one in state.executors),
                    rollbacks=state.rollbacks + 1,
                ),
            )

    # Commits

    def _start(self, state: State, number: int, executor: Executor) -> Iterator[tuple[str, State]]:
        version = len(state.accepted) + 1
        if version > self.versions or len(state.attempts) >= self.attempts:
            return
        alone = self.contended is not None and version not in self.contended
        if alone and any(made.version == version for made in state.attempts):
            return
        parent = state.accepted[-1] if state.accepted else NONE
        if executor.version == version - 1 and (not self.with_ids or executor.attempt == parent):
            parent = executor.attempt
        else:
            parent = self._served(state, version - 1) if version > 1 else NONE
            known = frozenset() if parent == NONE else frozenset([parent])
            clean = executor.clean
            if clean is not None and clean.known is None:
                clean = clean._replace(known=executor.known)
            executor = executor._replace(
                version=version - 1,
                attempt=parent,
                base=None,
                known=known,
                unconfirmed=frozenset(),
                complete=False,
                clean=clean,
            )
        attempt = len(state.attempts)
        own: Stream = ("inside" if self.inside else "file", attempt)
        before = () if parent == NONE else state.attempts[parent].chain
        write = "create" if self.inside or "metadata first" in self.faults else "write"
        for chain in {(*before, own), (own,)} if version in self.whole else {(*before, own)}:
            begun = executor._replace(accepted=(version - 1, parent), task=Task(attempt, write))
            if executor.base is not None and len(chain) > 1:
                begun = begun._replace(task=Task(attempt, "look for the base"))
            made = (*state.attempts, Attempt(version, parent, chain))
            yield (
                f"start attempt {attempt} at version {version} on {number}, from {parent}"
                + (", of everything" if len(chain) < len(before) + 1 else ""),
                _with(state._replace(attempts=made), number, begun),
            )

    def _commit(
        self, state: State, number: int, executor: Executor, task: Task
    ) -> Iterator[tuple[str, State]]:
        attempt = state.attempts[task.attempt]
        name = self._name(attempt.version, task.attempt)
        what = f"attempt {task.attempt} of {number}"
        current = dict(state.metadata).get(name, NONE)

        def goes_on(step: str, of: State = state, present: int = task.present) -> State:
            return _with(of, number, executor._replace(task=Task(task.attempt, step, present)))

        def ends(of: State) -> State:
            strays = task.step in ("look", "replace")
            done = executor._replace(
                version=attempt.version,
                attempt=task.attempt,
                known=executor.known | {task.attempt},
                unconfirmed=executor.unconfirmed if self.with_ids else executor.unconfirmed | {task.attempt},
                complete=executor.complete and not strays,
                base=None,
                task=None,
            )
            return _with(of._replace(done=of.done | {task.attempt}), number, done)

        write = "create" if self.inside else "write"
        if task.step == "look for the base":
            base = executor.base
            assert base is not None
            oldest = 0 if "old base" in self.faults else attempt.version - 1 - self.retained
            taken = base in state.files and base[2] >= oldest
            executor = executor._replace(complete=executor.complete and taken)
            of = state
            if taken:
                chain = (base, *(s for s in attempt.chain if state.attempts[s[-1]].version > base[2]))
                made = list(state.attempts)
                made[task.attempt] = attempt._replace(chain=chain)
                of = state._replace(attempts=tuple(made))
            yield f"base {'taken' if taken else 'not taken'} by {what}", goes_on(write, of)
        elif task.step == "write":
            of = state._replace(files=state.files | {("file", task.attempt)})
            if "metadata first" in self.faults:
                yield f"write file of {what}", ends(of)
            else:
                yield f"write file of {what}", goes_on("create", of)
        elif task.step == "create":
            if current == NONE or "overwrite" in self.faults:
                kept = {(known, by) for known, by in state.metadata if known != name}
                of = state._replace(metadata=frozenset(kept | {(name, task.attempt)}))
                if "metadata first" in self.faults and not self.inside:
                    of = of._replace(done=of.done | {task.attempt})
                    yield f"create metadata of {what}", goes_on("write", of)
                else:
                    yield f"create metadata of {what}", ends(of)
            else:
                yield f"exists for {what}: {current}", goes_on("copy present", present=current)
        elif task.step == "copy present":
            copies = state.copies if "present not copied" in self.faults else state.copies | {task.present}
            yield f"copy {task.present} by {what}", goes_on("copy own", state._replace(copies=copies))
        elif task.step == "copy own":
            copies = state.copies if "own not copied" in self.faults else state.copies | {task.attempt}
            yield f"copy {task.attempt} by {what}", goes_on("look", state._replace(copies=copies))
        elif task.step == "look":
            # One step with what follows, but for the fault: what is left of the window is said in INVARIANTS.md.
            if len(state.accepted) >= attempt.version and "no look" not in self.faults:
                failed = executor._replace(task=None, complete=False)
                yield f"refuse {what}", _with(state, number, failed)
            elif "slow look" in self.faults:
                yield f"look of {what}", goes_on("replace")
            else:
                yield f"replace metadata by {what}", ends(self._replaced(state, name, task.attempt))
        else:
            yield f"replace metadata by {what}", ends(self._replaced(state, name, task.attempt))

    def _replaced(self, state: State, name: Name, attempt: int) -> State:
        kept = {(known, by) for known, by in state.metadata if known != name}
        return state._replace(metadata=frozenset(kept | {(name, attempt)}))

    # Snapshots

    def _snapshot(self, state: State, number: int, executor: Executor) -> Iterator[tuple[str, State]]:
        if executor.snapshot is not None:
            version, attempt = executor.snapshot
            base = ("snapshot", state.snapshots, version, attempt)
            of = state._replace(files=state.files | {base}, snapshots=state.snapshots + 1)
            # Nobody needs one of what was undone.
            kept = base if executor.version >= version else None
            yield (
                f"end snapshot of version {version} on {number}",
                _with(of, number, executor._replace(snapshot=None, base=kept)),
            )
        elif executor.version > 0 and executor.base is None and state.snapshots < self.snapshots:
            begun = executor._replace(snapshot=(executor.version, executor.attempt))
            yield f"begin snapshot of version {executor.version} on {number}", _with(state, number, begun)

    # Clean-ups

    def _clean(self, state: State, number: int, executor: Executor) -> Iterator[tuple[str, State]]:
        clean = executor.clean
        if clean is None:
            newest, attempt = executor.accepted
            horizon = newest - self.retained
            for waiting in (executor.snapshot, executor.base and executor.base[2:]):
                if waiting is not None:
                    horizon = min(horizon, waiting[0])
            if horizon > 0 and state.cleanups < self.cleanups:
                begun = executor._replace(clean=Clean("owner", newest, attempt, horizon))
                of = state._replace(cleanups=state.cleanups + 1)
                yield f"begin clean-up below {horizon} on {number}", _with(of, number, begun)
        elif clean.step == "owner":
            current = dict(state.metadata).get(self._name(clean.newest, clean.attempt), NONE)
            if current != clean.attempt:
                yield (
                    f"leave clean-up to others on {number}",
                    _with(state, number, executor._replace(clean=None)),
                )
            elif not self._has_accepted(state, clean):
                yield f"log stops clean-up on {number}", _with(state, number, executor._replace(clean=None))
            else:
                looked = {a for a in executor.unconfirmed if state.attempts[a].version <= clean.newest}
                replaced = any(
                    dict(state.metadata).get(self._name(state.attempts[a].version, a), NONE) != a
                    for a in looked
                    if state.attempts[a].version >= clean.horizon
                )
                executor = executor._replace(unconfirmed=executor.unconfirmed - looked)
                step = "list" if replaced or not executor.complete else "metadata"
                after = executor._replace(clean=clean._replace(step=step), complete=True)
                yield f"own for clean-up on {number}", _with(state, number, after)
        elif clean.step == "list":
            listed = clean._replace(
                step="read", listed=state.metadata, copies=state.copies, files=state.files
            )
            yield f"list on {number}", _with(state, number, executor._replace(clean=listed))
        elif clean.step == "read":
            kept = {name for name, _ in clean.listed if name[0] >= clean.horizon}
            found = {by for name, by in state.metadata if name in kept}
            found |= {a for a in clean.copies & state.copies if state.attempts[a].version >= clean.horizon}
            step = clean._replace(step="metadata")
            if clean.known is None:
                read = executor._replace(known=executor.known | found, clean=step)
            else:
                read = executor._replace(clean=step._replace(known=clean.known | found))
            yield f"read on {number}", _with(state, number, read)
        elif clean.step == "metadata":
            used = self._used(state, executor, clean)
            inside = {state.attempts[s[-1]].version for s in used if s[0] == "inside"}
            names = {name for name, _ in clean.listed}
            names |= {self._name(state.attempts[a].version, a) for a in _known(executor)}
            gone = {n for n in names if n[0] < clean.horizon and n[0] not in inside}
            of = state._replace(
                metadata=frozenset((n, a) for n, a in state.metadata if n not in gone),
                copies=frozenset(
                    a for a in state.copies if self._name(state.attempts[a].version, a) not in gone
                ),
            )
            yield (
                f"discard versions {sorted(gone)} on {number}",
                _with(of, number, executor._replace(clean=clean._replace(step="streams"))),
            )
        else:
            used = self._used(state, executor, clean)
            registered = {s for a in _known(executor) for s in state.attempts[a].chain}
            strays = {
                s
                for s in clean.files
                if s not in registered
                and (_version(state, s) < clean.horizon or "young strays" in self.faults)
            }
            gone_streams = (registered | strays) - used
            known = frozenset(a for a in executor.known if state.attempts[a].version >= clean.horizon)
            of = state._replace(files=state.files - gone_streams)
            yield (
                f"discard streams {sorted(map(str, gone_streams & state.files))} on {number}",
                _with(of, number, executor._replace(clean=None, known=known)),
            )

    def _has_accepted(self, state: State, clean: Clean) -> bool:
        """Whether the commit log has what the clean-up believes to be accepted."""
        if "log not asked" in self.faults:
            return True
        if self.with_ids and "ids not asked" not in self.faults:
            return state.accepted[clean.newest - 1 : clean.newest] == (clean.attempt,)
        return len(state.accepted) >= clean.newest

    def _used(self, state: State, executor: Executor, clean: Clean) -> set[Stream]:
        # Nothing is known of an attempt while its metadata is not there: its executor notes it then.
        return {
            stream
            for attempt in _known(executor)
            if state.attempts[attempt].version >= clean.horizon
            for stream in state.attempts[attempt].chain
        }

    # What is there

    def _name(self, version: int, attempt: int) -> Name:
        return (version, attempt) if self.with_ids else (version,)

    def _served(self, state: State, version: int) -> int:
        """The attempt at an accepted version that is found there, NONE if there is none."""
        return dict(state.metadata).get(self._name(version, state.accepted[version - 1]), NONE)

    def _is_whole(self, state: State, attempt: int) -> bool:
        there = {by for _, by in state.metadata} | state.copies
        return attempt != NONE and all(
            stream[-1] in there if stream[0] == "inside" else stream in state.files
            for stream in state.attempts[attempt].chain
        )

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def promised(state: State) -> range:
            newest = len(state.accepted)
            # A query that was set back has the version that it was set back to, and what comes then.
            return range(newest if state.rollbacks else max(1, newest - self.retained), newest + 1)

        def whole(state: State) -> bool:
            return all(
                version == 0 or self._is_whole(state, self._served(state, version))
                for version in promised(state)
            )

        def settled(state: State) -> bool:
            return all(
                version == 0 or self._served(state, version) == state.found[version - 1]
                for version in promised(state)
            )

        def accepted(state: State) -> bool:
            return not self.with_ids or state.found == state.accepted

        return {
            "what was accepted is whole": whole,
            "what was accepted does not change": settled,
            "what was accepted is what is found": accepted,
        }


def _known(executor: Executor) -> frozenset[int]:
    clean = executor.clean
    return executor.known if clean is None or clean.known is None else clean.known


def _version(state: State, stream: Stream) -> int:
    return int(stream[2]) if stream[0] == "snapshot" else state.attempts[stream[-1]].version


def _with(state: State, number: int, executor: Executor) -> State:
    executors = (*state.executors[:number], executor, *state.executors[number + 1 :])
    return state._replace(executors=executors)
