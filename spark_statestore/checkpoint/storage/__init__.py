"""Checkpoint storage: where checkpoints are kept, and who implements it."""

from spark_statestore.checkpoint.completed.location import (
    NOT_EXTERNALLY_ADDRESSABLE,
    CompletedCheckpointStorageLocation,
    FsCompletedCheckpointStorageLocation,
    NonPersistentCompletedCheckpointStorageLocation,
)
from spark_statestore.checkpoint.storage.base import (
    CHECKPOINT_DIR_PREFIX,
    CHECKPOINT_SHARED_STATE_DIR,
    CHECKPOINT_TASK_OWNED_STATE_DIR,
    METADATA_FILE_NAME,
    SAVEPOINT_DIR_PREFIX,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageCoordinatorView,
    CheckpointStorageLocation,
    CheckpointStorageWorkerView,
)
from spark_statestore.checkpoint.storage.filesystem import FsCheckpointStorage
from spark_statestore.checkpoint.storage.locations import (
    FsCheckpointStorageLocation,
    NonPersistentMetadataCheckpointStorageLocation,
    PersistentMetadataCheckpointStorageLocation,
)
from spark_statestore.checkpoint.storage.memory import MemoryBackendCheckpointStorage
from spark_statestore.checkpoint.storage.pointers import resolve_checkpoint_pointer
from spark_statestore.checkpoint.storage.references import (
    REFERENCE_MAGIC_NUMBER,
    CheckpointStorageLocationReference,
    decode_path_from_reference,
    encode_path_as_reference,
)

__all__ = [
    "CHECKPOINT_DIR_PREFIX",
    "CHECKPOINT_SHARED_STATE_DIR",
    "CHECKPOINT_TASK_OWNED_STATE_DIR",
    "METADATA_FILE_NAME",
    "NOT_EXTERNALLY_ADDRESSABLE",
    "REFERENCE_MAGIC_NUMBER",
    "SAVEPOINT_DIR_PREFIX",
    "CheckpointName",
    "CheckpointStorage",
    "CheckpointStorageCoordinatorView",
    "CheckpointStorageLocation",
    "CheckpointStorageLocationReference",
    "CheckpointStorageWorkerView",
    "CompletedCheckpointStorageLocation",
    "FsCheckpointStorage",
    "FsCheckpointStorageLocation",
    "FsCompletedCheckpointStorageLocation",
    "MemoryBackendCheckpointStorage",
    "NonPersistentCompletedCheckpointStorageLocation",
    "NonPersistentMetadataCheckpointStorageLocation",
    "PersistentMetadataCheckpointStorageLocation",
    "decode_path_from_reference",
    "encode_path_as_reference",
    "resolve_checkpoint_pointer",
]
