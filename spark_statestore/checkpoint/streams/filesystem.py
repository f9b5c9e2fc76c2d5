"""Streams whose state goes to files, once it is too large for the metadata."""

from __future__ import annotations

import logging
import uuid
import zlib
from typing import TYPE_CHECKING

from spark_statestore.checkpoint.files.base import Buffer, FileOutput, FileSystem, join, parent_of
from spark_statestore.checkpoint.streams.base import (
    CheckpointedStateScope,
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from spark_statestore.errors import CheckpointIOError
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.file import FileStateHandle, RelativeFileStateHandle
from spark_statestore.state.handles.memory import ByteStreamStateHandle

if TYPE_CHECKING:
    from spark_statestore.checkpoint.storage.base import CompletedCheckpointStorageLocation

__all__ = [
    "FsCheckpointMetadataOutputStream",
    "FsCheckpointStateOutputStream",
    "FsCheckpointStreamFactory",
]

_logger = logging.getLogger(__name__)

_CREATE_ATTEMPTS = 10


class FsCheckpointStreamFactory(CheckpointStreamFactory):
    """Opens `FsCheckpointStateOutputStream` objects for one checkpoint.

    Never makes a directory: whoever set up the location did, since looking for directories floods
    an object store with requests.

    Parameters
    ----------
    files
        The file system.
    checkpoint_directory
        Where exclusive state goes; its handles are relative to it.
    shared_state_directory
        Where shared state goes; its handles are absolute.
    file_state_threshold
        At most so many bytes stay in memory, 0 to 1 MiB.
    write_buffer_size
        Bytes collected before they are written; at least the threshold is used.
    name_prefix
        Starts the name of every file, which is otherwise a random UUID. A prefix that tells the
        version lets a cleanup decide by the name alone.

    Raises
    ------
    ValueError
        If a size is out of its range.
    """

    def __init__(
        self,
        files: FileSystem,
        checkpoint_directory: str,
        shared_state_directory: str,
        file_state_threshold: int,
        write_buffer_size: int,
        name_prefix: str = "",
    ) -> None:
        if not 0 <= file_state_threshold <= MAX_FILE_STATE_THRESHOLD:
            raise ValueError(
                f"the threshold for state in files is {file_state_threshold} bytes, but it must be from 0 to "
                f"{MAX_FILE_STATE_THRESHOLD}"
            )
        if write_buffer_size < 0:
            raise ValueError(f"the write buffer is {write_buffer_size} bytes, but it must be 0 or more")
        self._files = files
        self._checkpoint_directory = checkpoint_directory
        self._shared_state_directory = shared_state_directory
        self._threshold = file_state_threshold
        self._buffer_size = max(write_buffer_size, file_state_threshold)
        self._name_prefix = name_prefix

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> FsCheckpointStateOutputStream:
        exclusive = scope is CheckpointedStateScope.EXCLUSIVE
        return FsCheckpointStateOutputStream(
            self._files,
            self._checkpoint_directory if exclusive else self._shared_state_directory,
            self._buffer_size,
            self._threshold,
            allow_relative_paths=exclusive,
            name_prefix=self._name_prefix,
        )

    def __str__(self) -> str:
        return f"File Stream Factory @ {self._files.url(self._checkpoint_directory)}"


class FsCheckpointStateOutputStream(CheckpointStateOutputStream):
    """Keeps state in memory up to a threshold, and writes it to a uniquely named file beyond.

    Parameters
    ----------
    files
        The file system.
    base_path
        Directory of the file.
    buffer_size
        Bytes collected before they are written, at least the threshold; 0 writes everything
        through.
    local_state_threshold
        State of at most so many bytes stays in memory.
    allow_relative_paths
        Whether the handle is relative to `base_path`.
    name_prefix
        Starts the file's name.

    Raises
    ------
    ValueError
        If the buffer is smaller than the threshold.
    """

    def __init__(
        self,
        files: FileSystem,
        base_path: str,
        buffer_size: int,
        local_state_threshold: int,
        *,
        allow_relative_paths: bool = False,
        name_prefix: str = "",
    ) -> None:
        if buffer_size < local_state_threshold:
            raise ValueError(
                f"the buffer of {buffer_size} bytes is smaller than the threshold of {local_state_threshold}"
            )
        self._files = files
        self._base_path = base_path
        self._buffer_size = buffer_size
        self._threshold = local_state_threshold
        self._relative = allow_relative_paths
        self._name_prefix = name_prefix
        self._buffer = bytearray()
        self._written = 0
        self._checksum = 0
        self._output: FileOutput | None = None
        self._name = ""
        self._closed = False

    def get_pos(self) -> int:
        return self._written + len(self._buffer)

    def write(self, data: Buffer) -> None:
        self._require_open()
        view = memoryview(data).cast("B")
        if not view:
            return
        self._checksum = zlib.crc32(view, self._checksum)
        if len(self._buffer) + len(view) <= self._buffer_size:
            self._buffer += view
            return
        self.flush_to_file()
        if len(view) >= self._buffer_size:
            self._write_through(view)
        else:
            self._buffer += view

    def flush(self) -> None:
        self._require_open()
        if self._output is not None or len(self._buffer) > self._threshold:
            self.flush_to_file()

    def flush_to_file(self) -> None:
        """Write what is buffered to the file, opening it if that has not happened yet."""
        self._require_open()
        if self._output is None:
            self._output = self._open()
        if self._buffer:
            buffered, self._buffer = self._buffer, bytearray()
            self._write_through(buffered)

    def sync(self) -> None:
        if self._output is not None:
            self._output.sync()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._buffer = bytearray()
        if self._output is not None:
            try:
                self._output.abandon()
            except OSError as error:
                _logger.warning("could not remove the abandoned state file %s: %s", self._url, error)

    def close_and_get_handle(self) -> StreamStateHandle | None:
        if not self._closed and self._output is None and not self._buffer:
            return None
        if self._closed:
            raise CheckpointIOError(
                f"the stream to {self._files.url(self._base_path)} has already been closed and discarded"
            )
        if self._output is None and len(self._buffer) <= self._threshold:
            self._closed = True
            name = f"{self._base_path}/{self._name_prefix}{uuid.uuid4()}"
            return ByteStreamStateHandle(name, bytes(self._buffer), self._checksum)
        try:
            self.flush_to_file()
            assert self._output is not None  # noqa: S101 - flush_to_file opened it
            self._output.close()
        except Exception as error:
            self.close()
            raise CheckpointIOError(
                f"could not finish the state file {self._url}: {error}. Nothing of it is left; the batch fails and "
                "is run again. Check the storage's free space and permissions."
            ) from error
        self._closed = True
        if self._relative:
            return RelativeFileStateHandle(
                self._files, self._base_path, self._name, self._written, self._checksum
            )
        return FileStateHandle(self._files, join(self._base_path, self._name), self._written, self._checksum)

    @property
    def _url(self) -> str:
        return self._files.url(join(self._base_path, self._name))

    def _require_open(self) -> None:
        if self._closed:
            raise CheckpointIOError(f"the stream to {self._files.url(self._base_path)} is closed")

    def _write_through(self, data: Buffer) -> None:
        assert self._output is not None  # noqa: S101 - callers opened it
        try:
            self._output.write(data)
        except OSError as error:
            raise CheckpointIOError(
                f"could not write to the state file {self._url}: {error}. Check the storage's free space."
            ) from error
        self._written += memoryview(data).nbytes

    def _open(self) -> FileOutput:
        failure: OSError | None = None
        for _ in range(_CREATE_ATTEMPTS):
            self._name = f"{self._name_prefix}{uuid.uuid4()}"
            try:
                return self._files.open_output(join(self._base_path, self._name))
            except OSError as error:
                failure = error
        raise CheckpointIOError(
            f"could not open a state file in {self._files.url(self._base_path)} in {_CREATE_ATTEMPTS} attempts: "
            f"{failure}. Check that the directory exists and can be written to."
        ) from failure


class FsCheckpointMetadataOutputStream(CheckpointMetadataOutputStream):
    """Collects a checkpoint's metadata and publishes it at once.

    Nothing shows at the target until it is published, whatever happens before, and what is there
    is never replaced.

    Parameters
    ----------
    files
        The file system.
    metadata_path
        Where the metadata appears.
    exclusive_checkpoint_directory
        What is removed when the checkpoint is disposed of.

    Raises
    ------
    FileExistsError
        When published, if there is metadata already.
    """

    def __init__(self, files: FileSystem, metadata_path: str, exclusive_checkpoint_directory: str) -> None:
        self._files = files
        self._path = metadata_path
        self._directory = exclusive_checkpoint_directory
        self._parts: list[Buffer] = []
        self._size = 0
        self._closed = False

    def get_pos(self) -> int:
        return self._size

    def write(self, data: Buffer) -> None:
        if self._closed:
            raise CheckpointIOError(f"the stream to {self._files.url(self._path)} is closed")
        self._parts.append(bytes(data))
        self._size += memoryview(data).nbytes

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._closed = True
        self._parts = []

    def close_and_finalize_checkpoint(self) -> CompletedCheckpointStorageLocation:
        from spark_statestore.checkpoint.storage.locations import FsCompletedCheckpointStorageLocation

        if self._closed:
            raise CheckpointIOError(
                f"the stream to {self._files.url(self._path)} has already been closed and discarded"
            )
        data = b"".join(self._parts)
        self.close()
        try:
            self._files.create(self._path, data)
        except FileExistsError:
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"could not publish {self._files.url(self._path)}: {error}. The version does not exist; the batch "
                "fails and is run again. Check the storage's free space and permissions."
            ) from error
        return FsCompletedCheckpointStorageLocation(
            self._files,
            self._directory,
            FileStateHandle(self._files, self._path, len(data), zlib.crc32(data)),
            self._files.url(parent_of(self._path)),
        )
