"""The metadata of a checkpoint."""

from spark_statestore.checkpoint.metadata.format import (
    METADATA_FORMAT_VERSION,
    CheckpointMetadata,
    NamedState,
    StoreId,
    decode_metadata,
    encode_metadata,
)

__all__ = [
    "METADATA_FORMAT_VERSION",
    "CheckpointMetadata",
    "NamedState",
    "StoreId",
    "decode_metadata",
    "encode_metadata",
]
