"""A damaged or missing stream is replaced by streams of other retained versions that have the same state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError
from spark_statestore.files.failures import failing_to
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import CheckpointMetadata
from spark_statestore.store.reader import damaged_streams, stream_error
from spark_statestore.store.retention import parse_listing

_logger = logging.getLogger(__name__)

T = TypeVar("T")

Damage = Mapping[ChainEntry, CheckpointNotFoundError | CorruptCheckpointError]
"""The damaged and missing streams of a version, with the error of each."""

NOTHING: Final = -1
"""In the place of a version: what a full snapshot applies to."""

_MOST_NAMED: Final = 5


def read_healed(
    store: StoreDirectory,
    name: CheckpointName,
    metadata: CheckpointMetadata,
    read_streams: Callable[[CheckpointMetadata], T],
) -> T:
    """Return the result of a function that reads all streams of a version, after damage once more without it.

    Raise the error of the function if nothing covers the damage, see `heal`.
    """
    try:
        return read_streams(metadata)
    except CorruptCheckpointError:
        damage = damaged_streams(store, name, metadata)
        if not damage:
            raise
    return read_streams(heal(store, name, metadata, damage))


def readable_metadata(
    store: StoreDirectory, name: CheckpointName, attempt_id: str | None = None
) -> CheckpointMetadata:
    """Return a version's metadata for a reader that verifies the state inside of it, see `read_healed`."""
    try:
        return store.metadata(name, attempt_id)
    except CorruptCheckpointError:
        described = _described_attempt(store, name, attempt_id)
        if described is None:
            raise
        return described


def _described_attempt(
    store: StoreDirectory, name: CheckpointName, attempt_id: str | None
) -> CheckpointMetadata | None:
    """Return the verified metadata of an attempt at a version, by default of any; None if there is none."""
    for end in ("",) if attempt_id is None else ("", f".{attempt_id}"):
        described = store.described(name, f"{METADATA_FILE_NAME}{end}")
        if described is not None and attempt_id in (None, described.attempt_id):
            return described
    return None


def heal(
    store: StoreDirectory,
    name: CheckpointName,
    metadata: CheckpointMetadata,
    damage: Damage,
) -> CheckpointMetadata:
    """Return a version's metadata with a chain of which every stream was read and verified.

    Its damaged streams, see `damaged_streams`, are replaced by streams that the version's ancestors and
    descendants use, if these lead to exactly the same state. Nothing is written or deleted.

    Raises
    ------
    CheckpointNotFoundError, CorruptCheckpointError
        The first error of `damage`, if nothing covers a damaged stream.
    CheckpointIOError
        If storage fails, so that it is unknown what is damaged.
    """
    streams = _Streams(store, name)
    streams.errors = {entry: damage.get(entry) for entry in metadata.handle}
    steps = [step for past in _ancestors(store, name, metadata) for step in steps_of(past.handle)]
    handle = streams.intact_chain(steps)
    if handle is None:
        steps += [step for later in _descendants(store, name, metadata) for step in steps_of(later.handle)]
        handle = streams.intact_chain(steps)
    if handle is None:
        raise next(iter(damage.values()))
    _log(store, name, damage, [entry for entry in handle if entry not in metadata.handle.entries])
    return replace(metadata, handle=handle)


def _log(
    store: StoreDirectory,
    name: CheckpointName,
    damage: Iterable[ChainEntry],
    substitutes: Sequence[ChainEntry],
) -> None:
    named = [entry.state.stream_state_handle_id for entry in substitutes[:_MOST_NAMED]]
    if len(substitutes) > len(named):
        named.append(f"{len(substitutes) - len(named)} more")
    _logger.warning(
        "%s: the streams %s are damaged or missing. The same state is read from %s instead.",
        store.where(name),
        ", ".join(entry.state.stream_state_handle_id for entry in damage),
        ", ".join(named) or "the other streams of its chain",
    )


