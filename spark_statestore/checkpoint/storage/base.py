"""Where checkpoints are kept: the storage, and the location of one checkpoint in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

from spark_statestore.checkpoint.completed.location import CompletedCheckpointStorageLocation
from spark_statestore.checkpoint.storage.references import CheckpointStorageLocationReference
from spark_statestore.checkpoint.streams.base import (
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
)

__all__ = [
    "CHECKPOINT_DIR_PREFIX",
    "CHECKPOINT_SHARED_STATE_DIR",
    "CHECKPOINT_TASK_OWNED_STATE_DIR",
    "METADATA_FILE_NAME",
    "SAVEPOINT_DIR_PREFIX",
    "CheckpointName",
    "CheckpointStorage",
    "CheckpointStorageCoordinatorView",
    "CheckpointStorageLocation",
    "CheckpointStorageWorkerView",
]

CHECKPOINT_DIR_PREFIX: Final = "chk-"
"""Starts the name of a checkpoint's directory."""

CHECKPOINT_SHARED_STATE_DIR: Final = "shared"
"""Directory of the state that checkpoints share."""

CHECKPOINT_TASK_OWNED_STATE_DIR: Final = "taskowned"
"""Directory of the state that belongs to no checkpoint."""

METADATA_FILE_NAME: Final = "_metadata"
"""The object that makes a checkpoint exist."""

SAVEPOINT_DIR_PREFIX: Final = "savepoint-"
"""Starts the name of a savepoint's directory."""


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

    @classmethod
    def of(cls, checkpoint: CheckpointName | int) -> CheckpointName:
        """The name of a checkpoint that may be given by its number alone."""
        return checkpoint if isinstance(checkpoint, CheckpointName) else cls(checkpoint)

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


class CheckpointStorageLocation(CheckpointStreamFactory):
    """The place of one checkpoint that is being made; opens its streams."""

    @abstractmethod
    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """Open the stream of the checkpoint's metadata.

        Raises
        ------
        CheckpointExistsError
            If the checkpoint has metadata already; some locations see that only when the metadata
            is published.
        """

    @abstractmethod
    def dispose_on_failure(self) -> None:
        """Remove what only this checkpoint has; shared state is its owner's to discard."""

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        """What those who write a part of the checkpoint need to find the place."""
        return CheckpointStorageLocationReference.default()


class CheckpointStorageCoordinatorView(ABC):
    """What the side that decides on checkpoints asks of their storage."""

    @property
    @abstractmethod
    def supports_highly_available_storage(self) -> bool:
        """Whether checkpoints outlive the process that made them."""

    @property
    @abstractmethod
    def has_default_savepoint_location(self) -> bool:
        """Whether a savepoint can be made without saying where."""

    @abstractmethod
    def resolve_checkpoint(self, pointer: str) -> CompletedCheckpointStorageLocation:
        """Find a checkpoint or savepoint.

        Parameters
        ----------
        pointer
            URL or path of its directory or of its metadata, which may have any name.

        Raises
        ------
        TypeError, StorageURLError
            If there is no pointer, or it is none that names a place.
        CheckpointNotFoundError
            If nothing is there.
        MetadataNotFoundError
            If the directory is there, without metadata.
        CheckpointIOError, StorageError
            If the file system cannot be used.
        """

    @abstractmethod
    def initialize_base_locations_for_checkpoint(self) -> None:
        """Make the directories that all checkpoints share; fine to repeat.

        Raises
        ------
        CheckpointIOError
            If one cannot be made.
        """

    @abstractmethod
    def initialize_location_for_checkpoint(
        self, checkpoint: CheckpointName | int
    ) -> CheckpointStorageLocation:
        """Make the place of a new checkpoint.

        Raises
        ------
        ValueError
            If the number is negative.
        CheckpointIOError
            If its directory cannot be made.
        """

    @abstractmethod
    def initialize_location_for_savepoint(
        self, checkpoint: CheckpointName | int, target: str | None = None
    ) -> CheckpointStorageLocation:
        """Make the place of a new savepoint, a directory of its own.

        Parameters
        ----------
        checkpoint
            The savepoint's number, which its name does not tell.
        target
            URL of the directory that it goes into; the default location if not given.

        Raises
        ------
        OptionError
            If neither a target nor a default is given.
        CheckpointIOError
            If no directory can be made.
        """


class CheckpointStorageWorkerView(ABC):
    """What the side that writes state asks of its storage; never makes a directory."""

    @abstractmethod
    def resolve_checkpoint_storage_location(
        self,
        checkpoint: CheckpointName | int,
        reference: CheckpointStorageLocationReference,
    ) -> CheckpointStreamFactory:
        """Open state streams for a checkpoint whose place somebody else makes.

        Raises
        ------
        ValueError
            If the reference is not the default one and names no place.
        """

    @abstractmethod
    def create_task_owned_state_stream(self) -> CheckpointStateOutputStream:
        """Open a stream of state that belongs to no checkpoint: its writer discards it, nobody else."""


class CheckpointStorage(CheckpointStorageCoordinatorView, CheckpointStorageWorkerView):
    """Keeps the checkpoints of one job, which here is one state store or one query's operator."""
