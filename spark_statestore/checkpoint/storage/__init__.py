"""Checkpoint storage: where checkpoints are kept, and who implements it."""

from spark_statestore.checkpoint.storage.base import (
    CHECKPOINT_DIR_PREFIX,
    CHECKPOINT_SHARED_STATE_DIR,
    CHECKPOINT_TASK_OWNED_STATE_DIR,
    METADATA_FILE_NAME,
    NOT_EXTERNALLY_ADDRESSABLE,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
    CompletedCheckpointStorageLocation,
)
from spark_statestore.checkpoint.storage.filesystem import FsCheckpointStorage
from spark_statestore.checkpoint.storage.memory import MemoryBackendCheckpointStorage

__all__ = [
    "CHECKPOINT_DIR_PREFIX",
    "CHECKPOINT_SHARED_STATE_DIR",
    "CHECKPOINT_TASK_OWNED_STATE_DIR",
    "METADATA_FILE_NAME",
    "NOT_EXTERNALLY_ADDRESSABLE",
    "CheckpointName",
    "CheckpointStorage",
    "CheckpointStorageLocation",
    "CompletedCheckpointStorageLocation",
    "FsCheckpointStorage",
    "MemoryBackendCheckpointStorage",
]
