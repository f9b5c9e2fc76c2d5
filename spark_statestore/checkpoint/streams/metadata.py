"""Streams of metadata, which publish a checkpoint."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Sequence

from spark_statestore.checkpoint.completed.location import (
    FsCompletedCheckpointStorageLocation,
    NonPersistentCompletedCheckpointStorageLocation,
)
from spark_statestore.checkpoint.files.base import Buffer, FileSystem, parent_of
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.streams.base import CheckpointMetadataOutputStream
from spark_statestore.errors import CheckpointExistsError, CheckpointIOError
from spark_statestore.state.handles.file import FileStateHandle
from spark_statestore.state.handles.memory import ByteStreamStateHandle

__all__ = ["FsCheckpointMetadataOutputStream", "MemoryCheckpointMetadataOutputStream"]


class _CollectingOutputStream(CheckpointMetadataOutputStream):
    """Collects the metadata, which is published whole."""

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

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self._closed = True
        self._parts = []

    def _take(self) -> tuple[list[Buffer], int]:
        if self._closed:
            raise CheckpointIOError(
                f"the stream of {self._where} has already been closed: its metadata was published or given up"
            )
        parts, checksum = self._parts, self._checksum
        self.close()
        if checksum is None:
            parts = [b"".join(parts)]
            checksum = zlib.crc32(parts[0])
        return parts, checksum

    def _require_open(self) -> None:
        if self._closed:
            raise CheckpointIOError(f"the stream of {self._where} is closed, nothing can be written to it")


class FsCheckpointMetadataOutputStream(_CollectingOutputStream):
    """Collects a checkpoint's metadata and publishes it in a file, at once.

    Nothing shows at the target until it is published, on any file system, and nothing is left of
    what is not; Flink leaves a part there where the file system has no atomic publishing, and its
    staging file where it has. What is at the target is never replaced.

    Parameters
    ----------
    files
        The file system.
    metadata_path
        Where the metadata appears.
    exclusive_checkpoint_directory
        What is removed when the checkpoint is disposed of.
    look_first
        Whether to look for metadata at the target before anything is written. Without it, which
        saves a request, it is found when this metadata is published.

    Raises
    ------
    CheckpointExistsError
        If there is metadata at the target already.
    CheckpointIOError
        If the target cannot be looked at.
    """

    def __init__(
        self,
        files: FileSystem,
        metadata_path: str,
        exclusive_checkpoint_directory: str,
        *,
        look_first: bool = True,
    ) -> None:
        url = files.url(metadata_path)
        super().__init__(url)
        self._files = files
        self._path = metadata_path
        self._directory = exclusive_checkpoint_directory
        if look_first:
            with failing_to("look for", files, metadata_path):
                if files.exists(metadata_path):
                    raise _exists(url)

    def close_and_finalize_checkpoint(self) -> FsCompletedCheckpointStorageLocation:
        parts, checksum = self._take()
        try:
            self._files.create_of_parts(self._path, parts)
        except FileExistsError as error:
            raise _exists(self._where) from error
        except OSError as error:
            raise CheckpointIOError(
                f"could not publish {self._where}: {error}. The version does not exist; the batch "
                "fails and is run again. Check the storage's free space and permissions."
            ) from error
        return FsCompletedCheckpointStorageLocation(
            self._files,
            self._directory,
            FileStateHandle(self._files, self._path, self._size, checksum),
            self._files.url(parent_of(self._path)),
        )


class MemoryCheckpointMetadataOutputStream(_CollectingOutputStream):
    """Collects a checkpoint's metadata and gives it away in a handle.

    What comes back is the checkpoint: it exists as long as somebody holds it.
    """

    def __init__(self) -> None:
        super().__init__("a checkpoint in memory")

    def close_and_finalize_checkpoint(self) -> NonPersistentCompletedCheckpointStorageLocation:
        parts, checksum = self._take()
        return NonPersistentCompletedCheckpointStorageLocation(
            ByteStreamStateHandle(str(uuid.uuid4()), b"".join(parts), checksum)
        )


def _exists(url: str) -> CheckpointExistsError:
    return CheckpointExistsError(
        f"{url} is there already, and a checkpoint is never replaced. Take another number, or discard that "
        "checkpoint first; nothing was changed."
    )
