"""Handles to state in a file, or in a segment of a file."""

from __future__ import annotations

import contextlib
import functools
import io
from dataclasses import dataclass
from typing import BinaryIO

from spark_statestore.errors import CheckpointIOError
from spark_statestore.files.base import FileSystem, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.metadata import attempt_id_of
from spark_statestore.storage.stream_handles import StreamStateHandle


def discard_file(files: FileSystem, path: str) -> None:
    """Delete a file, which may be missing; check for it only after a failure.

    Raises
    ------
    CheckpointIOError
        If the file still exists.
    """
    try:
        files.delete(path)
    except FileNotFoundError:
        return
    except OSError as error:
        try:
            if not files.exists(path):
                return
        except OSError:
            pass
        raise CheckpointIOError(
            f"{files.url(path)} could not be deleted: {error}. The next cleanup retries; check the "
            "permissions, or delete the file by hand."
        ) from error


def discard_durably(files: FileSystem, path: str) -> None:
    """Delete a file, which may be missing, so that it does not reappear after a power failure.

    Raises
    ------
    CheckpointIOError
        If the file still exists, or its directory cannot be synced.
    """
    discard_file(files, path)
    directory = parent_of(path)
    with failing_to("sync", files, directory), contextlib.suppress(FileNotFoundError):
        files.sync_directory(directory)


@dataclass(eq=False)
class FileStateHandle(StreamStateHandle):
    """State in a file; discarding deletes the file and never a directory.

    Attributes
    ----------
    size
        Size in bytes, -1 if unknown.
    checksum
        CRC-32 of the file, if known.
    """

    files: FileSystem
    path: str
    size: int
    checksum: int | None = None

    def __post_init__(self) -> None:
        if self.size < -1:
            raise ValueError(f"the size of {self.path!r} is {self.size}, but it must be -1 (unknown) or more")

    def open_input_stream(self) -> BinaryIO:
        return self.files.open_input(self.path)

    @property
    def stream_state_handle_id(self) -> str:
        return self.files.url(self.path)

    def discard_state(self) -> None:
        discard_file(self.files, self.path)

    @property
    def state_size(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"FileStateHandle({self.files.url(self.path)!r}, {self.size} bytes)"


@dataclass(eq=False)
class SegmentFileStateHandle(StreamStateHandle):
    """State in a segment of a file: the inline changes of a version.

    The segment is inside the version's metadata object, which owns the file.

    Attributes
    ----------
    start, size
        Offset and length in bytes.
    attempt_id
        The attempt that wrote the file. Checkpoint format v1 names metadata by version alone, so that another
        attempt may have taken the name; the file is then ``<path>.<attempt_id>``.
    checksum
        CRC-32 of the segment.
    """

    files: FileSystem
    path: str
    start: int
    size: int
    attempt_id: str
    checksum: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or self.size < 0:
            raise ValueError(
                f"a segment of {self.path!r} is {self.size} bytes from {self.start}, but neither can be "
                "negative"
            )

    def open_input_stream(self) -> BinaryIO:
        for path in (self.path, f"{self.path}.{self.attempt_id}"):
            try:
                # Read up to the end of the segment, however large the file is.
                data = self.files.read(path, 0, self.start + self.size)
            except FileNotFoundError:
                continue
            if attempt_id_of(data) == self.attempt_id:
                return io.BytesIO(data[self.start : self.start + self.size])
        raise FileNotFoundError(self.files.url(self.path))

    # Each commit registers all streams of its chain.
    @functools.cached_property
    def stream_state_handle_id(self) -> str:
        return f"{self.files.url(self.path)}#{self.attempt_id}"

    def discard_state(self) -> None:
        """Do nothing: the version's metadata owns the file."""

    @property
    def state_size(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return (
            f"SegmentFileStateHandle({self.files.url(self.path)!r}, bytes {self.start} to "
            f"{self.start + self.size} of attempt {self.attempt_id})"
        )
