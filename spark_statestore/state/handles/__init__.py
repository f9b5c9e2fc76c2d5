"""Handles: what a checkpoint stream gives back, and what a version is made of."""

from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.file import (
    FileStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
)
from spark_statestore.state.handles.incremental import ChainEntry, IncrementalStateHandle
from spark_statestore.state.handles.memory import ByteStreamStateHandle
from spark_statestore.state.handles.operator import (
    Mode,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.state.handles.placeholder import PlaceholderStreamStateHandle

__all__ = [
    "ByteStreamStateHandle",
    "ChainEntry",
    "FileStateHandle",
    "IncrementalStateHandle",
    "Mode",
    "OperatorStateHandle",
    "OperatorStreamStateHandle",
    "PlaceholderStreamStateHandle",
    "RelativeFileStateHandle",
    "SegmentFileStateHandle",
    "StateMetaInfo",
    "StreamStateHandle",
]
