"""Checkpoint storage after Flink's model: streams, state handles, locations and storages."""

from spark_statestore.storage.checkpoint_storage import (
    CHECKPOINT_DIR_PREFIX,
    CHECKPOINT_SHARED_STATE_DIR,
    SAVEPOINT_DIR_PREFIX,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
)
from spark_statestore.storage.completed_locations import (
    METADATA_FILE_NAME,
    CompletedCheckpointStorageLocation,
    FsCompletedCheckpointStorageLocation,
    NonPersistentCompletedCheckpointStorageLocation,
)
from spark_statestore.storage.fs_storage import FsCheckpointStorage, FsCheckpointStorageLocation
from spark_statestore.storage.location_reference import (
    CheckpointStorageLocationReference,
    decode_path_from_reference,
    encode_path_as_reference,
)
from spark_statestore.storage.memory_storage import (
    MemoryBackendCheckpointStorage,
    NonPersistentMetadataCheckpointStorageLocation,
    PersistentMetadataCheckpointStorageLocation,
)

__all__ = [
    "CHECKPOINT_DIR_PREFIX",
    "CHECKPOINT_SHARED_STATE_DIR",
    "METADATA_FILE_NAME",
    "SAVEPOINT_DIR_PREFIX",
    "CheckpointName",
    "CheckpointStorage",
    "CheckpointStorageLocation",
    "CheckpointStorageLocationReference",
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
]
