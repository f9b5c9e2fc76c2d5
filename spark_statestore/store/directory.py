"""The directory of one state store gives access to its versions' metadata, and names them in errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from spark_statestore.errors import (
    CheckpointError,
    CheckpointExistsError,
    CheckpointIOError,
    CorruptCheckpointError,
    StorageAccessError,
)
from spark_statestore.files import FileSystem, MemoryFileSystem, join, open_file_system
from spark_statestore.files.failures import require_no_link
from spark_statestore.formats.metadata import INLINE_STATE_OFFSET, attempt_id_of
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
from spark_statestore.storage.metadata_streams import read_object, read_without_state
from spark_statestore.store.commit_log import CommitLog
from spark_statestore.store.errors import missing_on_driver, missing_version
from spark_statestore.store.holds import CleanupHolds, holds_directory_of
from spark_statestore.store.metadata import (
    CheckpointMetadata,
    StoreId,
    decode_metadata,
    is_whole_with_state,
)
from spark_statestore.store.retention import RetentionIndex

__all__ = ["StoreDirectory"]


class StoreDirectory:
    """The directory of a store, as one running instance of the store sees it.

    A version exists once its metadata is published; a stream without metadata that refers to it is an orphan. Several
    instances of a store may run at once, also on other machines: streams have unique names and are never changed,
    and metadata is only replaced by that of another complete attempt at the same version, after both attempts'
    metadata was stored under names of their own.

    Parameters
    ----------
    url
        The directory.
    driver_objects
        The objects that a request needs of ``storage=memory`` without a directory: they are kept on the driver, which
        takes new ones from `Committed.metadata`.
    driver_range
        The oldest and the newest version on the driver, for messages.
    commits
        URL of Spark's commit log; None where there is none.

    Attributes
    ----------
    retention
        The versions and streams that this instance tracks. `load` may replace the index concurrently.
    newest_handle
        Encoded form and handle of the version that this instance published last.

    Raises
    ------
    StorageError
        If the directory's file system cannot be used.
    """

    def __init__(
        self,
        store: StoreId,
        url: str,
        options: StorageOptions,
        driver_objects: MemoryFileSystem | None = None,
        driver_range: tuple[int, int] | None = None,
        commits: str | None = None,
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
        """Create the directories that all versions share, once.

        Raises
        ------
        OSError
            If one cannot be created, or is a link.
        """
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
        """Return the metadata of a version, or of one attempt at it, without restarting retention.

        Raises
        ------
        CheckpointError
            See `load`.
        """
        path = self.metadata_path(name)
        try:
            metadata = self.decode(read_object(self.files, path), name)
            if attempt_id is not None and metadata.attempt_id != attempt_id:
                metadata = self.decode(read_object(self.files, f"{path}.{attempt_id}"), name)
        except FileNotFoundError as error:
            raise self._not_found(name, attempt_id) from error
        except StorageAccessError:
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"{self.where(name)} cannot be read: {error}. Check that the storage is reachable, and that uid "
                f"{os.getuid()} may read it; Spark retries the batch, nothing was changed."
            ) from error
        return metadata

    def attempt_id(self, name: CheckpointName) -> str | None:
        """Return the attempt that published a version's metadata; None if there is none.

        Raises
        ------
        OSError
            If the metadata cannot be read.
        """
        try:
            return attempt_id_of(self.files.read(self.metadata_path(name), 0, INLINE_STATE_OFFSET))
        except FileNotFoundError:
            return None

    def decode(self, data: bytes, name: CheckpointName, *, without_state: bool = False) -> CheckpointMetadata:
        """Decode a version's metadata and check that it belongs to this store and version.

        Raises
        ------
        CorruptCheckpointError, UnsupportedFormatError
            If it cannot be decoded, or is of another store or version.
        """
        metadata = decode_metadata(data, self.context, self.where(name), without_state=without_state)
        if (metadata.store, metadata.version) != (self.store, name.version) or (
            name.id is not None and metadata.attempt_id != name.id
        ):
            raise CorruptCheckpointError(
                f"{self.where(name)} has the metadata of {metadata.store}, version {metadata.version} (attempt "
                f"{metadata.attempt_id}): files were moved or mixed up. Restore the right ones from a backup, or start "
                "from an earlier version; nothing was changed."
            )
        return metadata

    def _without_reading_state(self, name: CheckpointName) -> CheckpointMetadata | None:
        """Return the verified metadata without reading inline state; None if verifying needs the state, or fails."""
        path = self.metadata_path(name)
        try:
            data = read_without_state(self.files, path)
            metadata = self.decode(data, name, without_state=True)
        except (OSError, CheckpointError):
            # Reading the whole object reports the cause.
            return None
        return metadata if is_whole_with_state(metadata, data, path) else None

    @contextmanager
    def writing(self, name: CheckpointName) -> Iterator[None]:
        """Convert errors of the storage while a version is written into one that names it.

        Raises
        ------
        CheckpointIOError
            If the storage fails.
        """
        try:
            yield
        except (CheckpointExistsError, StorageAccessError):
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"{self.where(name)} cannot be written: {error.__cause__ or error}. Check that the directory is writable "
                f"for the user that runs the executors (uid {os.getuid()}) and that the storage has space."
            ) from error

    def _not_found(self, name: CheckpointName, attempt_id: str | None = None) -> CheckpointError:
        if self.options.is_on_driver:
            return missing_on_driver(
                f"{self.store}, {name} of {self.url}", name, self._driver_range, self.url
            )
        return missing_version(self.files, self.directory, self.where(name), name, attempt_id)
