"""The lineage of a store's versions gives their ancestors, the net changes of each commit, and replay."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from spark_statestore.errors import CheckpointError, CheckpointNotFoundError, IllegalStateError
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.storage import CheckpointName
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.store.changelog import DELETE, MERGE, PUT
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.healing import read_healed
from spark_statestore.store.metadata import CheckpointMetadata, ColumnFamily
from spark_statestore.store.reader import read_version

Rows = dict[bytes, list[bytes]]
"""Keys and all values of each."""

_Change = tuple[int, bytes, bytes | None]

# Their metadata is read one after the other.
_MOST_LATER_VERSIONS: Final = 16

# Approximate bytes of a batch of computed changes.
_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PastVersion:
    """One attempt at a version, with its metadata."""

    name: CheckpointName
    metadata: CheckpointMetadata

    @property
    def is_full(self) -> bool:
        """True if its commit wrote a full snapshot instead of changes."""
        return self.metadata.handle.base_version == self.name.version

    @property
    def own_entries(self) -> list[ChainEntry]:
        """The chain entry that its commit wrote; empty if it changed nothing."""
        return [entry for entry in self.metadata.handle if entry.version == self.name.version]


def past_version(store: StoreDirectory, name: CheckpointName, attempt_id: str | None = None) -> PastVersion:
    """Return a version, or one attempt at it; see `StoreDirectory.load` for errors."""
    return PastVersion(name, store.metadata(name, attempt_id))


def lineage(store: StoreDirectory, newest: CheckpointName, oldest: int) -> list[PastVersion]:
    """Return a version's ancestors from `oldest` on and itself.

    Each is the attempt that the next one builds on.

    Raises
    ------
    CheckpointNotFoundError
        If one of them is not retained any more.
    """
    if not 1 <= oldest <= newest.version:
        raise IllegalStateError(f"version {oldest} is not an ancestor of version {newest.version}")
    versions = [past_version(store, newest)]
    while versions[-1].name.version > oldest:
        versions.append(_parent(store, versions[-1]))
    versions.reverse()
    return versions


def column_family_of(store: StoreDirectory, past: list[PastVersion], family_name: str) -> ColumnFamily:
    """Return the column family of a name in the newest of several versions that has it."""
    for version in reversed(past):
        for family in version.metadata.column_families:
            if family.name == family_name:
                return family
    names = sorted({family.name for version in past for family in version.metadata.column_families})
    raise CheckpointNotFoundError(
        f"{store.where(past[-1].name)} and the {len(past) - 1} versions before it have no column family "
        f"{family_name!r}, only {', '.join(names)}. Check the name, and that the operator had it in these "
        "batches."
    )


def replay(store: StoreDirectory, start: CheckpointName, end: CheckpointName) -> CheckpointMetadata:
    """Return a version's metadata with the chain of an earlier version and all changes since.

    The changes are those of each later commit. Snapshots that were uploaded in the background are not used. A
    full snapshot of a commit replaces the chain.

    Raises
    ------
    CheckpointNotFoundError
        If one of the versions is not retained any more, or `start` is not an ancestor of `end`.
    """
    first, *later = lineage(store, end, start.version)
    if start.id is not None and start.id != first.name.id:
        raise CheckpointNotFoundError(
            f"{store.where(end)} does not build on {start}, but on {first.name}: Spark has committed another "
            "attempt at the batch. Start from the id that Spark's commit log has for that batch."
        )
    base = first.metadata.handle.base_version
    entries = list(first.metadata.handle)
    for version in later:
        if version.is_full:
            base, entries = version.name.version, []
        entries += version.own_entries
    metadata = later[-1].metadata if later else first.metadata
    return replace(metadata, handle=IncrementalStateHandle(end.version, base, entries))


def streams_since(
    store: StoreDirectory, end: PastVersion, version: int, attempt_id: str
) -> list[ChainEntry] | None:
    """Return the streams that turn an attempt at an earlier version into a version, as they apply.

    They are the changes of each later commit. None if the version does not build on the attempt, a later
    commit wrote everything, or they are not fewer bytes than the version: then it is read as a whole.
    """
    if not end.name.version - _MOST_LATER_VERSIONS <= version < end.name.version:
        return None
    commit, entries, size = end, end.own_entries, _size(end)
    whole = end.metadata.handle.state_size
    try:
        while commit.name.version > version + 1 and not commit.is_full and size < whole:
            commit = _parent(store, commit)
            entries = commit.own_entries + entries
            size += _size(commit)
    except CheckpointError:
        return None
    is_built_on = commit.name.version == version + 1 and commit.metadata.parent_attempt_id == attempt_id
    return entries if is_built_on and not commit.is_full and size < whole else None


def _size(version: PastVersion) -> int:
    return sum(entry.state.state_size for entry in version.own_entries)


def changes(
    store: StoreDirectory, version: PastVersion, family_names: Collection[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the net changes of one commit to some column families, verified only once the iterator has ended.

    A commit's changes are stored, unless it wrote a full snapshot, or removed or replaced a column family:
    then they are computed as the difference to its parent, with all rows of both in memory.

    Raises
    ------
    CheckpointNotFoundError
        If the parent is needed, and not retained any more.
    """
    number = version.name.version
    # The stored changes apply to the column families that are older than the commit.
    stored = [
        family
        for family in version.metadata.column_families
        if family.name in family_names and family.created_at_version < number and not version.is_full
    ]
    if stored:
        yield from _read(store, version, stored, version.own_entries)
    compared = set(family_names).difference(family.name for family in stored)
    if compared:
        old = _rows(store, _parent(store, version), compared)[0] if number > 1 else {}
        new, merged = _rows(store, version, compared)
        for name in sorted(compared):
            difference = _difference(old.get(name, {}), new.get(name, {}), merged.get(name, set()))
            for batch in _batches(difference):
                yield name, batch


