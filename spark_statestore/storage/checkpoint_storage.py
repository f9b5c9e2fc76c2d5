"""Interfaces of checkpoint storage and of the location of one checkpoint, and the names of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from spark_statestore.storage.completed_locations import CompletedCheckpointStorageLocation
from spark_statestore.storage.location_reference import CheckpointStorageLocationReference
from spark_statestore.storage.streams import CheckpointMetadataOutputStream, CheckpointStreamFactory

CHECKPOINT_DIR_PREFIX: Final = "chk-"
"""Prefix of the names of checkpoints' directories."""

CHECKPOINT_SHARED_STATE_DIR: Final = "shared"
"""Name of the directory of state that checkpoints share."""

SAVEPOINT_DIR_PREFIX: Final = "savepoint-"
"""Prefix of the names of savepoints' directories."""


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """The name of one checkpoint of a store.

    Attributes
    ----------
    version
        The checkpoint's number, from 1.
    id
        The id that distinguishes attempts at the same version (Spark's checkpoint format v2); None
        if the version alone is the name (v1).
    """

    version: int
    id: str | None = None

    def __post_init__(self) -> None:
        if self.version < 0:
            raise ValueError(f"illegal negative checkpoint id: {self.version}")
        if self.id is not None and (not self.id or not self.id.isalnum() or len(self.id) > 64):
            raise ValueError(f"a checkpoint id is 1 to 64 letters and digits, but this is {self.id!r}")

    @classmethod
    def from_name_or_number(cls, checkpoint: CheckpointName | int) -> CheckpointName:
        """Return the name of a checkpoint given by name or number."""
        return checkpoint if isinstance(checkpoint, CheckpointName) else cls(checkpoint)

    @property
    def directory(self) -> str:
        """Name of the checkpoint's directory: ``chk-<version>[_<id>]``."""
        return f"{CHECKPOINT_DIR_PREFIX}{self.version}" + (f"_{self.id}" if self.id else "")

    @classmethod
    def parse(cls, directory: str) -> CheckpointName | None:
        """Parse the name of a checkpoint's directory; return None for other names."""
        if not directory.startswith(CHECKPOINT_DIR_PREFIX):
            return None
        version, _, attempt_id = directory[len(CHECKPOINT_DIR_PREFIX) :].partition("_")
        if not (version.isascii() and version.isdigit()):
            return None
        try:
            return cls(int(version), attempt_id or None)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"version {self.version}" + (f" (id {self.id})" if self.id else "")


class CheckpointStorageLocation(CheckpointStreamFactory):
    """The location of a checkpoint in progress, which opens its streams."""

    @property
    @abstractmethod
    def location_reference(self) -> CheckpointStorageLocationReference:
        """Reference by which `resolve_checkpoint_storage_location` finds this location."""

    @abstractmethod
    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """Open the stream of the checkpoint's metadata."""


class CheckpointStorage(ABC):
    """Storage of the checkpoints of one job: here one state store, or one operator of a query."""

    @abstractmethod
    def initialize_base_locations_for_checkpoint(self) -> None:
        """Make the directories that all checkpoints share, if they do not exist.

        Raises
        ------
        CheckpointIOError
            If one cannot be made.
        """

    @abstractmethod
    def initialize_location_for_checkpoint(
        self, checkpoint: CheckpointName | int
    ) -> CheckpointStorageLocation:
        """Make the location of a new checkpoint.

        Raises
        ------
        ValueError
            If the number is negative.
        CheckpointIOError
            If its directory cannot be made.
        """

    @abstractmethod
    def resolve_checkpoint_storage_location(
        self, checkpoint: CheckpointName | int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        """Return a factory of state streams for a checkpoint without making its directory.

        Raises
        ------
        ValueError
            If the number is negative, or the reference is not one of this kind of storage.
        """

    @abstractmethod
    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpointStorageLocation:
        """Return the location of the completed checkpoint at a pointer.

        Parameters
        ----------
        pointer
            URL of the checkpoint's directory, or of the file ``_metadata`` in it.

        Raises
        ------
        CheckpointNotFoundError
            If there is none.
        CheckpointIOError, StorageError
            If the storage cannot be reached, or is no usable one.
        """
