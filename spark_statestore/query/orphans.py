"""Selection of a store's orphaned files, without I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_statestore.files import join
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.store.metadata import CheckpointMetadata
from spark_statestore.store.retention import StoreListing

STAGING_PREFIX: Final = ".inprogress."
"""Prefix of temporary files, which are renamed or linked when complete."""


@dataclass(frozen=True, slots=True)
class CommittedAttempts:
    """The attempts that Spark's commit log names, in checkpoint format v2.

    Attributes
    ----------
    attempts
        Ids of the committed attempts, by version and operator.
    rolled_back
        Ids of the committed attempts of batches that were rolled back.
    held_versions
        Versions that retention holds name.
    versions_in_use
        Those that an operation holds while it reads or writes them.
    last
        Version committed by the newest batch; 0 if there is none.
    """

    attempts: Mapping[int, Mapping[int, frozenset[str]]]
    rolled_back: frozenset[str]
    held_versions: frozenset[int]
    versions_in_use: frozenset[int]
    last: int

    @property
    def needed(self) -> range:
        """The versions that a batch of the logs may need, beside the held ones.

        These are all versions if batches were rolled back.
        """
        if self.rolled_back or not self.attempts:
            return range(sys.maxsize)
        return range(min(self.attempts), self.last + 1)

    def is_past(self, name: CheckpointName) -> bool:
        """Return True if a version is of a batch before those of Spark's logs, and is not held."""
        return (
            bool(self.attempts)
            and name.version < min(self.attempts)
            and name.version not in self.held_versions
        )

    def supersedes(self, operator: int, name: CheckpointName) -> bool:
        """Return True if Spark committed another attempt at the version, so that it never loads this one."""
        if name.id is None or name.id in self.rolled_back or name.version in self.held_versions:
            return False
        committed = self.attempts.get(name.version, {}).get(operator)
        return committed is not None and name.id not in committed

    def is_uncommitted(self, name: CheckpointName, newest: int) -> bool:
        """Return True if a version belongs to the uncommitted batch of a stopped query.

        If the newest version of the store is newer than that batch's, another query with a newer log uses the
        store.
        """
        undecided = name.id not in self.rolled_back and name.version not in self.held_versions
        return name.id is not None and undecided and name.version == newest == self.last + 1


@dataclass(slots=True)
class StoreFiles:
    """The files of a store, with parsed metadata.

    Attributes
    ----------
    listing
        Its versions' directories and shared streams.
    metadata
        Parsed metadata objects, by version and file name.
    staging
        Temporary files.
    newest
        Version committed by the newest batch; None if that batch does not have the store.
    """

    operator: int
    directory: str
    listing: StoreListing
    newest: CheckpointName | None
    metadata: dict[tuple[CheckpointName, str], CheckpointMetadata] = field(default_factory=dict)
    staging: list[str] = field(default_factory=list)

    def paths(self, name: CheckpointName) -> list[str]:
        """Return the paths of a version's files, metadata first.

        Once the metadata is deleted, the version does not exist.
        """
        names = sorted(self.listing.checkpoints[name], key=lambda file: (file != METADATA_FILE_NAME, file))
        return [join(self.directory, name.directory, file) for file in names]

    @property
    def oldest_snapshot_in_use(self) -> int:
        """Base version of the newest version's handle, so that older snapshots are unused; -1 if unknown."""
        if self.newest is None:
            return -1
        newest = self.metadata.get((self.newest, METADATA_FILE_NAME))
        return -1 if newest is None else newest.handle.base_version

    def may_cover_newest(self, name: CheckpointName) -> bool:
        """Return True if a later version has the state of the newest batch's version in other streams.

        A load of that one reads them if its own are damaged, see `heal`.
        """
        newest = None if self.newest is None else self.metadata.get((self.newest, METADATA_FILE_NAME))
        later = self.metadata.get((name, METADATA_FILE_NAME))
        if newest is None or later is None or later.parent_attempt_id != newest.attempt_id:
            return False
        return any(
            entry.version <= newest.version and entry not in newest.handle.entries for entry in later.handle
        )


def orphans(
    store: StoreFiles,
    decided: CommittedAttempts,
    is_old: Callable[[str], bool],
    *,
    stopped: bool,
    purge: bool = False,
) -> dict[str, str]:
    """Return the orphaned files of a store that are old enough: reasons by path, in the order of deletion.

    A stopped query uses only files that metadata references; a running one may be about to reference others.
    Versions before the oldest batch of the logs are orphans in a store that the newest batch does not have,
    as after a rescale in place, and with `purge` in all stores, unless others need them. What a write in
    place has written, and not published, is of a version in use.
    """
    unneeded: dict[CheckpointName, str] = {}
    newest = max((name.version for name in store.listing.checkpoints), default=0)
    for name, files in store.listing.checkpoints.items():
        if name.version in decided.versions_in_use:
            continue
        if METADATA_FILE_NAME not in files:
            unneeded[name] = "its version was not published"
        elif decided.supersedes(store.operator, name):
            unneeded[name] = "Spark committed another attempt at its version"
        elif stopped and decided.is_uncommitted(name, newest) and not store.may_cover_newest(name):
            unneeded[name] = "its batch is not committed, and Spark runs it again"
        elif store.newest is None and decided.is_past(name):
            unneeded[name] = "its partition is gone, and its batch is not in Spark's logs any more"
        elif purge and name.version < decided.needed.start and name.version not in decided.held_versions:
            unneeded[name] = "its batch is not in Spark's logs any more"
    unneeded = {name: why for name, why in unneeded.items() if all(map(is_old, store.paths(name)))}
    needed: set[str] = set()
    while True:
        for (name, _), metadata in store.metadata.items():
            if name not in unneeded:
                needed.update(_streams(metadata))
        # A version whose files a retained version references is retained too.
        needed_names = [name for name in unneeded if not needed.isdisjoint(store.paths(name))]
        if not needed_names:
            break
        for name in needed_names:
            del unneeded[name]
    reasons = {path: why for name, why in unneeded.items() for path in store.paths(name)}
    for path, version in sorted(store.listing.shared.items()):
        if version in decided.versions_in_use:
            continue
        # The next commit of a running query may reference a newer snapshot.
        if path not in needed and is_old(path) and (stopped or version <= store.oldest_snapshot_in_use):
            reasons[path] = "no metadata refers to it"
    for path in store.staging:
        # The name does not have the version.
        if is_old(path) and not decided.versions_in_use:
            reasons.setdefault(path, "it is a partial file")
    return reasons


def _streams(metadata: CheckpointMetadata) -> Iterator[str]:
    """Yield the paths of the files that a version references."""
    for entry in metadata.handle:
        stream = entry.state.delegate_state_handle
        if isinstance(stream, SegmentFileStateHandle):
            yield stream.path
            yield f"{stream.path}.{stream.attempt_id}"
        elif isinstance(stream, FileStateHandle):
            yield stream.path
