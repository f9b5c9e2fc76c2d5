"""Which operator of a program gets which state of a snapshot: a pure decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_statestore.errors import IllegalStateError
from spark_statestore.state.operator_state import OperatorState

__all__ = ["ProgramOperator", "assign_states"]


@dataclass(frozen=True, slots=True)
class ProgramOperator:
    """An operator of the program that starts from a snapshot.

    Attributes
    ----------
    name
        What its state is stored under.
    max_parallelism
        The most subtasks that it can ever have, None if the program leaves that open.
    former_names
        What its state may be stored under instead, newest first.
    """

    name: str
    max_parallelism: int | None = None
    former_names: tuple[str, ...] = ()


def assign_states(
    states: Mapping[str, OperatorState],
    program: Iterable[ProgramOperator],
    where: str,
    *,
    allow_non_restored_state: bool = False,
) -> dict[str, OperatorState]:
    """Give each operator of a program its state.

    The number of subtasks may differ from the snapshot's, the largest number may not: state is
    spread over that many parts.

    Parameters
    ----------
    states
        The snapshot's states, by operator.
    program
        The operators.
    where
        The snapshot's pointer, for messages.
    allow_non_restored_state
        Whether state may be left behind that no operator takes.

    Returns
    -------
    dict
        The states, by the operators' present names; an operator without one starts empty.

    Raises
    ------
    IllegalStateError
        If a state would be left behind, or the largest parallelism differs from the one that the
        program asks for.
    """
    left = dict(states)
    assigned = {}
    for operator in program:
        name = next((name for name in (operator.name, *operator.former_names) if name in left), None)
        if name is None:
            continue
        state = left.pop(name)
        if operator.max_parallelism not in (None, state.max_parallelism):
            raise IllegalStateError(
                f"operator {operator.name!r} can have {state.max_parallelism} subtasks at most in the snapshot {where}, "
                f"and the program sets that to {operator.max_parallelism}. State is spread over that number, so it "
                f"cannot change: set it to {state.max_parallelism}, or leave it open. Nothing was changed."
            )
        assigned[operator.name] = state
    # What is empty is no loss.
    lost = sorted(name for name, state in left.items() if state.subtasks)
    if lost and not allow_non_restored_state:
        raise IllegalStateError(
            f"the snapshot {where} has state of {', '.join(map(repr, lost))}, and the program has no such operator. Give "
            "an operator the name that its state is stored under, or allow state to be left behind with "
            "allow_non_restored_state. Nothing was changed."
        )
    return assigned
