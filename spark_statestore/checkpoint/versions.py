"""The versions of one state store: commit, load, snapshot, clean up."""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from collections.abc import Collection, Iterator

import pyarrow as pa

from spark_statestore.checkpoint.absent import absent_version, not_kept
from spark_statestore.checkpoint.accepted import CommitLog
from spark_statestore.checkpoint.files import FileSystem, MemoryFileSystem, join, open_file_system
from spark_statestore.checkpoint.files.failures import require_no_link
from spark_statestore.checkpoint.files.work import got_on, require_wanted
from spark_statestore.checkpoint.ledger import Ledger, take_inventory
from spark_statestore.checkpoint.metadata.format import (
    INLINE_STATE_OFFSET,
    EncodedObject,
    read_object,
    read_without_state,
)
from spark_statestore.checkpoint.metadata.store import (
    CheckpointMetadata,
    NamedState,
    StoreId,
    decode_metadata,
    is_whole_with_state,
)
from spark_statestore.checkpoint.pending import PendingCheckpoint, PendingSnapshot
from spark_statestore.checkpoint.pins import CleanupWatch, pins_directory_of
from spark_statestore.checkpoint.storage import (
    CHECKPOINT_SHARED_STATE_DIR,
    METADATA_FILE_NAME,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    FsCheckpointStorage,
    MemoryBackendCheckpointStorage,
)
from spark_statestore.checkpoint.stored import read_version
from spark_statestore.checkpoint.streams import CheckpointedStateScope
from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CorruptCheckpointError,
    UnsupportedFormatError,
)
from spark_statestore.options import StorageOptions
from spark_statestore.state.handles import FileStateHandle, IncrementalStateHandle
from spark_statestore.state.handles.codec import HandleContext
from spark_statestore.state.handles.owner import owner_of

__all__ = ["VersionStore"]

_logger = logging.getLogger(__name__)


