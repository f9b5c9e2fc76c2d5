"""Parts of an operator's state: one checkpoint for each batch and subtask."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from spark_statestore.errors import CorruptCheckpointError, restore_from_backup
from spark_statestore.storage import CheckpointName

MAX_PARALLELISM: Final = 0xFFFF

_ATTEMPT_ID: Final = re.compile(r"([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})")


@dataclass(frozen=True, slots=True, order=True)
class StatePart:
    """The name of what one subtask left in one batch.

    Attributes
    ----------
    attempt
        Number of the attempt, from 1. A later run of a batch has higher numbers than those before it.
    subtask, parallelism
        The subtask, from 0, and the number of subtasks in that run of the batch.
    """

    batch: int
    attempt: int
    subtask: int
    parallelism: int

    @property
    def name(self) -> CheckpointName:
        """Name of the checkpoint: attempt, parallelism and subtask make up the attempt id."""
        return CheckpointName(self.batch, f"{self.attempt:08x}{self.parallelism:04x}{self.subtask:04x}")

    @classmethod
    def from_checkpoint(cls, name: CheckpointName | None) -> StatePart | None:
        """Parse the name of a checkpoint; return None if it is not that of a part."""
        match = _ATTEMPT_ID.fullmatch(name.id or "") if name is not None else None
        if name is None or match is None:
            return None
        attempt, parallelism, subtask = (int(digits, 16) for digits in match.groups())
        return cls(name.version, attempt, subtask, parallelism) if subtask < parallelism else None


def by_batch(parts: Iterable[StatePart]) -> dict[int, list[StatePart]]:
    """Return the parts of each batch, oldest batch first."""
    batches: dict[int, list[StatePart]] = {}
    for part in sorted(parts):
        batches.setdefault(part.batch, []).append(part)
    return batches


def complete_parts(parts: Collection[StatePart]) -> tuple[StatePart, ...] | None:
    """Return the parts of a batch's last run, in the order of the subtasks; None if it is not complete.

    The last run is the one with the highest attempt number. A task of an earlier run, with another
    parallelism, may have published its part late, under the same number; its run is not complete.

    `parts` are those of the batch that have metadata, at least one.
    """
    runs: dict[int, dict[int, StatePart]] = {}
    for part in sorted(parts):
        runs.setdefault(part.parallelism, {})[part.subtask] = part
    last = max(part.attempt for part in parts)
    complete = [
        tuple(run[subtask] for subtask in range(parallelism))
        for parallelism, run in runs.items()
        if len(run) == parallelism and max(part.attempt for part in run.values()) == last
    ]
    # Two complete runs under one number: nothing tells which one Spark committed.
    return complete[0] if len(complete) == 1 else None


def require_complete(parts: Collection[StatePart], where: str) -> tuple[StatePart, ...]:
    """Return the parts of a committed batch's last run, in the order of the subtasks."""
    complete = complete_parts(parts)
    if complete is None:
        runs: dict[int, set[int]] = {}
        for part in parts:
            runs.setdefault(part.parallelism, set()).add(part.subtask)
        present = "; ".join(f"{sorted(subtasks)} of {count}" for count, subtasks in sorted(runs.items()))
        batch = max(part.batch for part in parts)
        raise CorruptCheckpointError(
            f"{where} is incomplete for batch {batch}: there are the parts of subtasks {present}. Either "
            "num_retained does not keep the batch any more, or files are missing, or Spark committed the "
            "batch although a subtask did not checkpoint its state: use batch() in every partition, empty "
            "ones too. " + restore_from_backup("missing files")
        )
    return complete
