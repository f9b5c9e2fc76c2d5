"""What a store went through: the versions before a version, what each commit changed, and how to replay it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from spark_statestore.checkpoint.metadata import CheckpointMetadata, NamedState
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.checkpoint.versions import VersionStore
from spark_statestore.errors import CheckpointNotFoundError, IllegalStateError
from spark_statestore.state.changes import APPEND, CHANGE_SCHEMA, PUT, REMOVE
from spark_statestore.state.handles import IncrementalStateHandle
from spark_statestore.state.handles.incremental import ChainEntry

__all__ = ["PastVersion", "apply", "changes", "described_state", "lineage", "past_version", "replay"]

Rows = dict[bytes, list[bytes]]
"""Keys and all values of each."""

_Change = tuple[int, bytes, bytes | None]

# Changes that are not stored as such are sent in batches of about so many bytes.
_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PastVersion:
    """One attempt at a version, and what its metadata says.

    Attributes
    ----------
    name
        The version; in Spark's checkpoint format v2 the name has the attempt as its id.
    metadata
        Its metadata.
    """

    name: CheckpointName
    metadata: CheckpointMetadata

    @property
    def is_whole(self) -> bool:
        """Whether its commit wrote everything, and not what it changed."""
        return self.metadata.handle.base_version == self.name.version

    @property
    def own_entries(self) -> list[ChainEntry]:
        """What its commit wrote: one entry of the chain, none if it changed nothing."""
        return [entry for entry in self.metadata.handle if entry.version == self.name.version]


def past_version(store: VersionStore, name: CheckpointName, attempt: str | None = None) -> PastVersion:
    """A version, or one attempt at it.

    Raises
    ------
    CheckpointError
        See `VersionStore.load`.
    """
    return PastVersion(name, store.metadata(name, attempt))


def lineage(store: VersionStore, newest: CheckpointName, oldest: int) -> list[PastVersion]:
    """The versions that led to a version, each as the attempt on which the next one builds.

    Parameters
    ----------
    oldest
        The first of them, from 1.

    Returns
    -------
    list of PastVersion
        From the oldest to the newest.

    Raises
    ------
    CheckpointNotFoundError
        If one of them is not retained any more.
    CheckpointError
        If one cannot be read, see `VersionStore.load`.
    """
    if not 1 <= oldest <= newest.version:
        raise IllegalStateError(f"no versions from {oldest} to {newest.version} can be followed")
    found = [past_version(store, newest)]
    while found[-1].name.version > oldest:
        found.append(_before(store, found[-1]))
    found.reverse()
    return found


def described_state(store: VersionStore, past: list[PastVersion], wanted: str) -> NamedState:
    """What the newest of several versions that has a state says of it.

    Raises
    ------
    CheckpointNotFoundError
        If none of them has it.
    """
    for version in reversed(past):
        for state in version.metadata.states:
            if state.name == wanted:
                return state
    names = sorted({state.name for version in past for state in version.metadata.states})
    raise CheckpointNotFoundError(
        f"{store.where(past[-1].name)} and the {len(past) - 1} versions before it have no state {wanted!r}, they have "
        f"{', '.join(names)}. Check the name, and that the operator had it in these batches."
    )


def replay(store: VersionStore, start: CheckpointName, end: CheckpointName) -> CheckpointMetadata:
    """A version as its past tells it: what an earlier version is made of, and each later commit's changes.

    No snapshot is used that was written in the background since. A commit that wrote everything is
    where it starts over.

    Parameters
    ----------
    start
        The earlier version. Its id need not be given.
    end
        The version.

    Returns
    -------
    CheckpointMetadata
        The metadata of `end`, with the chain to read instead of its own.

    Raises
    ------
    CheckpointNotFoundError
        If a version of them is not retained any more, or `start` is not of the past of `end`.
    CheckpointError
        If one cannot be read, see `VersionStore.load`.
    """
    first, *later = lineage(store, end, start.version)
    if start.id is not None and start.id != first.name.id:
        raise CheckpointNotFoundError(
            f"{store.where(end)} does not build on {start}, but on {first.name}: another attempt at the batch was "
            "accepted. Start from the id that Spark's commit log has for that batch."
        )
    base = first.metadata.handle.base_version
    entries = list(first.metadata.handle)
    for version in later:
        if version.is_whole:
            base, entries = version.name.version, []
        entries += version.own_entries
    metadata = later[-1].metadata if later else first.metadata
    return replace(metadata, handle=IncrementalStateHandle(end.version, base, entries))


def changes(
    store: VersionStore, version: PastVersion, wanted: Collection[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """What one commit changed, key by key, net.

    A commit's changes are stored as such, unless it wrote everything, or removed or replaced a state:
    then they are the difference to the version before, of which all rows are held in memory.

    Parameters
    ----------
    wanted
        Names of the states to look at.

    Yields
    ------
    tuple of str and pyarrow.RecordBatch
        As `VersionStore.read`, and sound only once the iterator has ended.

    Raises
    ------
    CheckpointNotFoundError
        If the version before is needed, and not retained any more.
    CheckpointError
        If a version cannot be read, see `VersionStore.load`.
    """
    number = version.name.version
    states = {state.name: state for state in version.metadata.states if state.name in wanted}
    # A state that is older than the commit, and still there, is what the commit's changes apply to.
    stored = {} if version.is_whole else {n: s for n, s in states.items() if s.since < number}
    if stored:
        yield from _read(store, version, stored.values(), version.own_entries)
    compared = {name for name in wanted if name not in stored}
    if compared:
        old = _rows(store, _before(store, version), compared) if number > 1 else {}
        new = _rows(store, version, compared)
        for name in sorted(compared):
            for batch in _batches(_difference(old.get(name, {}), new.get(name, {}))):
                yield name, batch


def _before(store: VersionStore, version: PastVersion) -> PastVersion:
    parent = version.metadata.parent_attempt
    number = version.name.version - 1
    if version.name.id is None:
        return past_version(store, CheckpointName(number), parent)
    if parent is None:
        raise CheckpointNotFoundError(
            f"{store.where(version.name)} does not say on which attempt at version {number} it builds: it was "
            "made as the first version of a state that was rewritten. Start from this version."
        )
    return past_version(store, CheckpointName(number, parent))


def _read(
    store: VersionStore, version: PastVersion, states: Iterable[NamedState], entries: Iterable[ChainEntry]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    number = version.name.version
    base = version.metadata.handle.base_version
    part = replace(
        version.metadata, states=tuple(states), handle=IncrementalStateHandle(number, base, tuple(entries))
    )
    return store.read(version.name, part)


def _rows(store: VersionStore, version: PastVersion, wanted: Collection[str]) -> dict[str, Rows]:
    states = [state for state in version.metadata.states if state.name in wanted]
    rows: dict[str, Rows] = {state.name: {} for state in states}
    for name, batch in _read(store, version, states, version.metadata.handle):
        apply(rows[name], batch)
    return rows


def apply(rows: Rows, batch: pa.RecordBatch) -> None:
    """Apply a batch of changes to rows."""
    columns = (column.to_pylist() for column in batch.columns)
    for op, key, value in zip(*columns, strict=True):
        if op == PUT:
            rows[key] = [value]
        elif op == APPEND:
            rows[key].append(value)
        else:
            rows.pop(key, None)


def _difference(old: Rows, new: Rows) -> Iterator[_Change]:
    for key in old:
        if key not in new:
            yield REMOVE, key, None
    for key, values in new.items():
        known = old.get(key, [])
        if values == known:
            continue
        if known and values[: len(known)] == known:
            added = values[len(known) :]
        else:
            yield PUT, key, values[0]
            added = values[1:]
        for value in added:
            yield APPEND, key, value


def _batches(found: Iterator[_Change]) -> Iterator[pa.RecordBatch]:
    waiting: list[_Change] = []
    size = 0
    for change in found:
        waiting.append(change)
        size += 16 + len(change[1]) + len(change[2] or b"")
        if size >= _BATCH_BYTES:
            yield _batch(waiting)
            waiting, size = [], 0
    if waiting:
        yield _batch(waiting)


def _batch(found: list[_Change]) -> pa.RecordBatch:
    columns = zip(*found, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CHANGE_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA)
