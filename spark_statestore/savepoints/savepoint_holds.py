"""Retention holds of savepoints and copies, by the protocol in `spark_statestore.store.holds`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from spark_statestore._version import __version__
from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    IllegalStateError,
    SavepointError,
    StateStoreError,
    StorageURLError,
)
from spark_statestore.files import FileSystem, join, open_file_system, parent_of, split_url
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.parallel import parallel_map
from spark_statestore.query.query_checkpoint import (
    COMMITS,
    METADATA,
    ROLLED_BACK,
    STATE,
    QueryCheckpoint,
    StoreVersion,
)
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.query.savepoint_lookup import (
    is_or_was_savepoint,
    is_savepoint_there,
    load_savepoint,
    require_savepoint,
)
from spark_statestore.query.store_snapshot import make_durable, require_streams
from spark_statestore.storage.file_handles import discard_durably
from spark_statestore.store.holds import (
    HOLDS_DIRECTORY,
    Holds,
    announce_holds,
    in_place_hold_name,
    is_in_place_hold,
    read_holds,
    temporary_hold_name,
    withdraw_announcement,
)
from spark_statestore.store.metadata import StoreId

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold, a file which excludes one version of every store from cleanups.

    Attributes
    ----------
    attempts
        The attempt that wrote each store's version when it was held.
    """

    files: FileSystem
    path: str
    version: int
    attempts: dict[StoreId, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def is_in_place(self) -> bool:
        """True if it is on what is written in place, for as long as that takes."""
        return is_in_place_hold(self.name)

    @property
    def url(self) -> str:
        """URL of the file."""
        return self.files.url(self.path)

    def holder(self) -> str | None:
        """Return the URL of the savepoint or copy that needs it.

        Return None if the hold is gone or does not name one.
        """
        try:
            return str(parse_json(read_file(self.files, self.path))["holder"])
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None

    def exists(self) -> bool:
        """Return True if it exists."""
        with failing_to("look for", self.files, self.path):
            return self.files.exists(self.path)

    def remove(self) -> None:
        """Remove it, so that the next cleanup may discard the version."""
        # If it reappeared after a power failure, it would retain a version that no savepoint or copy needs.
        discard_durably(self.files, self.path)


def hold(
    checkpoint: QueryCheckpoint,
    batch: int,
    name: str,
    holder: str,
    *,
    check: bool = True,
    announce: bool = True,
) -> Hold:
    """Hold the state of a batch.

    The hold is written first. Then it is verified that the batch is still committed, that no cleanup which
    did not see the hold can discard its versions, and that all of their files exist; otherwise the hold is
    removed. Without `check`, a read of the state fails if the hold was too late. Without `announce`, it is
    for collections alone, and cleanups may ignore it. `holder` is the URL of what needs it, for information.
    """
    new_hold = _at(checkpoint.state_url, batch + 1, name)
    is_savepoint = is_or_was_savepoint(checkpoint)
    content = {
        "holder": holder,
        "batch": batch,
        "createdMs": time.time_ns() // 1_000_000,
        "writtenBy": __version__,
    }
    try:
        with failing_to("write the hold", new_hold.files, new_hold.path):
            if announce:
                announce_holds(new_hold.files, new_hold.path.rpartition("/")[0])
            new_hold.files.make_directory(parent_of(new_hold.path))
            new_hold.files.create(new_hold.path, json.dumps(content).encode())
        if is_savepoint:
            require_savepoint(checkpoint)
        elif _is_gone(checkpoint):
            raise CheckpointNotFoundError(
                f"the checkpoint {checkpoint.url} was removed when its state was to be held. Use another one."
            )
        if check:
            new_hold.attempts.update(_require_retained(checkpoint, batch, new_hold))
    except BaseException:
        with contextlib.suppress(CheckpointIOError):
            new_hold.remove()
            if not is_savepoint_there(checkpoint) if is_savepoint else _is_gone(checkpoint):
                _remove_remains(checkpoint, new_hold)
        raise
    return new_hold


def _is_gone(checkpoint: QueryCheckpoint) -> bool:
    identity = checkpoint.path(METADATA)
    with failing_to("look for", checkpoint.files, identity):
        if checkpoint.files.exists(identity):
            return False
    # Spark writes a missing one again.
    return not checkpoint.batches()


def _remove_remains(checkpoint: QueryCheckpoint, old_hold: Hold) -> None:
    """Remove what a hold has left in a savepoint or checkpoint that was removed meanwhile."""
    directory = parent_of(old_hold.path)
    if old_hold.files.url(directory) != f"{checkpoint.url}/{STATE}/{HOLDS_DIRECTORY}":
        # The state of a pointer savepoint is in the checkpoint of a query, whose cleanups look for holds.
        return
    if not _list(old_hold.files, directory).versions:
        withdraw_announcement(old_hold.files, directory)
    for place in (directory, parent_of(directory), checkpoint.root):
        # Fails for one that is not empty, as intended.
        with contextlib.suppress(OSError):
            old_hold.files.delete_directory(place)


def hold_of(savepoint: Savepoint) -> Hold | None:
    """Return the hold of a pointer savepoint; None for a canonical one, or one of a query without state."""
    if savepoint.kind == "canonical" or not savepoint.attempts:
        return None
    return _at(savepoint.state_url, savepoint.batch + 1, savepoint.name)


def own_hold_of(savepoint: Savepoint) -> Hold | None:
    """Return the hold of a pointer savepoint if it names this savepoint as its holder, else None.

    The metadata of a copied directory, and forged metadata, refer to the hold of another savepoint.
    """
    if (state_hold := hold_of(savepoint)) is None or (holder := state_hold.holder()) is None:
        return None
    if _same_location(holder, savepoint.path):
        return state_hold
    _logger.warning(
        "the hold %s of %s stays: %s is at another location, so it was copied, moved or forged. Of a "
        "savepoint that was moved, remove the hold with spark-statestore holds --remove.",
        state_hold.url,
        holder,
        savepoint,
    )
    return None


def list_holds(checkpoint: QueryCheckpoint) -> list[Hold]:
    """Return all holds on a checkpoint's state, oldest version first."""
    files, directory = _directory(checkpoint.state_url)
    holds = _list(files, directory)
    ordered = sorted(holds.versions.items(), key=lambda hold: (hold[1], hold[0]))
    return [Hold(files, join(directory, name), version) for name, version in ordered]


def holders_of(checkpoint: QueryCheckpoint) -> str:
    """Return the savepoints and copies that need a checkpoint's state, as text; empty without any."""
    holds = [state_hold for state_hold in list_holds(checkpoint) if not state_hold.is_in_place]
    return ", ".join(
        f"{state_hold.holder() or 'an unknown holder'} (hold {state_hold.url})" for state_hold in holds
    )


@contextlib.contextmanager
def held_while(checkpoint: QueryCheckpoint, batch: int, holder: str) -> Iterator[Hold]:
    """Hold the state of a batch, or a savepoint, within a context; a killed process leaves the hold."""
    with _removed_at_end(hold(checkpoint, batch, temporary_hold_name(), holder, check=False)) as state_hold:
        yield state_hold


@contextlib.contextmanager
def held_in_place(checkpoint: QueryCheckpoint, batch: int) -> Iterator[Hold]:
    """Keep collections from the attempts at a batch that are written in place, until they are published.

    Cleanups retain the batch, so they need not list the holds from now on.
    """
    name = in_place_hold_name()
    with _removed_at_end(
        hold(checkpoint, batch, name, checkpoint.url, check=False, announce=False)
    ) as state_hold:
        yield state_hold


def release_in_place(checkpoint: QueryCheckpoint) -> None:
    """Remove the holds of writes in place that were killed. One that goes on fails, and changes nothing."""
    for state_hold in list_holds(checkpoint):
        if state_hold.is_in_place:
            with failing_to("remove", state_hold.files, state_hold.path):
                state_hold.remove()


@contextlib.contextmanager
def _removed_at_end(state_hold: Hold) -> Iterator[Hold]:
    try:
        yield state_hold
    finally:
        # The operation is complete; `gc` removes a remaining hold.
        with contextlib.suppress(CheckpointIOError):
            state_hold.remove()


def require_unremoved(state_hold: Hold, missing: Iterable[str | None]) -> None:
    """Raise if state that was written under a hold, or the hold, was removed before it is published.

    `missing` has the URLs of files that do not exist.
    """
    url = next(filter(None, missing), None)
    # Since the hold is there after the files, no collection has begun to remove them.
    if url is None and not state_hold.exists():
        url = state_hold.url
    if url is not None:
        raise state_removed(url)


def state_removed(url: str) -> IllegalStateError:
    """Build the error for a file of state that was written in place and is missing."""
    return IllegalStateError(
        f"the state that was just written is not whole: another process has removed {url}, such as a "
        "collection ('spark-statestore gc') when the write took more than a day, or 'spark-statestore holds "
        "--remove'. Let it end, then try again; the query has its state of before."
    )


def _same_location(holder: str, path: str) -> bool:
    if holder == path:
        return True
    with contextlib.suppress(StorageURLError):
        (scheme, location), (other_scheme, other_location) = split_url(holder), split_url(path)
        # Links may lead to the same local directory.
        return scheme == other_scheme == "file" and os.path.realpath(location) == os.path.realpath(
            other_location
        )
    return False


def _require_retained(checkpoint: QueryCheckpoint, batch: int, new_hold: Hold) -> dict[StoreId, str]:
    versions = checkpoint.stores(batch)
    holds = _list(new_hold.files, new_hold.path.rpartition("/")[0])
    if new_hold.name not in holds.versions:
        raise SavepointError(
            f"the hold {new_hold.url} was removed during the verification. Nothing was changed; try again."
        )
    if not _is_held_by_savepoint(new_hold, holds):
        oldest = holds.oldest_safe(_newest_version(checkpoint), new_hold.name)
        if new_hold.version < oldest:
            raise SavepointError(
                f"batch {batch} of {checkpoint.url} cannot be held: a cleanup may be discarding its state. "
                f"{_remedy(checkpoint, oldest - 1)} Nothing was changed."
            )

    def keep(version: StoreVersion) -> str:
        metadata = require_streams(checkpoint, version)
        make_durable(checkpoint, version, metadata)
        return metadata.attempt_id

    attempts = parallel_map(keep, versions)
    return {version.store: attempt_id for version, attempt_id in zip(versions, attempts, strict=True)}


def _remedy(checkpoint: QueryCheckpoint, oldest: int) -> str:
    if oldest > (newest := checkpoint.newest_batch()):
        return (
            f"The batches after {newest} were rolled back, and a cleanup that began before that may still "
            f"run. Take a canonical savepoint, which copies the state, or a pointer to batch {oldest} once "
            "the query has committed it."
        )
    return (
        f"The query retains the state of batch {oldest} and later ones. Take the savepoint of one of those, "
        "or a canonical one, which copies the state."
    )


def _is_held_by_savepoint(new_hold: Hold, holds: Holds) -> bool:
    """Return True if an existing savepoint holds the same version, so that cleanups already retain it."""
    for name, version in holds.versions.items():
        if version == new_hold.version and name != new_hold.name:
            other_hold = Hold(new_hold.files, join(new_hold.path.rpartition("/")[0], name), version)
            try:
                if (holder := other_hold.holder()) and hold_of(load_savepoint(holder)) == other_hold:
                    return True
            except StateStoreError:
                continue
    return False


def _newest_version(checkpoint: QueryCheckpoint) -> int:
    # Also of rolled back batches: a cleanup that an executor started before the rollback may still run.
    batches = list(checkpoint.batches())
    directory = checkpoint.path(ROLLED_BACK)
    with failing_to("list", checkpoint.files, directory):
        for status in checkpoint.files.list_files(directory):
            *_, log, name = status.path.split("/")
            if log == COMMITS and name.isascii() and name.isdigit():
                batches.append(int(name))
    return max(batches) + 1


def _at(state_url: str, version: int, name: str) -> Hold:
    files, directory = _directory(state_url)
    return Hold(files, join(directory, f"{version}-{name}"), version)


def _directory(state_url: str) -> tuple[FileSystem, str]:
    # A savepoint must not outlive its hold.
    files, state = open_file_system(state_url, fsync=True)
    return files, join(state, HOLDS_DIRECTORY)


def _list(files: FileSystem, directory: str) -> Holds:
    with failing_to("list the holds in", files, directory):
        return read_holds(files, directory)