@dataclass(frozen=True, slots=True)
class Step:
    """A stream that leads from one version to another; without a stream, both have the same state."""

    start: int
    end: int
    entry: ChainEntry | None


def steps_of(handle: IncrementalStateHandle) -> Iterator[Step]:
    """Yield the steps of a chain, up to its version."""
    at = NOTHING
    if not any(entry.full for entry in handle):
        # The base has no rows.
        at = handle.base_version
        yield Step(NOTHING, at, None)
    for entry in handle:
        if not entry.full and at < entry.parent_version:
            yield Step(at, entry.parent_version, None)
        yield Step(entry.parent_version, entry.version, entry)
        at = entry.version
    if at < handle.version:
        yield Step(at, handle.version, None)


class _Streams:
    """The streams of a version and its relatives, each read once."""

    def __init__(self, store: StoreDirectory, name: CheckpointName) -> None:
        self._store = store
        self._name = name
        self.errors: dict[ChainEntry, CheckpointNotFoundError | CorruptCheckpointError | None] = {}

    def _is_intact(self, entry: ChainEntry) -> bool:
        if entry not in self.errors:
            self.errors[entry] = stream_error(self._store, self._name, entry)
        return self.errors[entry] is None

    def intact_chain(self, steps: Iterable[Step]) -> IncrementalStateHandle | None:
        """Return the smallest chain of intact streams that leads to the version; None if there is none."""
        usable = sorted(set(steps), key=lambda step: step.start)
        while True:
            usable = [step for step in usable if step.entry is None or self.errors.get(step.entry) is None]
            chain = smallest_chain(usable, self._name.version)
            if chain is None or not [entry for entry in chain if not self._is_intact(entry)]:
                return chain


def smallest_chain(steps: Iterable[Step], version: int) -> IncrementalStateHandle | None:
    """Return the chain of the fewest bytes that leads to a version, of steps in the order of their starts."""
    # By version: bytes, version of the base, streams. All steps to a version come before those that leave it.
    best: dict[int, tuple[int, int, tuple[ChainEntry, ...]]] = {NOTHING: (0, NOTHING, ())}
    for step in steps:
        if step.start not in best:
            continue
        size, base, entries = best[step.start]
        if step.entry is not None:
            size, entries = size + step.entry.state.state_size, (*entries, step.entry)
        if step.end not in best or size < best[step.end][0]:
            best[step.end] = size, step.end if step.start == NOTHING else base, entries
    if version not in best:
        return None
    _, base, entries = best[version]
    return IncrementalStateHandle(version, base, entries)


def _ancestors(
    store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[CheckpointMetadata]:
    """Yield a version and its retained ancestors, the newest first.

    Each is the attempt that the next one names as its parent: not one that Spark did not accept, nor one of
    before a rollback.
    """
    ancestor: CheckpointMetadata | None = metadata
    while ancestor is not None:
        yield ancestor
        parent = ancestor.parent_attempt_id
        if parent is None:
            return
        past = CheckpointName(ancestor.version - 1, None if name.id is None else parent)
        ancestor = _described_attempt(store, past, parent)


def _descendants(
    store: StoreDirectory, name: CheckpointName, metadata: CheckpointMetadata
) -> Iterator[CheckpointMetadata]:
    """Yield the retained versions whose metadata leads back to a version, the oldest first."""
    with failing_to("list", store.files, store.directory):
        listed = parse_listing(store.directory, store.files.list_files(store.directory)).checkpoints
    lineage = {(name.version, metadata.attempt_id)}
    for later in sorted((n for n in listed if n.version > name.version), key=lambda n: n.version):
        for file in (file for file in sorted(listed[later]) if file.startswith(METADATA_FILE_NAME)):
            descendant = store.described(later, file)
            if descendant is not None and (later.version - 1, descendant.parent_attempt_id) in lineage:
                lineage.add((later.version, descendant.attempt_id))
                yield descendant
