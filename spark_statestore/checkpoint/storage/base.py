"""Where checkpoints are kept: the storage, and the location of one checkpoint in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_statestore.checkpoint.streams.base import (
        CheckpointMetadataOutputStream,
        CheckpointStreamFactory,
    )
    from spark_statestore.state.handles.base import StreamStateHandle

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
]

CHECKPOINT_DIR_PREFIX: Final = "chk-"
"""Starts the name of a checkpoint's directory."""

CHECKPOINT_SHARED_STATE_DIR: Final = "shared"
"""Directory of the state that checkpoints share."""

CHECKPOINT_TASK_OWNED_STATE_DIR: Final = "taskowned"
"""Directory of the state that belongs to no checkpoint."""

METADATA_FILE_NAME: Final = "_metadata"
"""The object that makes a checkpoint exist."""

NOT_EXTERNALLY_ADDRESSABLE: Final = "<checkpoint-not-externally-addressable>"
"""The pointer of a checkpoint whose metadata is only in memory."""


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """Names one checkpoint of a store.

    Attributes
    ----------
    version
        The checkpoint's number, from 1.
    id
        The id that tells attempts at the same version apart (Spark's checkpoint format v2); None
        where the version alone is the name (v1).
    """

    version: int
    id: str | None = None

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"illegal negative checkpoint id: {self.version}")
        if self.id is not None and (not self.id or not self.id.isalnum() or len(self.id) > 64):
            raise ValueError(f"a checkpoint id is 1 to 64 letters and digits, but this is {self.id!r}")

    @property
    def directory(self) -> str:
        """Name of the checkpoint's directory: ``chk-<version>[_<id>]``."""
        return f"{CHECKPOINT_DIR_PREFIX}{self.version}" + (f"_{self.id}" if self.id else "")

    @classmethod
    def parse(cls, directory: str) -> CheckpointName | None:
        """The name in a directory's name, None if it is no checkpoint's directory."""
        if not directory.startswith(CHECKPOINT_DIR_PREFIX):
            return None
        version, _, attempt = directory[len(CHECKPOINT_DIR_PREFIX) :].partition("_")
        if not (version.isascii() and version.isdigit()):
            return None
        try:
            return cls(int(version), attempt or None)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"version {self.version}" + (f" (id {self.id})" if self.id else "")


class CompletedCheckpointStorageLocation(ABC):
    """A checkpoint that exists: its metadata is published."""

    @property
    @abstractmethod
    def external_pointer(self) -> str:
        """The URL to find it by, or `NOT_EXTERNALLY_ADDRESSABLE`."""

    @property
    @abstractmethod
    def metadata_handle(self) -> StreamStateHandle:
        """The metadata."""

    @abstractmethod
    def dispose_storage_location(self) -> None:
        """Remove the location once metadata and state are gone."""


class CheckpointStorageLocation(ABC):
    """The place of one checkpoint that is being made."""

    @abstractmethod
    def stream_factory(self) -> CheckpointStreamFactory:
        """Opens the checkpoint's state streams."""

    @abstractmethod
    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """Open the stream of the checkpoint's metadata."""

    @abstractmethod
    def dispose_on_failure(self) -> None:
        """Remove what only this checkpoint has; shared state is its owner's to discard."""


class CheckpointStorage(ABC):
    """Keeps the checkpoints of one store."""

    @property
    @abstractmethod
    def supports_highly_available_storage(self) -> bool:
        """Whether checkpoints outlive the process that made them."""

    @abstractmethod
    def initialize_base_locations_for_checkpoint(self) -> None:
        """Make the directories that all checkpoints of the store share; fine to repeat."""

    @abstractmethod
    def initialize_location_for_checkpoint(self, name: CheckpointName) -> CheckpointStorageLocation:
        """Make the place of a new checkpoint."""

    @abstractmethod
    def resolve_checkpoint_storage_location(self, name: CheckpointName) -> CheckpointStreamFactory:
        """Open state streams for a checkpoint whose place somebody else makes, or nobody."""

    @abstractmethod
    def resolve_checkpoint(self, name: CheckpointName) -> CompletedCheckpointStorageLocation:
        """Find a checkpoint by its name, without looking whether it is there."""
