"""Streams that publish a checkpoint's metadata, and functions that read it in at most two requests."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Sequence
from typing import Final

from spark_statestore.errors import CheckpointExistsError, CheckpointIOError
from spark_statestore.files.base import Buffer, FileSystem
from spark_statestore.files.retry import require_exclusive_creation
from spark_statestore.formats.metadata import FOOTER, HEADER, LARGEST_BODY, LARGEST_STATE, METADATA_MAGIC
from spark_statestore.storage.checkpoint_storage import CheckpointName
from spark_statestore.storage.completed_locations import (
    FsCompletedCheckpointStorageLocation,
    NonPersistentCompletedCheckpointStorageLocation,
)
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.storage.streams import CheckpointMetadataOutputStream

# Larger than the metadata of most versions; smaller than what a second request costs.
_FIRST_READ: Final = 256 * 1024


class _CollectingOutputStream(CheckpointMetadataOutputStream):
    """Base of streams that collect metadata before they publish it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._parts: list[Buffer] = []
        self._checksum: int | None = None
        self._size = 0
        self._closed = False

    def get_pos(self) -> int:
        return self._size

    def write(self, data: Buffer) -> None:
        self._require_open()
        self._parts.append(bytes(data))
        self._size += memoryview(data).nbytes
        self._checksum = None

    def write_whole(self, parts: Sequence[Buffer], checksum: int) -> None:
        self._require_open()
        self._parts = list(parts)
        self._size = sum(memoryview(part).nbytes for part in parts)
        self._checksum = checksum

    def close(self) -> None:
        self._closed = True
        self._parts = []

    def _take(self) -> tuple[list[Buffer], int]:
        if self._closed:
            raise CheckpointIOError(
                f"the stream of {self._where} has already been closed: its metadata was published or "
                "abandoned"
            )
        parts, checksum = self._parts, self._checksum
        self.close()
        if checksum is None:
            parts = [b"".join(parts)]
            checksum = zlib.crc32(parts[0])
        return parts, checksum

    def _require_open(self) -> None:
        if self._closed:
            raise CheckpointIOError(f"the stream of {self._where} is closed; open a new one to write")


def require_exclusive_metadata(files: FileSystem, path: str, parts: Sequence[Buffer]) -> None:
    """Check that storage does not replace metadata without a checkpoint id.

    Several attempts may publish such metadata.
    """
    checkpoint = CheckpointName.parse(path.split("/")[-2])
    if checkpoint is not None and checkpoint.id is None:
        require_exclusive_creation(files, path, parts)


class FsCheckpointMetadataOutputStream(_CollectingOutputStream):
    """A stream that publishes a checkpoint's metadata atomically in a file.

    The target does not exist before it is published, and a failure leaves nothing behind; Flink leaves a
    partial file where the file system has no atomic publishing, and its staging file where it has. An
    existing target is never replaced.
    """

    def __init__(self, files: FileSystem, metadata_path: str) -> None:
        super().__init__(files.url(metadata_path))
        self._files = files
        self._path = metadata_path

    def close_and_finalize_checkpoint(self) -> FsCompletedCheckpointStorageLocation:
        parts, checksum = self._take()
        try:
            self._files.create_of_parts(self._path, parts)
            require_exclusive_metadata(self._files, self._path, parts)
        except FileExistsError as error:
            raise CheckpointExistsError(
                f"{self._where} exists already, and a checkpoint is never replaced. Use another number, or "
                "discard that checkpoint first; nothing was changed."
            ) from error
        except CheckpointIOError:
            raise
        except OSError as error:
            raise CheckpointIOError(
                f"could not publish {self._where}: {error}. It does not exist; a batch fails, and "
                "Spark may retry it. Check the storage's free space and permissions."
            ) from error
        return FsCompletedCheckpointStorageLocation(
            FileStateHandle(self._files, self._path, self._size, checksum)
        )


class MemoryCheckpointMetadataOutputStream(_CollectingOutputStream):
    """A stream that returns a checkpoint's metadata in its location.

    The checkpoint exists as long as this object.
    """

    def __init__(self) -> None:
        super().__init__("a checkpoint in memory")

    def close_and_finalize_checkpoint(self) -> NonPersistentCompletedCheckpointStorageLocation:
        parts, checksum = self._take()
        return NonPersistentCompletedCheckpointStorageLocation(
            ByteStreamStateHandle(str(uuid.uuid4()), b"".join(parts), checksum)
        )


def read_object(files: FileSystem, path: str) -> bytes:
    """Read a metadata object for `decode_object`; of another file, read the start only."""
    start, lengths = _read_start(files, path)
    if lengths is None:
        return start
    rest = HEADER.size + sum(lengths) + FOOTER.size - len(start)
    return start + files.read(path, len(start), max(0, rest) + 1)


def read_without_state(files: FileSystem, path: str, *, leave_out_small: bool = False) -> bytes:
    """Read a metadata object for `decode_object`, leaving out large inline state, or any."""
    start, lengths = _read_start(files, path)
    if lengths is None:
        if leave_out_small and len(start) >= HEADER.size and start[: len(METADATA_MAGIC)] == METADATA_MAGIC:
            return start[: HEADER.size] + start[HEADER.size + HEADER.unpack_from(start)[-2] :]
        return start
    inline, body = lengths
    return start[: HEADER.size] + files.read(path, HEADER.size + inline, body + FOOTER.size + 1)


def _read_start(files: FileSystem, path: str) -> tuple[bytes, tuple[int, int] | None]:
    """Read an object's start and the lengths of its inline state and body.

    The lengths are None if there is no more to read.
    """
    start = files.read(path, 0, _FIRST_READ)
    if len(start) < _FIRST_READ or start[: len(METADATA_MAGIC)] != METADATA_MAGIC:
        return start, None
    *_, inline_length, body_length = HEADER.unpack_from(start)
    if inline_length > LARGEST_STATE or body_length > LARGEST_BODY:
        return start, None
    return start, (inline_length, body_length)
