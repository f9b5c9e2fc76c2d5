"""What every piece of checkpointed state has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

__all__ = ["StateObject", "discard_all"]


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
