"""State in a file of its own, or in a part of one."""

from __future__ import annotations

from typing import BinaryIO

from spark_statestore.checkpoint.files.base import FileSystem, join
from spark_statestore.errors import CheckpointIOError
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.memory import BoundedBytesIO
from spark_statestore.state.handles.owner import owner_of

__all__ = ["FileStateHandle", "RelativeFileStateHandle", "SegmentFileStateHandle", "discard_file"]


def discard_file(files: FileSystem, path: str) -> None:
    """Delete a file, asking whether it exists only when deleting it failed.

    Raises
    ------
    CheckpointIOError
        If the file is still there.
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
            f"{files.url(path)} could not be deleted: {error}. It is left behind; delete it by hand, or let "
            "the next cleanup try again."
        ) from error


class FileStateHandle(StreamStateHandle):
    """State in a file.

    As in Flink, handles are equal if their paths are. Discarding deletes the file and never a
    directory.

    Parameters
    ----------
    files
        The file system.
    path
        The file's path there.
    size
        Bytes, -1 if unknown.
    checksum
        CRC-32 of the file, if known.
    """

    def __init__(self, files: FileSystem, path: str, size: int, checksum: int | None = None) -> None:
        if size < -1:
            raise ValueError(f"the size of {path!r} is {size}, but it must be -1 (unknown) or more")
        self.files = files
        self.path = path
        self.size = size
        self.checksum = checksum

    def open_input_stream(self) -> BinaryIO:
        return self.files.open_input(self.path)

    def as_bytes_if_in_memory(self) -> None:
        return None

    @property
    def stream_state_handle_id(self) -> str:
        return self.files.url(self.path)

    def discard_state(self) -> None:
        discard_file(self.files, self.path)

    @property
    def state_size(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileStateHandle):
            return NotImplemented
        return self.path == other.path and self.files.scheme == other.files.scheme

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.files.url(self.path)!r}, {self.size} bytes)"


class RelativeFileStateHandle(FileStateHandle):
    """State in a file that belongs to one directory and moves with it.

    Parameters
    ----------
    directory
        The directory.
    relative_path
        The file's path from there.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        relative_path: str,
        size: int,
        checksum: int | None = None,
    ) -> None:
        super().__init__(files, join(directory, relative_path), size, checksum)
        self.relative_path = relative_path

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RelativeFileStateHandle):
            return FileStateHandle.__eq__(self, other) is True and self.relative_path == other.relative_path
        if isinstance(other, FileStateHandle):
            return False
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.path)


class SegmentFileStateHandle(StreamStateHandle):
    """State in a part of a file: here, the changes that a version keeps inside its metadata.

    Discarding does nothing: the file goes when nothing in it is needed any more, which its owner
    decides.

    Parameters
    ----------
    files
        The file system.
    path
        Path of the file.
    start, size
        Bytes.
    owner
        The commit attempt that wrote the file. Checkpoint format v1 names metadata by version
        alone, so another attempt may have taken the name; then the file lies beside it as
        ``<path>.<owner>``.
    checksum
        CRC-32 of the part.
    """

    def __init__(
        self,
        files: FileSystem,
        path: str,
        start: int,
        size: int,
        owner: str,
        checksum: int | None = None,
    ) -> None:
        if start < 0 or size < 0:
            raise ValueError(f"a part of {path!r} is {size} bytes from {start}, but neither can be negative")
        self.files = files
        self.path = path
        self.start = start
        self.size = size
        self.owner = owner
        self.checksum = checksum

    def open_input_stream(self) -> BinaryIO:
        for path in (self.path, f"{self.path}.{self.owner}"):
            try:
                # No more than that, however long the file is.
                data = self.files.read(path, 0, self.start + self.size)
            except FileNotFoundError:
                continue
            if owner_of(data) == self.owner:
                return BoundedBytesIO(data[self.start : self.start + self.size])
        raise FileNotFoundError(self.files.url(self.path))

    def as_bytes_if_in_memory(self) -> None:
        return None

    @property
    def stream_state_handle_id(self) -> str:
        return f"{self.files.url(self.path)}#{self.owner}"

    def discard_state(self) -> None:
        """Nothing to do: the file belongs to a version's metadata."""

    @property
    def state_size(self) -> int:
        return self.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SegmentFileStateHandle):
            return NotImplemented
        mine = (self.path, self.owner, self.start, self.size)
        return mine == (other.path, other.owner, other.start, other.size)

    def __hash__(self) -> int:
        return hash((self.path, self.owner, self.start))

    def __repr__(self) -> str:
        return (
            f"SegmentFileStateHandle({self.files.url(self.path)!r}, "
            f"bytes {self.start} to {self.start + self.size} of attempt {self.owner})"
        )
