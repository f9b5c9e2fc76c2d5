"""Store of savepoints with their files and holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    OptionError,
    QueryRunningError,
)
from spark_statestore.files import FileSystem, join
from spark_statestore.files.failures import failing_to
from spark_statestore.operator_state.query_operator_state import OPERATOR_STATE_DIR
from spark_statestore.options import OPTION_PREFIX
from spark_statestore.query.orphans import STAGING_PREFIX
from spark_statestore.query.query_checkpoint import (
    COMMITS,
    METADATA,
    OFFSETS,
    RESERVED,
    SOURCES,
    STATE,
    QueryCheckpoint,
)
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.query.savepoint_lookup import savepoint_store, store_of
from spark_statestore.query.state_store import StateStore, locate
from spark_statestore.savepoints.savepoint_holds import holders_of, own_hold_of
from spark_statestore.storage import METADATA_FILE_NAME
from spark_statestore.storage.file_handles import discard_file

# In the order of removal: the file that identifies a checkpoint is replaced first and removed last, so that
# the rest is not accepted as a query without state, and Spark starts none. Other files in the directory are
# not this package's.
_OWN: Final = (COMMITS, OFFSETS, STATE, SOURCES, OPERATOR_STATE_DIR, METADATA)


class SavepointStore:
    """Savepoints of one directory."""

    def __init__(self, store: StateStore, target: str) -> None:
        self.store = store
        self.target = target

    def put_state(self, savepoint: Savepoint) -> str:
        """Publish a savepoint whose files are written, and return its external pointer."""
        return self.store.put_state(savepoint)

    def dispose_state(self, path: str, *, dry_run: bool = False) -> list[str]:
        """Remove a savepoint: its metadata, then its state or its hold, then its directory.

        See `dispose_savepoint`.
        """
        savepoint = self.store.find(path)
        _require_unneeded(savepoint)
        files, directory = locate(path, fsync=True)
        hold = own_hold_of(savepoint)
        own = list(_own_files(files, directory))
        metadata = files.url(join(directory, METADATA_FILE_NAME))
        removed = [metadata, *([hold.url] if hold else []), *map(files.url, own)]
        if dry_run:
            return removed
        self.store.begin_disposal(path)
        try:
            # A holder since the first check is found here; a later one finds no metadata.
            _require_unneeded(savepoint)
        except (IllegalStateError, QueryRunningError):
            self.store.cancel_disposal(savepoint)
            raise
        try:
            identity = join(directory, METADATA)
            other_paths = [path for path in own if path != identity]
            if other_paths != own:
                files.replace(identity, RESERVED)
            # A removal that fails does not prevent the others.
            with ExitStack() as removals:
                for file in reversed(other_paths):
                    removals.callback(discard_file, files, file)
                if hold:
                    removals.callback(hold.remove)
            # Directories, where the file system has any.
            if own:
                for name in _OWN[:-1]:
                    files.delete_directory(join(directory, name), recursive=True)
                discard_file(files, identity)
            self.store.end_disposal(path)
        except OSError as error:
            raise CheckpointIOError(
                f"{savepoint} is disposed of, but files of it remain: {error}. Repeat the disposal."
            ) from error
        return removed


class SavepointStoreFactory:
    """Factory of savepoint stores, by target directory or by a savepoint's path."""

    @staticmethod
    def create(target: str | None, savepoints_dir: str | None = None) -> SavepointStore:
        """Return the store for new savepoints in the target.

        The default is the query's option ``savepointsDir``.
        """
        chosen = target or savepoints_dir
        if not chosen:
            raise OptionError(
                f"a savepoint needs a target directory: pass one, or set '{OPTION_PREFIX}savepointsDir' "
                "before the query starts."
            )
        return SavepointStore(savepoint_store(chosen), chosen)

    @staticmethod
    def open(path: str) -> tuple[SavepointStore, str]:
        """Return the store of a savepoint, and the savepoint's path in it."""
        store, at = store_of(path)
        return SavepointStore(store, path), at


def dispose_savepoint(path: str, *, dry_run: bool = False) -> list[str]:
    """Remove a savepoint: its metadata, then its state or hold, then its directory.

    The savepoint ceases to exist with its metadata. The state that a pointer savepoint held is removed by the
    next cleanup, unless another hold retains it. A copy of a savepoint's directory leaves the hold of the
    original. An interrupted disposal can be repeated.

    Parameters
    ----------
    path
        URL of the savepoint's directory, or of the file ``_metadata`` in it.
    dry_run
        Return the files that would be removed, remove nothing.

    Returns
    -------
    list of str
        URLs of the removed files, in order.

    Raises
    ------
    SavepointNotFoundError
        If there is no savepoint.
    IllegalStateError
        If pointer savepoints of it or running copies need it.
    QueryRunningError
        If a query was started in its directory.
    CheckpointIOError
        If files remain; repeat the disposal.
    """
    store, at = SavepointStoreFactory.open(path)
    return store.dispose_state(at, dry_run=dry_run)


def _require_unneeded(savepoint: Savepoint) -> None:
    _require_no_query(savepoint)
    # Holds on a pointer's state, which is in the checkpoint, do not need the savepoint.
    if savepoint.kind == "pointer":
        return
    if needed := holders_of(savepoint.checkpoint()):
        raise IllegalStateError(
            f"{savepoint} is needed by {needed}. Dispose of those first; if a holder does not exist, remove "
            "its hold with spark-statestore holds --remove. Nothing was removed."
        )


def _require_no_query(savepoint: Savepoint) -> None:
    """Raise if a query was started in the savepoint's directory, whose checkpoint would be removed."""
    with contextlib.suppress(CheckpointNotFoundError, CorruptCheckpointError):
        if (query_id := QueryCheckpoint(savepoint.path).query_id) != savepoint.query_id:
            raise QueryRunningError(
                f"the query {query_id} was started in {savepoint.path} after the disposal of the savepoint "
                "there had begun. The disposal would remove its checkpoint: delete only the file _disposing. "
                "Nothing was removed."
            )
    later = [batch for batch in savepoint.checkpoint().logged_batches() if batch > savepoint.batch]
    if later:
        raise QueryRunningError(
            f"a query was started with {savepoint.path} as its checkpointLocation: it has batch {later[-1]}, "
            f"and the savepoint is of batch {savepoint.batch}. The disposal would remove the query's "
            "checkpoint. Stop the query, clone the checkpoint to a location of its own, and delete the "
            "directory by hand. Nothing was removed."
        )


def _own_files(files: FileSystem, directory: str) -> Iterator[str]:
    with failing_to("list", files, directory):
        present = sorted(status.path for status in files.list_files(directory))
    start = directory + "/"
    # The placeholder of an interrupted disposal.
    yield from (path for path in present if path.startswith(f"{start}{STAGING_PREFIX}"))
    for own in _OWN:
        yield from (path for path in present if path.removeprefix(start).partition("/")[0] == own)
