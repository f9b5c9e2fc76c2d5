"""Completed checkpoints for tests: real files, of which some cannot be deleted."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint
from spark_statestore.checkpoint.completed.location import FsCompletedCheckpointStorageLocation
from spark_statestore.checkpoint.completed.properties import CheckpointProperties
from spark_statestore.checkpoint.files import LocalFileSystem
from spark_statestore.state.handles import (
    ChainEntry,
    FileStateHandle,
    IncrementalStateHandle,
    OperatorStreamStateHandle,
    StreamStateHandle,
)
from spark_statestore.state.operator_state import OperatorState

CHECKPOINT = CheckpointProperties.for_checkpoint()
SAVEPOINT = CheckpointProperties.for_savepoint()


class Files(LocalFileSystem):
    """Notes what is deleted, and refuses to delete what it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.stubborn: set[str] = set()

    def delete(self, path: str) -> None:
        self._note(path)
        super().delete(path)

    def delete_directory(self, path: str, *, recursive: bool = False) -> None:
        self._note(path)
        super().delete_directory(path, recursive=recursive)

    def _note(self, path: str) -> None:
        name = path.rpartition("/")[2]
        self.log.append(name)
        if name in self.stubborn:
            raise PermissionError(f"not {name}")


def write(files: Files, path: Path) -> FileStateHandle:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"12345")
    return FileStateHandle(files, str(path), 5)


def incremental(version: int, *streams: StreamStateHandle) -> IncrementalStateHandle:
    entries = [
        ChainEntry(
            version,
            False,
            OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=stream),
        )
        for stream in streams
    ]
    return IncrementalStateHandle(version, min(version, 1), entries)


def checkpoint(
    files: Files,
    root: Path,
    number: int,
    properties: CheckpointProperties = CHECKPOINT,
    *,
    shared: Iterable[StreamStateHandle] = (),
    private: int = 1,
    restored: CheckpointProperties | None = None,
) -> CompletedCheckpoint:
    """A checkpoint in ``chk-<number>`` with one private file for each subtask but the first."""
    directory = root / f"chk-{number}"
    metadata = write(files, directory / f"{number}-metadata")
    own = {i + 1: write(files, directory / f"{number}-state-{i}") for i in range(private)}
    state = OperatorState("op", private + 1, 128, {0: incremental(number, *shared), **own})
    location = FsCompletedCheckpointStorageLocation(files, str(directory), metadata, f"file://{directory}")
    return CompletedCheckpoint(number, 100, 107, {"op": state}, properties, location, restored)


def left(root: Path) -> set[str]:
    """Names of the files that are there, and of the directories that are empty."""
    return {path.name for path in root.rglob("*") if path.is_file() or not any(path.iterdir())}
