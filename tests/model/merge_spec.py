"""Specification of merged files: the commits of a batch's stores are logical files of one physical file.

Runs share only storage. One in task mode writes files of its stores' own instead. See INVARIANTS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import NamedTuple

from tests.model.checker import put


class Attempt(NamedTuple):
    """The only attempt of a run at a version of a store.

    `chain` has the earlier ones that a load reads as well.
    """

    store: int
    version: int
    run: int
    chain: frozenset[tuple[int, int]] = frozenset()

    @property
    def id(self) -> tuple[int, int]:
        return self.version, self.run


class Entry(NamedTuple):
    """A logical file; `rank` is the sequence of the physical file in which its attempt was published."""

    attempt: Attempt
    rank: int


class Name(NamedTuple):
    """The name of a physical file; `is_copy` of one whose entries were in others before."""

    sequence: int
    oldest: int
    newest: int
    is_copy: bool = False

    def __str__(self) -> str:
        return f"{self[:3]}{'-copy' if self.is_copy else ''}"


class Physical(NamedTuple):
    """A physical file: its name, and its index; in a run, the part of it that is in no preferred file."""

    name: Name
    entries: frozenset[Entry]


class Run(NamedTuple):
    """A run of the query: what it has in memory.

    `step` is "list", "load", "tasks", "checked" (the commit log was read), "published", or one of "ended",
    "killed", "misled" and "lost" (it loaded the wrong attempt, or none).
    """

    step: str = "list"
    version: int = 0
    # The commit log before that version.
    committed: tuple[int, ...] = ()
    # The physical files that it has listed and published, each entry in one of them, and their highest
    # sequence.
    files: frozenset[Physical] = frozenset()
    highest: int = 0
    # By store: its newest attempt.
    memory: tuple[Attempt | None, ...] = ()
    discarded: frozenset[Attempt] = frozenset()
    # The copy that it is about to create.
    moving: Physical | None = None
    # Another process of the run: the version at which it has loaded each store that moved to it, the files
    # whose indexes it has read, its listing, whether it has read the indexes of that, and the stores that it
    # had loaded when it listed.
    moved: tuple[int, ...] = ()
    indexed: frozenset[Physical] = frozenset()
    listing: frozenset[Physical] = frozenset()
    has_read: bool = True
    loaded: frozenset[int] = frozenset()


class State(NamedTuple):
    """Storage, Spark's commit log and the runs."""

    physical: frozenset[Physical] = frozenset()
    # The stores' own files; of several at one path the last one has the name, the others are kept beside it.
    own: tuple[Attempt, ...] = ()
    # By version: the run in the commit log, and what was found by store when the log was written.
    committed: tuple[int, ...] = ()
    attempts_at_commit: tuple[tuple[Attempt | None, ...], ...] = ()
    runs: tuple[Run, ...] = ()
    # The version of the last rollback; older ones need not exist.
    oldest: int = 1
    # By store: the attempts whose streams were deleted as orphans.
    orphans: frozenset[tuple[int, tuple[int, int]]] = frozenset()
    rewrites: int = 0
    kills: int = 0
    rollbacks: int = 0


