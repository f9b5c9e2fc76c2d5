"""The metadata of a checkpoint."""

from spark_statestore.checkpoint.metadata.format import METADATA_FORMAT_VERSION, MetadataKind
from spark_statestore.checkpoint.metadata.operators import (
    OperatorsMetadata,
    decode_operators,
    encode_operators,
)
from spark_statestore.checkpoint.metadata.store import (
    CheckpointMetadata,
    NamedState,
    StoreId,
    decode_metadata,
    encode_metadata,
)

__all__ = [
    "METADATA_FORMAT_VERSION",
    "CheckpointMetadata",
    "MetadataKind",
    "NamedState",
    "OperatorsMetadata",
    "StoreId",
    "decode_metadata",
    "decode_operators",
    "encode_metadata",
    "encode_operators",
]
