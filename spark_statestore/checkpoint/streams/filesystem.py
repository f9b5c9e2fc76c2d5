"""Streams whose state goes to files, once it is too large for the metadata."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Sequence

from spark_statestore.checkpoint.files.base import Buffer, FileOutput, FileSystem, join
from spark_statestore.checkpoint.streams.base import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from spark_statestore.checkpoint.streams.checksums import RunningChecksum, Summed, checksum_of
from spark_statestore.errors import CheckpointIOError
from spark_statestore.options import MAX_FILE_STATE_THRESHOLD
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.file import FileStateHandle, RelativeFileStateHandle
from spark_statestore.state.handles.memory import ByteStreamStateHandle

__all__ = ["FsCheckpointStateOutputStream", "FsCheckpointStreamFactory"]

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
            allow_relative_paths=exclusive,
            name_prefix=self._name_prefix,
        )

    def __str__(self) -> str:
        return f"File Stream Factory @ {self.files.url(self.checkpoint_directory)}"


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
        self._parts: list[Summed] = []
        self._buffered = 0
        self._written = 0
        self._checksum = RunningChecksum()
        self._output: FileOutput | None = None
        self._name = ""
        self._closed = False

    def get_pos(self) -> int:
        return self._written + self._buffered

    def write(self, data: Buffer) -> None:
        # What cannot change any more need not be copied.
        self._append(data if isinstance(data, bytes) else bytes(data), None)

    def write_summed(self, data: memoryview, checksum: int) -> None:
        self._append(data, checksum)

    def flush(self) -> None:
        self._require_open()
        if self._output is not None or self._buffered > self._threshold:
            self.flush_to_file()

    def flush_to_file(self) -> None:
        """Write what is buffered to the file, opening it if that has not happened yet."""
        self._require_open()
        output = self._output = self._output or self._open()
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        try:
            self._checksum.update(parts, meanwhile=lambda: output.write_parts([part for part, _ in parts]))
        except OSError as error:
            # A part of the data may be in the file: it cannot be finished any more.
            self.close()
            raise CheckpointIOError(
                f"could not write to the state file {self._url}: {error}. Nothing of it is left; the batch fails and "
                "is run again. Check the storage's free space."
            ) from error
        self._written += self._buffered
        self._buffered = 0

    def sync(self) -> None:
        if self._output is None:
            return
        try:
            self._output.sync()
        except OSError as error:
            # What was not synced may be lost without a further word: it must not be finished.
            self.close()
            raise CheckpointIOError(
                f"could not sync the state file {self._url}: {error}. Nothing of it is left; the batch fails and is "
                "run again. Check the storage's free space."
            ) from error

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
            raise CheckpointIOError(
                f"could not finish the state file {self._url}: {error}. Nothing of it is left; the batch fails and "
                "is run again. Check the storage's free space and permissions."
            ) from error
        self._closed = True
        size, checksum = self._written, self._checksum.value
        if self._relative:
            return RelativeFileStateHandle(self._files, self._base_path, self._name, size, checksum)
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
            except OSError as error:
                failure = error
            if not isinstance(failure, FileExistsError):
                # Perhaps only the answer was lost.
                with contextlib.suppress(OSError):
                    self._files.delete(path)
        raise CheckpointIOError(
            f"could not open a state file in {self._files.url(self._base_path)} in {_CREATE_ATTEMPTS} attempts: "
            f"{failure}. Check that the directory exists and can be written to."
        ) from failure