@dataclass(frozen=True)
class MergeSpec:
    """The protocol of merged files, with injected faults."""

    # Spark's checkpoint format v2.
    with_ids: bool = False
    # Mode of every run: "b" (`commit=batch`) or "t" (`commit=task`).
    modes: str = "bb"
    # Upper bounds on their numbers.
    stores: int = 2
    versions: int = 3
    rewrites: int = 0
    kills: int = 0
    rollbacks: int = 0
    # Physical files of which a copy takes over entries.
    sources: int = 2
    # Versions that are kept before the newest.
    retained: int = 0
    # Batches by which a store's cleanup may be behind its run.
    lag: int = 0
    # A rollback may lead to a complete version that is not retained any more.
    rolls_beyond: bool = True
    # A run may begin before the previous run has ended.
    concurrent: bool = False
    # Pairs of store and version: the attempts that have no chain, and those that may have none.
    whole: frozenset[tuple[int, int]] = frozenset([(0, 2), (1, 3)])
    varied: frozenset[tuple[int, int]] = frozenset()
    # Likewise: the attempts that a run with `commit=batch` writes in files of the stores' own.
    large: frozenset[tuple[int, int]] = frozenset()
    # Each run has an executor, to which stores move from the driver's process. With ids only.
    executor: bool = False
    faults: frozenset[str] = frozenset()

    def init(self) -> Iterator[State]:
        yield State()

    def key(self, state: State) -> State:
        return state

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        yield from self._begin(state)
        for number, run in enumerate(state.runs):
            if run.step == "list":
                yield f"list in run {number}", _with(state, number, self._listed(state, run, step="load"))
            elif run.step == "load":
                yield self._load(state, number, run)
            elif run.step in ("tasks", "checked"):
                yield from self._work(state, number, run)
            elif run.step == "published":
                yield self._commit(state, number, run)
                if run.moving is None and state.rewrites < self.rewrites and self.modes[number] == "b":
                    yield from self._rewrite(state, number, run)
            if run.moving is not None and _is_active(run):
                yield self._copy(state, number, run, run.moving)
            if _is_active(run) and (len(state.runs) < len(self.modes) or state.rollbacks < self.rollbacks):
                yield f"end run {number}", _ended(state, number)
            if state.kills < self.kills and run.step != "killed":
                killed = _with(state, number, Run("killed"))
                yield f"kill run {number}", killed._replace(kills=state.kills + 1)
            if run.memory:
                yield from self._discard(state, number, run)
                if self.executor:
                    yield from self._on_executor(state, number, run)
                for physical in self._deletable(state, run):
                    next_state = state._replace(physical=_without(state, physical.name))
                    after = run._replace(files=run.files - {physical})
                    yield f"delete {physical.name} in run {number}", _with(next_state, number, after)

    # The driver

    def _begin(self, state: State) -> Iterator[tuple[str, State]]:
        active = any(_is_active(run) for run in state.runs)
        version = len(state.committed) + 1
        if len(state.runs) < len(self.modes) and (self.concurrent or not active):
            label = f"begin run {len(state.runs)}"
            yield label, state._replace(runs=(*state.runs, Run(version=version)))
            for number, run in enumerate(state.runs):
                if run.step == "ended" and "listing is reused" in self.faults:
                    again = Run("load", version, files=run.files, highest=run.highest)
                    yield f"{label} with listing {number}", state._replace(runs=(*state.runs, again))
        target = len(state.committed) - 1
        if state.rollbacks == self.rollbacks or target < 1 or active or not self._is_complete(state, target):
            return
        # No deletion of a physical file is in progress, by assumption: see INVARIANTS.md.
        if (self.rolls_beyond or self.retained) and not any(
            self._deletable(state, run) for run in state.runs
        ):
            rolled = state._replace(
                committed=state.committed[:target],
                attempts_at_commit=state.attempts_at_commit[:target],
                oldest=target,
            )
            yield f"rollback to version {target}", rolled._replace(rollbacks=state.rollbacks + 1)

    def _load(self, state: State, number: int, run: Run) -> tuple[str, State]:
        base = run.version - 1
        memory = self._attempts_at(state, base, run.files) or (None,) * self.stores
        step = "tasks"
        if base in self._retained(state) and memory != state.attempts_at_commit[base - 1]:
            step = "lost" if None in memory else "misled"
        if step == "lost" and self.concurrent:
            return f"miss in run {number}", _ended(state, number)
        loaded = run._replace(step=step, committed=state.committed[:base], memory=memory)
        return f"load in run {number}", _with(state, number, loaded)

    def _commit(self, state: State, number: int, run: Run) -> tuple[str, State]:
        if len(state.committed) >= run.version:
            return f"conflict in run {number}", _ended(state, number)
        next_state = state._replace(committed=(*state.committed, number))
        next_state = next_state._replace(
            attempts_at_commit=(
                *next_state.attempts_at_commit,
                self._attempts_at(next_state, run.version, next_state.physical),
            )
        )
        after = run._replace(step="tasks", version=run.version + 1, committed=next_state.committed)
        return f"commit version {run.version} in run {number}", _with(next_state, number, after)

    # Publication

    def _work(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        if run.version > self.versions:
            return
        if "commit log first" in self.faults and len(state.committed) < run.version:
            yield self._commit(state, number, run)
        if self.modes[number] == "b":
            for attempts in self._new_attempts(number, run, range(self.stores)):
                yield self._publish(state, number, run, run._replace(step="published", memory=attempts))
            return
        waiting = [n for n, attempt in enumerate(run.memory) if not attempt or attempt.version < run.version]
        for store in waiting:
            for (own,) in self._new_attempts(number, run, [store]):
                memory = put(run.memory, store, own)
                after = run._replace(step="tasks" if len(waiting) > 1 else "published", memory=memory)
                if self._newest(run.files, own) and "merged files do not exist for own" not in self.faults:
                    yield self._publish(state, number, run, after)
                else:
                    yield self._create_own(state, number, after, own)

    def _new_attempts(self, number: int, run: Run, stores: Iterable[int]) -> Iterator[tuple[Attempt, ...]]:
        """Return the possible attempts of the run's batch at some stores."""
        attempts = []
        for store in stores:
            parent, place = run.memory[store], (store, run.version)
            chains = {frozenset() if place in self.whole or not parent else parent.chain | {parent.id}}
            chains |= {frozenset()} if place in self.varied else set()
            attempts.append([Attempt(store, run.version, number, chain) for chain in chains])
        return product(*attempts)

    def _publish(self, state: State, number: int, run: Run, after: Run) -> tuple[str, State]:
        """Return the step that creates a physical file of the new attempts."""
        sequence = run.highest + 1
        attempts = {attempt for attempt in after.memory if attempt and attempt not in run.memory}
        large = {attempt for attempt in attempts if attempt[:2] in self.large}
        entries = frozenset(Entry(attempt, sequence) for attempt in attempts - large)
        if not entries:
            own = tuple(sorted({*state.own, *large}, key=lambda attempt: attempt[:3]))
            return f"create own files in run {number}", _with(state._replace(own=own), number, after)
        physical = Physical(Name(sequence, run.version, run.version), entries)
        label = f"{physical.name} in run {number}"
        if run.step != "checked":
            if run.version <= len(state.committed) and any(
                self._is_refused(run, entry.attempt) for entry in entries
            ):
                return f"refuse {label}", _ended(state, number)
            if "slow check" in self.faults:
                return f"check {label}", _with(state, number, run._replace(step="checked"))
        other_files = _without(state, physical.name)
        if other_files != state.physical and "physical files are replaced" not in self.faults:
            return f"list again for {label}", _with(state, number, self._listed(state, run, step="tasks"))
        after = after._replace(files=run.files | {physical}, highest=sequence)
        if large:
            state = state._replace(own=tuple(sorted({*state.own, *large}, key=lambda attempt: attempt[:3])))
        return f"publish {label}", _with(state._replace(physical=other_files | {physical}), number, after)

    def _is_refused(self, run: Run, attempt: Attempt) -> bool:
        """Return whether the run must not publish an attempt whose version is committed (v1)."""
        if self.with_ids or "commit log is not read" in self.faults:
            return False
        if "only known files are checked" not in self.faults:
            return True
        return self._newest(run.files, attempt) not in (None, attempt)

    def _create_own(self, state: State, number: int, after: Run, attempt: Attempt) -> tuple[str, State]:
        file = f"file of store {attempt.store} in run {number}"
        exists = any(self._shares_path(attempt, own_attempt) for own_attempt in state.own)
        # One step with the replacement: `StoreSpec` has them apart.
        if exists and len(state.committed) >= attempt.version:
            return f"refuse {file}", _ended(state, number)
        own = tuple(sorted((*state.own, attempt), key=lambda attempt: attempt[:2]))
        return f"{'replace' if exists else 'create'} {file}", _with(state._replace(own=own), number, after)

    # Rewriting and retention

    def _rewrite(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        """Yield the choice of old physical files whose live logical files a copy takes over."""
        end = run.version + ("uncommitted versions are moved" in self.faults)
        old = sorted(file for file in run.files if file.name.newest < end)
        for count in range(1, self.sources + 1):
            for chosen in combinations(old, count):
                entries = frozenset(e for e in _entries(chosen) if e.attempt not in run.discarded)
                if not entries:
                    continue
                versions = [entry.attempt.version for entry in entries]
                oldest, newest = min(versions), max(versions)
                numbers = [
                    file.name.sequence
                    for file in run.files
                    if (file.name.oldest, file.name.newest) == (oldest, newest)
                    or (file.name.is_copy and "copies are numbered by range" not in self.faults)
                ]
                if "ranks are not kept" in self.faults:
                    entries = frozenset(entry._replace(rank=run.highest + 1) for entry in entries)
                name = Name(1 + max(numbers, default=-1), oldest, newest, is_copy=True)
                next_state = state._replace(rewrites=state.rewrites + 1)
                if "old file is deleted first" in self.faults:
                    for file in chosen:
                        next_state = next_state._replace(physical=_without(next_state, file.name))
                yield (
                    f"move {', '.join(str(file.name) for file in chosen)} in run {number}",
                    _with(next_state, number, run._replace(moving=Physical(name, entries))),
                )

    def _copy(self, state: State, number: int, run: Run, copy: Physical) -> tuple[str, State]:
        """Return the step that creates a copy."""
        after = run._replace(moving=None)
        if copy.name in _names(state.physical):
            return f"list again for {copy.name} in run {number}", _with(
                state, number, self._listed(state, after)
            )
        attempts = _attempts([copy])
        files = frozenset(
            Physical(file.name, frozenset(e for e in file.entries if e.attempt not in attempts))
            for file in run.files
        )
        next_state = state._replace(physical=state.physical | {copy})
        return f"copy {copy.name} in run {number}", _with(
            next_state, number, after._replace(files=files | {copy})
        )

    def _discard(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        """Yield the cleanups of the stores, each of which discards the old versions that it knows."""
        last = len(run.committed)
        # Without ids, a concurrent run can have published the attempts that were found.
        if not self.with_ids and "cleanups do not list" not in self.faults:
            run = self._listed(state, run)
        for store, newest in product(range(self.stores), range(max(1, last - self.lag), last + 1)):
            # It must still be current, see `StoreSpec`.
            current = state.committed[newest - 1 : newest]
            if not current or (self.with_ids and current[0] != run.committed[newest - 1]):
                continue
            horizon = newest - self.retained
            attempts = {attempt for attempt in _attempts(run.files) | {*state.own} if attempt.store == store}
            used = {id_ for a in attempts if a.version >= horizon for id_ in a.chain}
            old = {a for a in attempts if a.version < horizon and a.id not in used}
            if not old <= run.discarded:
                next_state = state._replace(own=tuple(attempt for attempt in state.own if attempt not in old))
                after = run._replace(discarded=run.discarded | old)
                yield (
                    f"discard below {horizon} in store {store} of run {number}",
                    _with(next_state, number, after),
                )

    def _on_executor(self, state: State, number: int, run: Run) -> Iterator[tuple[str, State]]:
        """Yield the loads and listings of stores in the run's other process, and their cleanups there."""
        last = len(run.committed)
        moved = run.moved or (0,) * self.stores
        stores = frozenset(store for store, version in enumerate(moved) if version)
        for store in range(self.stores if _is_active(run) and run.step == "tasks" else 0):
            own = {a for a in state.own if a[:2] == (store, last) and a.run == run.committed[-1]}
            if last and moved[store] != last:
                after = run._replace(moved=put(moved, store, last), loaded=run.loaded - {store})
                if not own:
                    # It is in no file that the process knows: it lists.
                    after = _listed_there(state, after)
                yield f"move store {store} to the executor of run {number}", _with(state, number, after)
        if run.listing != state.physical or run.loaded != stores:
            after = _listed_there(state, run)._replace(loaded=stores)
            yield f"list on the executor of run {number}", _with(state, number, after)
        for store in stores if "executors do not list" in self.faults else stores & run.loaded:
            for newest in range(max(1, moved[store], last - self.lag), last + 1):
                if state.committed[newest - 1 : newest] == run.committed[newest - 1 : newest]:
                    yield self._scan(state, number, run, store, newest)

    def _scan(self, state: State, number: int, run: Run, store: int, newest: int) -> tuple[str, State]:
        """Return a cleanup on an executor: it deletes the streams that no version refers to that it knows."""
        listing, files = run.listing, run.indexed
        if not run.has_read:
            if not _names(listing) <= _names(state.physical):
                # A file was deleted after the listing: what is left of it is in a new one.
                skips = "files that vanish are skipped" in self.faults
                listing = listing & state.physical if skips else state.physical
            files = self._with_indexes(files, listing)
        present = {a for a in _attempts(state.physical) | {*state.own} if a.store == store}
        # The version that it has loaded, and those that it has committed since, are tracked.
        runs = dict(enumerate(run.committed, 1))
        tracked = {
            a for a in present if a.version >= run.moved[store] and a.run == runs.get(a.version, number)
        }
        attempts = {a for a in _attempts(files) | {*state.own} if a.store == store} | tracked
        horizon = newest - self.retained
        used = {id_ for a in attempts if a.version >= horizon for id_ in (a.id, *a.chain)}
        orphans = {(store, a.id) for a in present if a.version < horizon and a.id not in used}
        old = {a for a in attempts if a.version < horizon and a.id not in used}
        next_state = state._replace(
            own=tuple(attempt for attempt in state.own if attempt not in old), orphans=state.orphans | orphans
        )
        # The driver's process gets the report.
        after = run._replace(discarded=run.discarded | old, listing=listing, indexed=files, has_read=True)
        label = f"discard below {horizon} in store {store} on the executor of run {number}"
        return label, _with(next_state, number, after)

    def _deletable(self, state: State, run: Run) -> list[Physical]:
        """Return the physical files that have no live logical file, as far as the run knows."""
        if not _is_active(run) and "ended runs delete" not in self.faults:
            return []
        test = any if "files with live entries are deleted" in self.faults else all
        deletable = [
            physical
            for physical in run.files
            if test(entry.attempt in run.discarded for entry in physical.entries)
        ]
        if self.with_ids or "superseded files are deleted last" in self.faults:
            return deletable
        present = set(_entries(_named(state, _names(run.files)))) if deletable else set()
        return [physical for physical in deletable if not self._exposes(state, physical.name, present)]

    def _exposes(self, state: State, name: Name, present: set[Entry]) -> bool:
        """Return whether a path would lead to an attempt again that one in the file supersedes."""
        return any(
            self._shares_path(first.attempt, second.attempt) and second[::-1] < first[::-1]
            for first, second in product(_entries(_named(state, {name})), present)
        )

    def _listed(self, state: State, run: Run, step: str = "") -> Run:
        sequences = [file.name.sequence for file in state.physical if not file.name.is_copy]
        files = self._with_indexes(run.files, state.physical)
        return run._replace(
            files=files, highest=max([run.highest, *sequences]), step=step or run.step, moving=None
        )

    def _with_indexes(self, files: frozenset[Physical], listed: frozenset[Physical]) -> frozenset[Physical]:
        """Return the files that a process knows after it has listed and read these."""
        entries_by_name = {file.name: {*file.entries} for file in files if file.name in _names(listed)}
        for file in sorted(listed):
            if file.name in entries_by_name:
                continue
            added = {*file.entries}
            for name, entries in entries_by_name.items():
                for entry in [e for e in entries if e.attempt in _attempts([file])]:
                    if self._preference(name) > self._preference(file.name):
                        added.discard(entry)
                    else:
                        entries.discard(entry)
            entries_by_name[file.name] = added
        return frozenset(Physical(name, frozenset(entries)) for name, entries in entries_by_name.items())

    def _preference(self, name: Name) -> tuple[object, ...]:
        order = name.oldest, name.newest, name.sequence, name.is_copy
        if "files are preferred by name" in self.faults:
            return order
        return name.is_copy, name.sequence if name.is_copy else 0, order

    def _shares_path(self, first: Attempt, second: Attempt) -> bool:
        return first[: 3 if self.with_ids else 2] == second[: 3 if self.with_ids else 2]

    def _newest(self, physical: Iterable[Physical], at: Attempt) -> Attempt | None:
        """Return the attempt in the physical files that has the path of an attempt."""
        candidates = [
            (file.name.newest if "version order" in self.faults else 0, entry.rank, entry.attempt)
            for file in physical
            for entry in file.entries
            if self._shares_path(entry.attempt, at)
        ]
        return max(candidates)[-1] if candidates else None

    def _attempts_at(
        self, state: State, version: int, files: frozenset[Physical]
    ) -> tuple[Attempt | None, ...]:
        """Return the attempts found at a committed version, given the known physical files."""
        attempts: list[Attempt | None] = []
        for store in range(self.stores if version else 0):
            path = Attempt(store, version, state.committed[version - 1])
            own = next((attempt for attempt in reversed(state.own) if self._shares_path(attempt, path)), None)
            merged = self._newest(files, path)
            attempts.append((own or merged) if "own files win" in self.faults else (merged or own))
        return tuple(attempts)

    def _retained(self, state: State) -> range:
        newest = len(state.committed)
        return range(max(state.oldest, newest - self.retained), newest + 1)

    def _is_complete(self, state: State, version: int) -> bool:
        there = {
            (attempt.store, attempt.id) for attempt in _attempts(state.physical) | {*state.own}
        } - state.orphans
        attempts = self._attempts_at(state, version, state.physical)
        return all(
            attempt and all((attempt.store, id_) in there for id_ in (attempt.id, *attempt.chain))
            for attempt in attempts
        )

    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        def whole(state: State) -> bool:
            return all(self._is_complete(state, n) for n in self._retained(state))

        def settled(state: State) -> bool:
            retained = self._retained(state)
            return all(
                self._attempts_at(state, n, state.physical) == state.attempts_at_commit[n - 1]
                for n in retained
            )

        def committed(state: State) -> bool:
            # Without ids, a concurrent run can supersede the attempt until the version is committed.
            if self.concurrent and not self.with_ids:
                return True
            retained = self._retained(state)
            return all(
                a and a.run == state.committed[n - 1]
                for n in retained
                for a in state.attempts_at_commit[n - 1]
            )

        def loaded(state: State) -> bool:
            return all(run.step not in ("misled", "lost") for run in state.runs)

        return {
            "committed versions are complete": whole,
            "committed versions are immutable": settled,
            "the committed attempt is the one found": committed,
            "a run loads the version that a new run finds": loaded,
        }


def _is_active(run: Run) -> bool:
    return run.step not in ("ended", "killed")


def _entries(physical: Iterable[Physical]) -> Iterator[Entry]:
    return (entry for file in physical for entry in file.entries)


def _attempts(physical: Iterable[Physical]) -> set[Attempt]:
    return {entry.attempt for entry in _entries(physical)}


def _names(physical: Iterable[Physical]) -> set[Name]:
    return {file.name for file in physical}


def _named(state: State, names: set[Name]) -> list[Physical]:
    return [file for file in state.physical if file.name in names]


def _without(state: State, name: Name) -> frozenset[Physical]:
    return frozenset(file for file in state.physical if file.name != name)


def _listed_there(state: State, run: Run) -> Run:
    return run._replace(listing=state.physical, has_read=False)


def _ended(state: State, number: int) -> State:
    return _with(state, number, state.runs[number]._replace(step="ended", moving=None))


def _with(state: State, number: int, run: Run) -> State:
    return state._replace(runs=put(state.runs, number, run))
