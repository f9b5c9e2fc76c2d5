"""State of one operator in a checkpoint: a handle for each subtask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_statestore.storage.stream_handles import StateObject


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator: a handle for each of its subtasks that has state.

    Attributes
    ----------
    parallelism
        Its number of subtasks, 1 or more.
    max_parallelism
        The most subtasks that it can be given later, at least `parallelism`.
    subtasks
        A handle for each subtask, by number from 0; one without state is missing.
    """

    operator: str
    parallelism: int
    max_parallelism: int
    subtasks: Mapping[int, StateObject]

    def __post_init__(self) -> None:
        if not 1 <= self.parallelism <= self.max_parallelism:
            raise ValueError(
                f"operator {self.operator!r} has parallelism {self.parallelism}, which must be from 1 to its "
                f"largest one, {self.max_parallelism}"
            )
        outside = [subtask for subtask in self.subtasks if not 0 <= subtask < self.parallelism]
        if outside:
            raise ValueError(
                f"operator {self.operator!r} of parallelism {self.parallelism} has no subtasks {outside}"
            )