def _parent(store: StoreDirectory, version: PastVersion) -> PastVersion:
    parent = version.metadata.parent_attempt_id
    number = version.name.version - 1
    if version.name.id is None:
        return past_version(store, CheckpointName(number), parent)
    if parent is None:
        raise CheckpointNotFoundError(
            f"{store.where(version.name)} has no parent: it is the first version of a state that was copied "
            "or rescaled. "
            "Start from this version."
        )
    return past_version(store, CheckpointName(number, parent))


def _read(
    store: StoreDirectory,
    version: PastVersion,
    column_families: Iterable[ColumnFamily],
    entries: Iterable[ChainEntry],
) -> Iterator[tuple[str, pa.RecordBatch]]:
    handle = IncrementalStateHandle(
        version.name.version, version.metadata.handle.base_version, tuple(entries)
    )
    part = replace(version.metadata, column_families=tuple(column_families), handle=handle)
    return read_version(store, version.name, part)


def _rows(
    store: StoreDirectory, version: PastVersion, family_names: Collection[str]
) -> tuple[dict[str, Rows], dict[str, set[bytes]]]:
    """Return the rows of a version, and the keys whose first value was merged, by column family."""
    column_families = tuple(
        family for family in version.metadata.column_families if family.name in family_names
    )

    def applied(metadata: CheckpointMetadata) -> tuple[dict[str, Rows], dict[str, set[bytes]]]:
        rows: dict[str, Rows] = {family.name: {} for family in column_families}
        merged: dict[str, set[bytes]] = {family.name: set() for family in column_families}
        for name, batch in read_version(store, version.name, metadata):
            apply(rows[name], batch, merged[name])
        return rows, merged

    whole = replace(version.metadata, column_families=column_families)
    return read_healed(store, version.name, whole, applied)


def apply(rows: Rows, batch: pa.RecordBatch, merged: set[bytes] | None = None) -> None:
    """Apply a batch of changes to rows, and to the set of keys whose first value was merged."""
    first = set() if merged is None else merged
    columns = (column.to_pylist() for column in batch.columns)
    for op, key, value in zip(*columns, strict=True):
        if op == MERGE and key in rows:
            rows[key].append(value)
        elif op == DELETE:
            rows.pop(key, None)
        else:
            rows[key] = [value]
            (first.add if op == MERGE else first.discard)(key)


def _difference(old: Rows, new: Rows, merged: set[bytes]) -> Iterator[_Change]:
    """Yield the changes from old to new rows; keys in `merged` had no value before their first one."""
    for key in old:
        if key not in new:
            yield DELETE, key, None
    for key, values in new.items():
        before = old.get(key, [])
        if values == before:
            continue
        if before and values[: len(before)] == before:
            added = values[len(before) :]
        elif key in merged:
            if before:
                yield DELETE, key, None
            added = values
        else:
            yield PUT, key, values[0]
            added = values[1:]
        for value in added:
            yield MERGE, key, value


def _batches(computed: Iterator[_Change]) -> Iterator[pa.RecordBatch]:
    pending: list[_Change] = []
    size = 0
    for change in computed:
        pending.append(change)
        size += 16 + len(change[1]) + len(change[2] or b"")
        if size >= _BATCH_BYTES:
            yield _batch(pending)
            pending, size = [], 0
    if pending:
        yield _batch(pending)


def _batch(computed: list[_Change]) -> pa.RecordBatch:
    columns = zip(*computed, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CHANGE_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA)
