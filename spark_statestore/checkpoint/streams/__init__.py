"""Checkpoint streams: how state gets out, and the handle that comes back."""

from spark_statestore.checkpoint.streams.base import (
    CheckpointedStateScope,
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)
from spark_statestore.checkpoint.streams.filesystem import (
    FsCheckpointStateOutputStream,
    FsCheckpointStreamFactory,
)
from spark_statestore.checkpoint.streams.memory import (
    MemCheckpointStreamFactory,
    MemoryCheckpointOutputStream,
)
from spark_statestore.checkpoint.streams.metadata import (
    FsCheckpointMetadataOutputStream,
    MemoryCheckpointMetadataOutputStream,
)

__all__ = [
    "CheckpointMetadataOutputStream",
    "CheckpointStateOutputStream",
    "CheckpointStreamFactory",
    "CheckpointedStateScope",
    "FsCheckpointMetadataOutputStream",
    "FsCheckpointStateOutputStream",
    "FsCheckpointStreamFactory",
    "MemCheckpointStreamFactory",
    "MemoryCheckpointMetadataOutputStream",
    "MemoryCheckpointOutputStream",
]
