"""Which files of a store nothing needs: pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_statestore.checkpoint.files import join
from spark_statestore.checkpoint.ledger import Inventory
from spark_statestore.checkpoint.metadata import CheckpointMetadata
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.state.handles import FileStateHandle, SegmentFileStateHandle

__all__ = ["STAGING_PREFIX", "Decided", "StoreFiles", "orphans"]

STAGING_PREFIX: Final = ".inprogress."
"""Starts the name of a file that is being written and then renamed or linked."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What Spark's commit log says of attempts, in checkpoint format v2.

    Attributes
    ----------
    attempts
        Ids of the attempts that count: by version, and by operator.
    rolled_back
        Ids of the attempts that counted in batches that were rolled back.
    pinned
        Versions that pins keep.
    last
        The version that the newest batch left, 0 if none is done.
    """

    attempts: Mapping[int, Mapping[int, frozenset[str]]]
    rolled_back: frozenset[str]
    pinned: frozenset[int]
    last: int

    def against(self, operator: int, name: CheckpointName) -> bool:
        """Whether Spark has decided for other attempts at a version, and will never ask for this one."""
        if name.id is None or name.id in self.rolled_back or name.version in self.pinned:
            return False
        known = self.attempts.get(name.version, {}).get(operator)
        return known is not None and name.id not in known

    def will_be_run_again(self, name: CheckpointName, newest: int) -> bool:
        """Whether a version is of the batch that was begun, by a query that has stopped since.

        Parameters
        ----------
        newest
            The newest version that the store has. If it is newer than that of the batch that was begun, there is
            another, newer log than this one.
        """
        undecided = name.id not in self.rolled_back and name.version not in self.pinned
        return name.id is not None and undecided and name.version == newest == self.last + 1


@dataclass(slots=True)
class StoreFiles:
    """The files of a store and what they say.

    Attributes
    ----------
    operator
        The store's operator.
    directory
        Path of its directory.
    inventory
        Its versions' directories and shared streams.
    metadata
        What each metadata object says, by version and name of the file.
    staging
        Files that were being written, and belong to nothing yet.
    newest
        The version that the newest batch left, None if the store is none of the newest batch's.
    """

    operator: int
    directory: str
    inventory: Inventory
    newest: CheckpointName | None
    metadata: dict[tuple[CheckpointName, str], CheckpointMetadata] = field(default_factory=dict)
    staging: list[str] = field(default_factory=list)

    def paths(self, name: CheckpointName) -> list[str]:
        """Paths of all files of a version, its metadata first: without that it is not found any more."""
        names = sorted(self.inventory.checkpoints[name], key=lambda file: (file != METADATA_FILE_NAME, file))
        return [join(self.directory, name.directory, file) for file in names]

    @property
    def oldest_snapshot_in_use(self) -> int:
        """The snapshot that the newest version starts from: older ones are never used again; -1 if not known."""
        if self.newest is None:
            return -1
        newest = self.metadata.get((self.newest, METADATA_FILE_NAME))
        return -1 if newest is None else newest.handle.base_version


def orphans(
    store: StoreFiles, decided: Decided, is_old: Callable[[str], bool], *, stopped: bool
) -> dict[str, str]:
    """The files that nothing needs.

    Parameters
    ----------
    is_old
        Whether a file has been there for long enough.
    stopped
        Whether the query does not run, and so uses nothing but what metadata names.

    Returns
    -------
    dict of str to str
        By path, why nothing needs it; in the order in which they are to be removed.
    """
    unneeded: dict[CheckpointName, str] = {}
    newest = max((name.version for name in store.inventory.checkpoints), default=0)
    for name, files in store.inventory.checkpoints.items():
        if METADATA_FILE_NAME not in files:
            unneeded[name] = "its version was never published"
        elif decided.against(store.operator, name):
            unneeded[name] = "Spark decided for another attempt at its version"
        elif stopped and decided.will_be_run_again(name, newest):
            unneeded[name] = "its batch was never finished, and will be run again"
    unneeded = {name: why for name, why in unneeded.items() if all(map(is_old, store.paths(name)))}
    needed: set[str] = set()
    while True:
        for (name, _), metadata in store.metadata.items():
            if name not in unneeded:
                needed.update(_streams(metadata))
        # What a version that stays is built on stays too.
        kept = [name for name in unneeded if not needed.isdisjoint(store.paths(name))]
        if not kept:
            break
        for name in kept:
            del unneeded[name]
    found = {path: why for name, why in unneeded.items() for path in store.paths(name)}
    for path, version in sorted(store.inventory.shared.items()):
        # A query that runs may hold a newer snapshot, to be named by its next commit.
        if path not in needed and is_old(path) and (stopped or version <= store.oldest_snapshot_in_use):
            found[path] = "no metadata names it"
    for path in store.staging:
        if is_old(path):
            found.setdefault(path, "it was never finished")
    return found


def _streams(metadata: CheckpointMetadata) -> Iterator[str]:
    """Paths of the files that a version consists of."""
    for entry in metadata.handle:
        stream = entry.state.delegate_state_handle
        if isinstance(stream, SegmentFileStateHandle):
            yield stream.path
            yield f"{stream.path}.{stream.owner}"
        elif isinstance(stream, FileStateHandle):
            yield stream.path
