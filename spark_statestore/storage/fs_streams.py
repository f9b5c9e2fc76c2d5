"""Streams that write state to files once it exceeds the threshold of inline state."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Sequence

from spark_statestore.errors import CheckpointIOError, StorageAccessError
from spark_statestore.files.base import Buffer, FileOutput, FileSystem, join
from spark_statestore.formats.checksums import ChecksummedPart, RunningChecksum, checksum_of
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.stream_handles import ByteStreamStateHandle, StreamStateHandle
from spark_statestore.storage.streams import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)

_logger = logging.getLogger(__name__)

_CREATE_ATTEMPTS = 10


class FsCheckpointStreamFactory(CheckpointStreamFactory):
    """A factory of `FsCheckpointStateOutputStream` objects for one checkpoint.

    It makes no directory, since checks for directories would multiply requests to an object store.

    Parameters
    ----------
    checkpoint_directory, shared_state_directory
        Directories of exclusive and of shared state.
    file_state_threshold
        Largest state in bytes that stays in memory, 0 to 256 MiB.
    write_buffer_size
        Size of the write buffer in bytes; the threshold is its lower bound.
    name_prefix
        Prefix of file names, which are random UUIDs otherwise. With the version as prefix a cleanup decides
        by name.
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
        self.files = files
        self.checkpoint_directory = checkpoint_directory
        self.shared_state_directory = shared_state_directory
        self._threshold = file_state_threshold
        self._buffer_size = max(write_buffer_size, file_state_threshold)
        self._name_prefix = name_prefix

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> FsCheckpointStateOutputStream:
        exclusive = scope is CheckpointedStateScope.EXCLUSIVE
        return FsCheckpointStateOutputStream(
            self.files,
            self.checkpoint_directory if exclusive else self.shared_state_directory,
            self._buffer_size,
            self._threshold,
            name_prefix=self._name_prefix,
        )


class FsCheckpointStateOutputStream(CheckpointStateOutputStream):
    """A stream that keeps state in memory up to a threshold.

    Larger state is written to a uniquely named file.

    Parameters
    ----------
    base_path
        Directory of the file.
    buffer_size
        Size of the write buffer in bytes, at least the threshold; 0 writes without buffering.
    local_state_threshold
        Largest state in bytes that stays in memory.
    """

    def __init__(
        self,
        files: FileSystem,
        base_path: str,
        buffer_size: int,
        local_state_threshold: int,
        *,
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
        self._name_prefix = name_prefix
        self._parts: list[ChecksummedPart] = []
        self._buffered = 0
        self._file_size = 0
        self._checksum = RunningChecksum()
        self._output: FileOutput | None = None
        self._name = ""
        self._closed = False

    def get_pos(self) -> int:
        return self._file_size + self._buffered

    def write(self, data: Buffer) -> None:
        # Immutable data need not be copied.
        self._append(data if isinstance(data, bytes) else bytes(data), None)

    def write_with_checksum(self, data: memoryview, checksum: int) -> None:
        self._append(data, checksum)

    def flush_to_file(self) -> None:
        """Write the buffered bytes to the file, which is opened at the first call."""
        self._require_open()
        output = self._output = self._output or self._open()
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        try:
            self._checksum.update(parts, meanwhile=lambda: output.write_parts([part for part, _ in parts]))
        except OSError as error:
            # The file may hold a part of the data, so that it cannot be finished.
            self.close()
            if isinstance(error, StorageAccessError):
                raise
            raise CheckpointIOError(
                f"could not write to the state file {self._url}: {error}. The file is removed; the batch "
                "fails and Spark may retry it. Check the storage's free space."
            ) from error
        self._file_size += self._buffered
        self._buffered = 0

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._parts = []
        if self._output is not None:
            try:
                self._output.abandon()
            except OSError as error:
                _logger.warning("could not remove the abandoned state file %s: %s", self._url, error)

    def close_if_in_memory(self) -> tuple[Sequence[Buffer], int] | None:
        if self._closed or self._output is not None or not 0 < self._buffered <= self._threshold:
            return None
        parts, self._parts = self._parts, []
        self._closed = True
        return [part for part, _ in parts], checksum_of(parts)

    def close_and_get_handle(self) -> StreamStateHandle | None:
        if not self._closed and self._output is None and not self._buffered:
            return None
        if self._closed:
            raise CheckpointIOError(
                f"the stream to {self._files.url(self._base_path)} has already been closed and discarded"
            )
        if (in_memory := self.close_if_in_memory()) is not None:
            name = f"{self._base_path}/{self._name_prefix}{uuid.uuid4()}"
            return ByteStreamStateHandle(name, b"".join(in_memory[0]), in_memory[1])
        try:
            self.flush_to_file()
            assert self._output is not None  # noqa: S101 - flush_to_file opened it
            self._output.close()
        except Exception as error:
            self.close()
            if isinstance(error, StorageAccessError):
                raise
            raise CheckpointIOError(
                f"could not finish the state file {self._url}: {error}. The file is removed; the batch fails "
                "and Spark may retry it. Check the storage's free space and permissions."
            ) from error
        self._closed = True
        size, checksum = self._file_size, self._checksum.value
        return FileStateHandle(self._files, join(self._base_path, self._name), size, checksum)

    @property
    def _url(self) -> str:
        return self._files.url(join(self._base_path, self._name))

    def _append(self, part: bytes | memoryview, checksum: int | None) -> None:
        self._require_open()
        if not len(part):
            return
        if self._buffered + len(part) > self._buffer_size and self._buffered:
            self.flush_to_file()
        self._parts.append((part, checksum))
        self._buffered += len(part)
        if self._buffered > self._buffer_size:
            self.flush_to_file()

    def _require_open(self) -> None:
        if self._closed:
            raise CheckpointIOError(f"the stream to {self._files.url(self._base_path)} is closed")

    def _open(self) -> FileOutput:
        failure: OSError | None = None
        for _ in range(_CREATE_ATTEMPTS):
            self._name = f"{self._name_prefix}{uuid.uuid4()}"
            path = join(self._base_path, self._name)
            try:
                return self._files.open_output(path)
            except StorageAccessError:
                raise
            except OSError as error:
                failure = error
            if not isinstance(failure, FileExistsError):
                # The file may exist if only the answer was lost.
                with contextlib.suppress(OSError):
                    self._files.delete(path)
        raise CheckpointIOError(
            f"could not open a state file in {self._files.url(self._base_path)} in {_CREATE_ATTEMPTS} "
            "attempts: "
            f"{failure}. Check that the directory exists and is writable."
        ) from failure
