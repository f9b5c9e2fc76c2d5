"""How a backend takes snapshots."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from spark_statestore.state.objects import StateObject

if TYPE_CHECKING:
    from spark_statestore.checkpoint.streams.base import CheckpointStreamFactory
    from spark_statestore.state.snapshot.future import SnapshotFuture
    from spark_statestore.state.snapshot.result import SnapshotResult

__all__ = ["AbstractSnapshotStrategy", "SnapshotStrategy", "Snapshotable"]

_logger = logging.getLogger(__name__)

S = TypeVar("S", bound=StateObject)
R = TypeVar("R")


class SnapshotStrategy(ABC, Generic[S]):
    """Takes snapshots; several may be on their way at once."""

    @abstractmethod
    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: object | None = None,
    ) -> SnapshotFuture[SnapshotResult[S]]:
        """Take a snapshot: what is in it is decided when this returns.

        Parameters
        ----------
        checkpoint_id
            The checkpoint that it is for.
        timestamp
            When the checkpoint was triggered, in milliseconds since 1970.
        stream_factory
            Opens the streams.
        options
            What kind of checkpoint it is, for strategies that make a difference.

        Returns
        -------
        SnapshotFuture
            Writes the snapshot. The caller must run it, and owns the state that it gives.
        """


class Snapshotable(SnapshotStrategy[S], Generic[S, R]):
    """Something whose state can be written and brought back."""

    @abstractmethod
    def restore(self, state: R | None) -> None:
        """Bring state back; None is a fresh start."""


class AbstractSnapshotStrategy(SnapshotStrategy[S]):
    """A strategy that logs how long its two parts took, at level DEBUG.

    Parameters
    ----------
    description
        What takes the snapshots.
    """

    def __init__(self, description: str) -> None:
        self.description = description

    def log_sync_completed(self, where: object, started: float) -> None:
        """Log the part in the caller's thread, begun at `started` on the clock `time.monotonic`."""
        self._log("synchronous", where, started)

    def log_async_completed(self, where: object, started: float) -> None:
        """Log the part that ran later, likewise."""
        self._log("asynchronous", where, started)

    def _log(self, part: str, where: object, started: float) -> None:
        _logger.debug(
            "%s (%s): the %s part took %d ms in thread %s",
            self.description,
            where,
            part,
            (time.monotonic() - started) * 1000,
            threading.current_thread().name,
        )

    def __str__(self) -> str:
        return f"SnapshotStrategy {{{self.description}}}"