class VersionStore:
    """The versions of one state store, as one running instance of the store sees them.

    A version exists from the moment its metadata is published, and what no metadata names does
    not exist. Several instances of a store may be at work at once, also on other machines: streams
    have unique names and are never changed, and metadata is only ever replaced by another whole
    attempt at the same version, after both attempts' streams are safe under names of their own.

    Parameters
    ----------
    store
        The store.
    url
        Its directory.
    options
        How it is stored.
    kept
        The objects of ``storage=memory`` without a directory, as far as they are needed: whoever
        keeps them hands them in, and takes the new ones from `Committed.metadata`.
    kept_range
        The oldest and the newest version that are kept there, for messages.
    commits
        URL of Spark's commit log, which says what was accepted; None where there is none.

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
        kept: MemoryFileSystem | None = None,
        kept_range: tuple[int, int] | None = None,
        commits: str | None = None,
    ) -> None:
        self.store = store
        self.url = url
        self.options = options
        self._kept_range = kept_range
        self._commits = CommitLog(commits) if commits else None
        self._files: FileSystem
        if options.is_kept_elsewhere:
            self._files, self._directory = kept or MemoryFileSystem(), url
        else:
            self._files, self._directory = open_file_system(
                url, fsync=options.fsync, retries=options.storage_retries
            )
        self._storage: CheckpointStorage
        if options.storage == "memory":
            self._storage = MemoryBackendCheckpointStorage(
                None if options.is_kept_elsewhere else self._files,
                self._directory,
                options.max_state_size,
                look_first=False,
            )
        else:
            self._storage = FsCheckpointStorage(
                self._files, self._directory, options.file_state_threshold, look_first=False
            )
        self.context = HandleContext(self._files, self._directory, confined=True)
        self._ledger = Ledger(self._files, self._directory)
        self._pins = CleanupWatch(self._files, pins_directory_of(self._directory, store))
        self._initialised = False
        self._newest_handle: tuple[bytes, IncrementalStateHandle] | None = None

    def where(self, name: CheckpointName) -> str:
        """The store and version, for messages."""
        if self.options.is_kept_elsewhere:
            return f"{self.store}, {name} of {self.url}, kept on the driver,"
        return f"{self.store}, {name} at {self._files.url(join(self._directory, name.directory))}"

    def begin(self, name: CheckpointName, attempt: str, states: tuple[NamedState, ...]) -> PendingCheckpoint:
        """Begin a checkpoint.

        Parameters
        ----------
        attempt
            Names this attempt at it, 16 hex digits.
        states
            Its column families.

        Raises
        ------
        CheckpointIOError
            If its place cannot be made.
        """
        try:
            self._initialise()
            location = self._storage.initialize_location_for_checkpoint(name)
            require_no_link(self._files, self._directory, name.directory)
        except OSError as error:
            raise self._cannot_write(name, error) from error
        return PendingCheckpoint(self, location, name, attempt, states, self.options.compression)

    def begin_snapshot(self, version: int, states: tuple[NamedState, ...]) -> PendingSnapshot:
        """Begin a full snapshot of a version that exists, to be the base of a later commit.

        Raises
        ------
        CheckpointIOError
            If its place cannot be made.
        """
        name = CheckpointName(version)
        try:
            self._initialise()
        except OSError as error:
            raise self._cannot_write(name, error) from error
        factory = self._storage.resolve_checkpoint_storage_location(
            name, CheckpointStorageLocationReference.default()
        )
        return PendingSnapshot(
            version,
            states,
            factory.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED),
            self.options.compression,
        )

    def load(self, name: CheckpointName) -> CheckpointMetadata:
        """The metadata of a version, checked.

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
        self._ledger = Ledger(self._files, self._directory)
        self._ledger.note(name, metadata.handle)
        return metadata

    def metadata(self, name: CheckpointName, attempt: str | None = None) -> CheckpointMetadata:
        """The metadata of a version, as `load` gives it, to look at only.

        Parameters
        ----------
        attempt
            The attempt at it that is meant, which another one may have replaced; by default the one that counts.
        """
        path = self.metadata_path(name)
        try:
            metadata = self._decode(read_object(self._files, path), name)
            if attempt is not None and metadata.attempt != attempt:
                metadata = self._decode(read_object(self._files, f"{path}.{attempt}"), name)
        except FileNotFoundError as error:
            raise self._not_found(name, attempt) from error
        except OSError as error:
            raise CheckpointIOError(
                f"{self.where(name)} cannot be read: {error}. The batch fails and is run again. Check that the storage "
                f"can be reached, and that uid {os.getuid()} may read it; nothing was changed."
            ) from error
        return metadata

    def read(
        self, name: CheckpointName, metadata: CheckpointMetadata
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The changes that make up a version, see `read_version`."""
        return read_version(self, name, metadata)

    def holds(self, base: IncrementalStateHandle) -> bool:
        """Whether a snapshot that no metadata names yet is still there."""
        for entry in base:
            stream = entry.state.delegate_state_handle
            try:
                gone = isinstance(stream, FileStateHandle) and not self._files.exists(stream.path)
            except OSError as error:
                raise CheckpointIOError(
                    f"the snapshot {stream} of {self.store} cannot be looked at: {error}. The batch fails and is "
                    "run again. Check the permissions and that the storage is reachable."
                ) from error
            if gone:
                _logger.warning(
                    "the snapshot %s of %s is gone, the chain goes on without it", stream, self.store
                )
                return False
        return True

    def cleanup(self, newest: CheckpointName, attempt: str, retain_from: int, most: int) -> int:
        """Discard the versions below `retain_from` that are not pinned, and the streams that no other version uses.

        Parameters
        ----------
        newest
            A version of this instance that Spark is known to have accepted.
        attempt
            The attempt that wrote it.
        most
            Versions to discard at most; 0 or less means all.

        Returns
        -------
        int
            Objects removed.

        Raises
        ------
        CorruptCheckpointError, CheckpointIOError
            If a version that must be kept cannot be read: then nothing is discarded.
        """
        try:
            return self._cleanup(newest, attempt, retain_from, most)
        except CheckpointError:
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"versions of {self.store} at {self._files.url(self._directory)} before {retain_from} could not be "
                f"discarded: {error}. The next clean-up tries again; nothing that is needed was removed."
            ) from error

    def _cleanup(self, newest: CheckpointName, attempt: str, retain_from: int, most: int) -> int:
        # A load meanwhile begins another ledger; this one is of one piece.
        ledger = self._ledger
        if self._owner(newest) != attempt:
            # Another instance took this store over, and cleans up after itself.
            _logger.info("%s is no longer this instance's, nothing is discarded", self.where(newest))
            return 0
        if self._commits is not None and self._commits.has_lost(self.store, newest):
            # What is old to this instance may be what the query has now.
            _logger.info("the query does not go on from %s, nothing is discarded", self.where(newest))
            return 0
        pinned = self._pins.look(max(0, newest.version - retain_from))
        ledger.expect_pinned(version for version in pinned if version < retain_from)
        for name, owner in ledger.unconfirmed(newest.version):
            got_on()
            if (name.version >= retain_from or name.version in pinned) and self._owner(name) != owner:
                # Another attempt replaced it, whose streams are not known here.
                ledger.is_complete = False
            ledger.confirm(name)
        if not ledger.is_complete:
            # Before it looks, so that a commit meanwhile can say that there is more.
            ledger.is_complete = True
            try:
                self._take_stock(ledger, retain_from, pinned)
            except BaseException:
                ledger.is_complete = False
                raise
        return ledger.discard_before(retain_from, most, pinned)

    def publish(
        self, location: CheckpointStorageLocation, name: CheckpointName, attempt: str, metadata: EncodedObject
    ) -> tuple[int, bytes | None]:
        """Publish a version's metadata.

        Returns
        -------
        tuple
            The number of objects written, and the metadata if it is in no file.

        Raises
        ------
        CheckpointExistsError
            If another attempt was accepted.
        CheckpointIOError
            If it cannot be published.
        """
        stream = location.create_metadata_output_stream()
        with stream:
            stream.write_whole(metadata.parts, metadata.checksum)
            require_wanted()
            try:
                completed = stream.close_and_finalize_checkpoint()
            except FileExistsError:
                try:
                    return self._replace(name, attempt, bytes(metadata)), None
                except CheckpointError:
                    raise
                except OSError as error:
                    raise self._cannot_write(name, error) from error
        return 1, completed.metadata_handle.as_bytes_if_in_memory()

    def forget_directory(self, name: CheckpointName) -> None:
        """Remove the directory of a checkpoint that was begun and never published."""
        # Without an id the name is another attempt's too, which may be about to write there.
        if name.id is not None:
            with contextlib.suppress(OSError):
                self._files.delete_directory(join(self._directory, name.directory))

    def expect_strays(self) -> None:
        """Have the next clean-up look for files that nothing names."""
        self._ledger.is_complete = False

    def note(
        self, name: CheckpointName, handle: IncrementalStateHandle, attempt: str, encoded: bytes
    ) -> None:
        """Note a version that was published, and the stored form of its handle."""
        self._ledger.note(name, handle, attempt=attempt)
        self._newest_handle = (encoded, handle)

    def prepare_next(self, name: CheckpointName) -> None:
        """Do what can be done ahead for the version after one that was published; nothing depends on it."""
        # An id is not known ahead.
        follows = "" if name.id is not None else CheckpointName(name.version + 1).directory
        with contextlib.suppress(OSError):
            self._files.prepare(join(self._directory, follows) if follows else self._directory)

    def known_handle(self, encoded: bytes) -> IncrementalStateHandle | None:
        """The handle with a stored form, if it is that of the version that this instance published last."""
        known = self._newest_handle
        return known[1] if known is not None and known[0] == encoded else None

    def metadata_path(self, name: CheckpointName) -> str:
        """Path of a version's metadata."""
        return join(self._directory, name.directory, METADATA_FILE_NAME)

    @property
    def files(self) -> FileSystem:
        """The file system that the store lies in."""
        return self._files

    def _initialise(self) -> None:
        if not self._initialised:
            self._storage.initialize_base_locations_for_checkpoint()
            require_no_link(self._files, self._directory, CHECKPOINT_SHARED_STATE_DIR)
            self._initialised = True

    def _replace(self, name: CheckpointName, attempt: str, data: bytes) -> int:
        # Format v1 names a version by its number alone, and a batch that is run again commits the
        # same number: the last attempt counts. A later version may already build on the other
        # attempt's state, which lies inside the metadata, so that is kept under the attempt's name.
        path = self.metadata_path(name)
        present = self._files.read(path)
        owner = self._owner_of_whole(present, name)
        if owner == attempt:
            # This very request was served before, but its answer was lost, perhaps with the process that gave it.
            self._files.make_durable(path)
            return 1
        _logger.info(
            "%s was committed before, by attempt %s; this attempt replaces it", self.where(name), owner
        )
        copies = {
            f"{METADATA_FILE_NAME}.{owner or f'damaged-{zlib.crc32(present):08x}'}": present,
            f"{METADATA_FILE_NAME}.{attempt}": data,
        }
        for copy, content in copies.items():
            copy = join(self._directory, name.directory, copy)
            try:
                self._files.create(copy, content)
            except FileExistsError:
                # Perhaps a part of it, from an attempt that was cut short.
                if self._files.read(copy) == content:
                    self._files.make_durable(copy)
                else:
                    self._files.replace(copy, content)
        # An attempt that was given up while storage hung must not take the place of the one that came after it.
        require_wanted()
        # As late as possible: between this look and the next line another attempt may still be accepted.
        if self._commits is not None and self._commits.has_accepted(name.version):
            raise self._commits.already_accepted(self.where(name), name.version, owner, attempt)
        self._files.replace(path, data)
        self.expect_strays()
        return 1 + len(copies)

    def _take_stock(self, ledger: Ledger, retain_from: int, pinned: Collection[int]) -> None:
        inventory = take_inventory(self._directory, self._files.list_files(self._directory))
        for name, present in inventory.checkpoints.items():
            got_on()
            ledger.note_directory(name, present)
            if name.version < retain_from and name.version not in pinned:
                continue
            for file in present:
                if file == METADATA_FILE_NAME or file.startswith(f"{METADATA_FILE_NAME}."):
                    self._note_stored(ledger, name, file)
        for path, version in inventory.shared.items():
            if version < retain_from and not ledger.knows(path):
                # Perhaps a stream of a version that is still to be discarded, after its metadata.
                ledger.note_stray(path, retain_from)

    def _note_stored(self, ledger: Ledger, name: CheckpointName, file: str) -> None:
        path = join(self._directory, name.directory, file)
        if file.startswith(f"{METADATA_FILE_NAME}.damaged-"):
            return
        try:
            data = read_without_state(self._files, path)
        except FileNotFoundError:
            return
        ledger.note(name, self._decode(data, name, without_state=True).handle)

    def _without_reading_state(self, name: CheckpointName) -> CheckpointMetadata | None:
        """The metadata of a version, checked all the same; None if that needs the state inside of it, or fails."""
        path = self.metadata_path(name)
        try:
            data = read_without_state(self._files, path)
            metadata = self._decode(data, name, without_state=True)
        except (OSError, CheckpointError):
            # The usual way says what is wrong.
            return None
        return metadata if is_whole_with_state(metadata, data, path) else None

    def _decode(
        self, data: bytes, name: CheckpointName, *, without_state: bool = False
    ) -> CheckpointMetadata:
        metadata = decode_metadata(data, self.context, self.where(name), without_state=without_state)
        if (metadata.store, metadata.version) != (self.store, name.version) or (
            name.id is not None and metadata.attempt != name.id
        ):
            raise CorruptCheckpointError(
                f"{self.where(name)} holds the metadata of {metadata.store}, version {metadata.version} (attempt "
                f"{metadata.attempt}): files were moved or mixed up. Put the right ones back from a backup, or start "
                "from an earlier version; nothing was changed."
            )
        return metadata

    def _owner_of_whole(self, data: bytes, name: CheckpointName) -> str | None:
        # Where files do not appear whole, an attempt that was cut short leaves its name on a part.
        try:
            decode_metadata(data, self.context, self.where(name))
        except CorruptCheckpointError:
            return None
        except UnsupportedFormatError:
            pass
        return owner_of(data)

    def _owner(self, name: CheckpointName) -> str | None:
        try:
            return owner_of(self._files.read(self.metadata_path(name), 0, INLINE_STATE_OFFSET))
        except FileNotFoundError:
            return None

    def _cannot_write(self, name: CheckpointName, error: OSError) -> CheckpointIOError:
        return CheckpointIOError(
            f"{self.where(name)} cannot be written: {error.__cause__ or error}. Check that the directory is writable for "
            f"the user that runs the executors (uid {os.getuid()}) and that the storage has space."
        )

    def _not_found(self, name: CheckpointName, attempt: str | None = None) -> CheckpointError:
        if self.options.is_kept_elsewhere:
            return not_kept(f"{self.store}, {name} of {self.url}", self._kept_range)
        return absent_version(self._files, self._directory, self.where(name), attempt)
