"""What every piece of checkpointed state has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_statestore.checkpoint.registry import SharedStateRegistry

__all__ = ["CompositeStateHandle", "StateObject", "discard_all", "raise_first", "try_all"]


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
    """Discard every object, see `try_all`."""
    try_all(state.discard_state for state in objects if state is not None)


def try_all(actions: Iterable[Callable[[], None]]) -> None:
    """Do everything before the first failure is raised; later failures are notes of it."""
    failures: list[Exception] = []
    for action in actions:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - all are tried before the first is raised
            failures.append(error)
    raise_first(failures)


def raise_first(failures: list[Exception]) -> None:
    """Raise the first of some failures, if there is one; the others are notes of it."""
    if failures:
        for failure in failures[1:]:
            failures[0].add_note(f"also: {failure!r}")
        raise failures[0]
