"""Cleanup discards the versions of a store that are neither retained nor held, and orphaned streams."""

from __future__ import annotations

import logging
from collections.abc import Collection

from spark_statestore.errors import CheckpointError, CheckpointIOError, CorruptCheckpointError
from spark_statestore.files import join
from spark_statestore.files.request_context import heartbeat
from spark_statestore.storage import METADATA_FILE_NAME, CheckpointName
from spark_statestore.storage.metadata_streams import read_without_state
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.retention import RetentionIndex, parse_listing

_logger = logging.getLogger(__name__)


def discard_versions(
    store: StoreDirectory, newest: CheckpointName, attempt_id: str, retain_from: int, most: int
) -> int:
    """Discard the versions below `retain_from` that are not held, and streams that no other version uses.

    Parameters
    ----------
    newest, attempt_id
        A committed version of this instance, and the attempt that wrote it.
    most
        The most versions to discard; 0 or less means all.

    Returns
    -------
    int
        Number of objects removed.

    Raises
    ------
    CorruptCheckpointError, CheckpointIOError
        If a version that must be retained cannot be read; nothing is discarded then.
    """
    try:
        return _discard_versions(store, newest, attempt_id, retain_from, most)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointIOError(
            f"versions of {store.store} at {store.files.url(store.directory)} before {retain_from} could not "
            f"be discarded: {error}. The next cleanup retries it; no retained version was changed."
        ) from error


def _discard_versions(
    store: StoreDirectory, newest: CheckpointName, attempt_id: str, retain_from: int, most: int
) -> int:
    # `load()` may replace the index concurrently; use one instance throughout.
    index = store.retention
    if store.attempt_id(newest) != attempt_id:
        # Another instance owns the store now and runs its own cleanup.
        _logger.info("%s was written by another instance: nothing is discarded", store.where(newest))
        return 0
    if store.commit_log is not None and store.commit_log.has_lost(store.store, newest):
        # After a rollback, versions that are old to this instance may be the query's current ones.
        _logger.info("%s is not in the query's commit log: nothing is discarded", store.where(newest))
        return 0
    held_versions = store.holds.versions_to_keep(max(0, newest.version - retain_from))
    index.set_held(version for version in held_versions if version < retain_from)
    for name, present_id in index.unverified(newest.version):
        heartbeat()
        is_retained = name.version >= retain_from or name.version in held_versions
        if is_retained and store.attempt_id(name) != present_id:
            # Another attempt replaced it, with streams that this index does not have.
            index.is_complete = False
        index.verify(name)
    if not index.is_complete:
        # Set before the scan, so that a commit during it can request the next one.
        index.is_complete = True
        try:
            _scan_directory(store, index, newest, retain_from, held_versions)
        except BaseException:
            index.is_complete = False
            raise
    return index.discard_before(retain_from, most, held_versions)


def _scan_directory(
    store: StoreDirectory,
    index: RetentionIndex,
    newest: CheckpointName,
    retain_from: int,
    held_versions: Collection[int],
) -> None:
    if store.merged is not None:
        # Another process may have published versions since this one listed: their streams are not orphans.
        # All versions up to `newest` were published before it was committed; later ones are this instance's.
        store.merged.look_for_others(since=store.merged.committed_at(newest.version))
        if (
            damage := store.merged.damage_in(range(retain_from, newest.version + 1), held_versions)
        ) is not None:
            raise CorruptCheckpointError(
                f"nothing of {store.store} at {store.files.url(store.directory)} is deleted: a version that "
                f"is retained or held may be in a damaged file of a batch: {damage} Cleanups go on once the "
                "file is restored, or all of its versions have expired."
            ) from damage
    statuses = list(store.files.list_files(store.directory))
    store.keep_directory(statuses)
    listing = parse_listing(store.directory, statuses)
    for name, present in listing.checkpoints.items():
        heartbeat()
        index.track_directory(name, present)
        if name.version < retain_from and name.version not in held_versions:
            continue
        for file in present:
            if file == METADATA_FILE_NAME or file.startswith(f"{METADATA_FILE_NAME}."):
                _track_metadata(store, index, name, file)
    for path, version in listing.shared.items():
        if version < retain_from and not index.is_tracked(path):
            # It may belong to an expired version, which is discarded metadata first.
            index.track_orphan(path, retain_from)


def _track_metadata(store: StoreDirectory, index: RetentionIndex, name: CheckpointName, file: str) -> None:
    path = join(store.directory, name.directory, file)
    if file.startswith(f"{METADATA_FILE_NAME}.damaged-"):
        return
    try:
        data = read_without_state(store.files, path)
    except FileNotFoundError:
        return
    index.track(name, store.decode(data, name, without_state=True).handle)
