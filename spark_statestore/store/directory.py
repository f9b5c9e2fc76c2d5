"""The directory of one state store gives access to its versions' metadata, and names them in errors."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from spark_statestore.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointIOError,
    CorruptCheckpointError,
    StateStoreError,
    StorageAccessError,
    UnsupportedFormatError,
    restore_from_backup,
)
from spark_statestore.files import (
    FileStatus,
    FileSystem,
    LocalFileSystem,
    MemoryFileSystem,
    join,
    open_file_system,
    parent_of,
)
from spark_statestore.files.failures import require_no_link
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET, attempt_id_of, decode_object
from spark_statestore.options import StorageOptions
from spark_statestore.storage import (
    CHECKPOINT_SHARED_STATE_DIR,
    METADATA_FILE_NAME,
    CheckpointName,
    CheckpointStorage,
    FsCheckpointStorage,
    MemoryBackendCheckpointStorage,
)
from spark_statestore.storage.handle_codec import HandleContext
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.storage.merged_file_system import MergedFileSystem
from spark_statestore.storage.merged_files import MergedFiles
from spark_statestore.storage.merged_index import LogicalFile
from spark_statestore.storage.metadata_streams import read_object, read_without_state
from spark_statestore.storage.task_local_state_store import TaskLocalStateStore
from spark_statestore.store.commit_log import CommitLog
from spark_statestore.store.errors import missing_on_driver, missing_version
from spark_statestore.store.holds import CleanupHolds, holds_directory_of
from spark_statestore.store.metadata import (
    CheckpointMetadata,
    StoreId,
    decode_metadata,
    is_whole_with_state,
    state_directory_of,
)
from spark_statestore.store.retention import RetentionIndex

_logger = logging.getLogger(__name__)

# A file in the directory of streams, which are named otherwise.
_KEPT: Final = "kept"

MergedFilesOf = Callable[[FileSystem, str], MergedFiles]


class StoreDirectory:
    """The directory of a store, as one running instance of the store sees it.

    A version exists once its metadata is published; a stream without metadata that refers to it is an orphan.
    Several instances of a store may run at once, also on other machines: streams have unique names and are
    never changed, and metadata is only replaced by that of another complete attempt at the same version,
    after both attempts' metadata was stored under names of their own.

    Parameters
    ----------
    driver_objects
        The objects that a request needs of ``storage=memory`` without a directory: they are kept on the
        driver, which takes new ones from `Committed.metadata`.
    driver_range
        The oldest and the newest version on the driver, for messages.
    commits
        URL of Spark's commit log; None where there is none.
    merged_of
        Returns the merged files of the query with a state directory, so that the stores of a query share one
        object. None reads and writes this store's own files only.

    Attributes
    ----------
    retention
        The versions and streams that this instance tracks. `load` may replace the index concurrently.
    merged
        The query's merged files; None if there are none.
    newest_handle
        Encoded form and handle of the version that this instance published last.
    damaged
        Ids of the newest version's streams that a scrub found damaged, until a commit writes everything.
    scrub_at
        When it is to be scrubbed next, by `time.monotonic`.
    local_state
        Local copies of its full snapshots; None if there are none.
    """

    def __init__(
        self,
        store: StoreId,
        url: str,
        options: StorageOptions,
        driver_objects: MemoryFileSystem | None = None,
        driver_range: tuple[int, int] | None = None,
        commits: str | None = None,
        merged_of: MergedFilesOf | None = None,
    ) -> None:
        self.store = store
        self.url = url
        self.options = options
        self._driver_range = driver_range
        self.commit_log = CommitLog(commits) if commits else None
        self.files: FileSystem
        if options.is_on_driver:
            self.files, self.directory = driver_objects or MemoryFileSystem(), url
        else:
            self.files, self.directory = open_file_system(
                url, fsync=options.fsync, retries=options.storage_retries
            )
        self.is_local = type(self.files) is LocalFileSystem
        self.merged: MergedFiles | None = None
        state = state_directory_of(self.directory, store)
        # A write in place merges for every storage in files.
        if merged_of is not None and state is not None and not options.is_on_driver:
            self.merged = merged_of(self.files, state)
            self.files = MergedFileSystem(self.files, self.merged)
        self.storage: CheckpointStorage
        if options.storage == "memory":
            self.storage = MemoryBackendCheckpointStorage(
                None if options.is_on_driver else self.files,
                self.directory,
                options.max_state_size,
            )
        else:
            self.storage = FsCheckpointStorage(self.files, self.directory, options.file_state_threshold)
        self.context = HandleContext(self.files, self.directory)
        self.retention = RetentionIndex(self.files, self.directory)
        self.holds = CleanupHolds(self.files, holds_directory_of(self.directory, store))
        self.newest_handle: tuple[bytes, IncrementalStateHandle] | None = None
        self.damaged: frozenset[str] = frozenset()
        self.scrub_at = time.monotonic() + (options.scrub_interval or math.inf)
        self.local_state: TaskLocalStateStore | None = None
        self._initialised = False

    def where(self, name: CheckpointName) -> str:
        """Return the store and version, for messages."""
        if self.options.is_on_driver:
            return f"{self.store}, {name} of {self.url}, kept on the driver,"
        return f"{self.store}, {name} at {self.files.url(join(self.directory, name.directory))}"

    def metadata_path(self, name: CheckpointName) -> str:
        """Return the path of a version's metadata."""
        return join(self.directory, name.directory, METADATA_FILE_NAME)

    def initialise(self) -> None:
        """Create the directories that all versions share, once."""
        if not self._initialised:
            self.storage.initialize_base_locations_for_checkpoint()
            require_no_link(self.files, self.directory, CHECKPOINT_SHARED_STATE_DIR)
            self._initialised = True

    def load(self, name: CheckpointName) -> CheckpointMetadata:
        """Return the metadata of a version, verified, and restart retention from it.

        Raises
        ------
        CheckpointNotFoundError, StateLostError
            If there is no such version.
        ForeignCheckpointError
            If another provider's files are there.
        CorruptCheckpointError, UnsupportedFormatError
            If it cannot be read.
        """
        metadata = self._without_reading_state(name) or self.metadata(name)
        self.retention = RetentionIndex(self.files, self.directory)
        self.retention.track(name, metadata.handle)
        return metadata

    def metadata(self, name: CheckpointName, attempt_id: str | None = None) -> CheckpointMetadata:
        """Return the metadata of a version, or of one attempt at it.

        As `load`, but without restarting retention.
        """
        began = time.monotonic()
        try:
            try:
                return self._metadata(name, attempt_id)
            except CorruptCheckpointError:
                if self.merged is None:
                    raise
                # Another process may have merged the version since, beside a part of a file that a killed one
                # left.
                self.merged.look_for_others(began, name.version)
                return self._metadata(name, attempt_id)
        except FileNotFoundError as error:
            raise self._not_found(name, attempt_id) from error
        except StorageAccessError:
            raise
        except OSError as error:
            raise self._unreadable(name, error) from error

    def described(self, name: CheckpointName, file: str) -> CheckpointMetadata | None:
        """Return the metadata in a file of a version's directory, all of it verified but its inline state.

        Return None if it is missing, damaged, of another version, or cannot be told from a newer format.
        """
        path = self.metadata_path(name)
        try:
            data = read_without_state(self.files, join(parent_of(path), file), leave_out_small=True)
            metadata = self.decode(data, name, without_state=True)
        except (FileNotFoundError, CorruptCheckpointError, UnsupportedFormatError):
            return None
        except StorageAccessError:
            raise
        except OSError as error:
            raise self._unreadable(name, error) from error
        return metadata if is_whole_with_state(metadata, data, path) else None

    def _unreadable(self, name: CheckpointName, error: OSError) -> CheckpointIOError:
        return CheckpointIOError(
            f"{self.where(name)} cannot be read: {error}. Check that the storage is reachable, and that "
            f"uid {os.getuid()} may read it; Spark retries the batch, nothing was changed."
        )

    def _metadata(self, name: CheckpointName, attempt_id: str | None) -> CheckpointMetadata:
        path = self.metadata_path(name)
        metadata = self.decode(read_object(self.files, path), name)
        if attempt_id is not None and metadata.attempt_id != attempt_id:
            metadata = self.decode(read_object(self.files, f"{path}.{attempt_id}"), name)
        return metadata

    def attempt_id(self, name: CheckpointName) -> str | None:
        """Return the attempt that published a version's metadata; None if there is none."""
        path = self.metadata_path(name)
        if self.merged is not None and (logical := self.merged.find(path)) is not None:
            # A version without an id may be another run's by now.
            return logical.attempt_id if name.id or self.merged.is_newest(logical) else None
        try:
            return attempt_id_of(self.files.read(path, 0, INLINE_STATE_OFFSET))
        except FileNotFoundError:
            return None

    def keep_directory(self, statuses: Iterable[FileStatus]) -> None:
        """Create a file that keeps the directory on an object store once all versions are in merged files.

        Spark's state data source counts partitions by their directories.
        """
        path = join(self.directory, CHECKPOINT_SHARED_STATE_DIR, _KEPT)
        if self.merged is None or self.is_local or any(status.path == path for status in statuses):
            return
        if not self.merged.is_empty():
            with suppress(FileExistsError):
                self.files.create(path, b"The versions of this store are in merged files.\n")

    def require_uncommitted(self, logical: LogicalFile, is_known: bool) -> None:
        """Raise `CheckpointExistsError` if a version must not be published in merged files.

        This is for versions without an id, see `CommitGuard`.
        """
        version, log = logical.checkpoint.version, self.commit_log
        if log is not None and (log.has_committed(version) if is_known else log.has_entry(version)):
            state = state_directory_of(self.directory, self.store) or ""
            where = f"{logical.checkpoint} at {self.files.url(join(state, logical.path))}"
            raise log.already_committed(where, version, None, logical.attempt_id)

    def decode(self, data: bytes, name: CheckpointName, *, without_state: bool = False) -> CheckpointMetadata:
        """Decode a version's metadata.

        Raise `CorruptCheckpointError` unless it is of this store and version.
        """
        metadata = decode_metadata(data, self.context, self.where(name), without_state=without_state)
        if (metadata.store, metadata.version) != (self.store, name.version) or (
            name.id is not None and metadata.attempt_id != name.id
        ):
            raise CorruptCheckpointError(
                f"{self.where(name)} has the metadata of {metadata.store}, version {metadata.version} "
                f"(attempt {metadata.attempt_id}): files were moved or mixed up. "
                + restore_from_backup("the right ones")
            )
        return metadata

    def _without_reading_state(self, name: CheckpointName) -> CheckpointMetadata | None:
        """Return the verified metadata, of which reading the inline state verifies that.

        Return None if verifying needs the state, or fails.
        """
        try:
            return self.described(name, METADATA_FILE_NAME)
        except CheckpointError:
            # Reading the whole object reports the cause.
            return None

    @contextmanager
    def writing(self, name: CheckpointName) -> Iterator[None]:
        """Convert errors of the storage while a version is written into a `CheckpointIOError`.

        The error names the version.
        """
        try:
            yield
        except (CheckpointExistsError, StorageAccessError):
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"{self.where(name)} cannot be written: {error.__cause__ or error}. Check that the directory "
                f"is writable for the user that runs the executors (uid {os.getuid()}) and that the storage "
                "has space."
            ) from error

    def publish_merged(
        self,
        attempts: Collection[str],
        handed_over: Iterable[tuple[str, bytes]] = (),
        discarded: Iterable[str] = (),
        *,
        version: int | None = None,
    ) -> tuple[list[str], int]:
        """Publish the merged files of the store's query.

        See `MergedFiles.publish` for `attempts` and the result.

        Parameters
        ----------
        handed_over
            Metadata objects from the processes of executors, with their paths below the query's state
            directory.
        discarded
            Paths there of what these processes have discarded.
        version
            The version that the batch commits, for errors.

        Raises
        ------
        CheckpointExistsError
            If Spark has committed another attempt at a version, in checkpoint format v1.
        CorruptCheckpointError, UnsupportedFormatError
            If an object that was handed over is damaged.
        CheckpointIOError
            If they cannot be written.
        """
        if self.merged is None:
            raise ValueError(f"{self.store} at {self.url} is not part of a query with merged files")
        state = state_directory_of(self.directory, self.store) or ""
        batch = "a batch" if version is None else f"batch {version - 1}"
        try:
            for path, data in handed_over:
                attempt_id = _attempt_handed_over(path, data, batch)
                self.merged.add(join(state, path), attempt_id, data, self.require_uncommitted)
            published = self.merged.publish(attempts, self.require_uncommitted)
            self.merged.discard_reported(discarded)
            return published
        except (CheckpointError, StorageAccessError):
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"{batch} is not committed: the versions that tasks handed over cannot be written to "
                f"{self.merged.url}: {error.__cause__ or error}. None of them exists; Spark runs the batch "
                "again once the query is restarted. Check that the directory is writable for the user that "
                f"runs the driver (uid {os.getuid()}) and that the storage has space."
            ) from error

    def sweep_merged(self) -> None:
        """Delete what was discarded of the query's merged files, see `MergedFiles.sweep`; log a failure."""
        try:
            if self.merged is not None:
                self.merged.sweep()
        except (StateStoreError, OSError) as error:
            _logger.warning(
                "discarded versions in %s could not be deleted, the next batch retries it: %s",
                self.url,
                error,
            )

    def _not_found(self, name: CheckpointName, attempt_id: str | None = None) -> CheckpointError:
        if self.options.is_on_driver:
            return missing_on_driver(
                f"{self.store}, {name} of {self.url}", name, self._driver_range, self.url
            )
        return missing_version(self.files, self.directory, self.where(name), name, attempt_id)


def _attempt_handed_over(path: str, data: bytes, batch: str) -> str:
    """Return the attempt that wrote a metadata object from another process."""
    try:
        return decode_object(data, path).attempt_id
    except CorruptCheckpointError as error:
        operator, partition = path.split("/")[:2]
        raise CorruptCheckpointError(
            f"{batch} is not committed: the metadata of operator {operator}, partition {partition}, {path}, "
            f"which an executor handed over, was damaged on its way to the driver ({error}). Nothing of the "
            "batch exists; Spark runs it again once the query is restarted. If that does not help, set "
            "spark.sql.streaming.stateStore.backend.commit=task."
        ) from error
