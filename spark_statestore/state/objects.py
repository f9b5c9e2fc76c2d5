"""What every piece of checkpointed state has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_statestore.checkpoint.registry import SharedStateRegistry

__all__ = ["CompositeStateHandle", "StateObject", "discard_all"]


class StateObject(ABC):
    """A piece of state that lies somewhere and can be discarded."""

    @abstractmethod
    def discard_state(self) -> None:
        """Remove what this object stands for.

        Discarding what is already gone succeeds.

        Raises
        ------
        OSError
            If something is left.
        """

    @property
    @abstractmethod
    def state_size(self) -> int:
        """Bytes of the state, -1 if unknown."""


class CompositeStateHandle(StateObject):
    """State in several pieces, some of which other checkpoints may share."""

    @abstractmethod
    def register_shared_states(self, registry: SharedStateRegistry, checkpoint_id: int) -> None:
        """Hand the shared pieces over to a registry, which from then on discards them.

        Parameters
        ----------
        checkpoint_id
            The checkpoint that uses them.

        Raises
        ------
        IllegalStateError
            If they were handed to this registry before.
        """

    @property
    @abstractmethod
    def checkpointed_size(self) -> int:
        """Bytes that were newly written for this state, rather than taken over."""


def discard_all(objects: Iterable[StateObject | None]) -> None:
    """Discard every object, trying all before the first failure is raised.

    Later failures are notes of the first one.
    """
    failure: Exception | None = None
    for state in objects:
        if state is None:
            continue
        try:
            state.discard_state()
        except Exception as error:  # noqa: BLE001 - all are tried before the first is raised
            if failure is None:
                failure = error
            else:
                failure.add_note(f"also: {error!r}")
    if failure is not None:
        raise failure
