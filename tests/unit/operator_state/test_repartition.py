"""Redistribution of state to another number of subtasks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from spark_statestore.operator_state import RoundRobinOperatorStateRepartitioner
from spark_statestore.storage.operator_handles import (
    Mode,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.storage.stream_handles import ByteStreamStateHandle

SPLIT, UNITED, BROADCAST = Mode.SPLIT_DISTRIBUTE, Mode.UNION, Mode.BROADCAST

Element = tuple[str, int]


def handle(stream: str, **states: tuple[Mode, Sequence[int]]) -> OperatorStreamStateHandle:
    return OperatorStreamStateHandle(
        state_name_to_partition_offsets={
            name: StateMetaInfo(tuple(offsets), mode) for name, (mode, offsets) in states.items()
        },
        delegate_state_handle=ByteStreamStateHandle(stream, b""),
    )


def repartition(previous: Any, new: int) -> Any:
    """Repartition, and see that what was given is as it was."""
    before = copy.deepcopy(previous)
    result = RoundRobinOperatorStateRepartitioner().repartition_state(previous, len(previous), new)
    assert previous == before
    assert len(result) == new
    return result


def elements(handles: Sequence[OperatorStreamStateHandle | None], name: str) -> list[Element]:
    """Stream and offset of each element, in the order in which a subtask restores them."""
    return [
        (h.stream_state_handle_id, offset)
        for h in handles
        if h is not None and name in h.state_name_to_partition_offsets
        for offset in h.state_name_to_partition_offsets[name].offsets
    ]


def names(handles: Sequence[OperatorStreamStateHandle]) -> set[str]:
    return {name for h in handles for name in h.state_name_to_partition_offsets}


def test_repartitioner_gives_overlapping_union_lists_once() -> None:
    overlapping = [[handle("A", u=(UNITED, [1, 2]))], [handle("A", u=(UNITED, [2, 3]))]]
    for handles in repartition(overlapping, 3):
        assert elements(handles, "u") == [("A", 1), ("A", 2), ("A", 3)]


def test_repartitioner_joins_neighbours_of_one_stream() -> None:
    previous = [
        [handle("A", a=(SPLIT, [1]))],
        [handle("A", a=(SPLIT, [3]))],
        [handle("B", a=(SPLIT, [4]))],
        [handle("A", a=(SPLIT, [5]))],
    ]
    (handles,) = repartition(previous, 1)
    assert [h.stream_state_handle_id for h in handles] == ["A", "B", "A"]
    assert elements(handles, "a") == [("A", 1), ("A", 3), ("B", 4), ("A", 5)]
    twice = [[handle("A", b=(BROADCAST, [7])), handle("A", b=(BROADCAST, [7]), u=(UNITED, [2]))]]
    (handles,) = repartition(twice, 1)
    assert elements(handles, "b") == [("A", 7)]


@pytest.mark.parametrize(
    ("previous", "old", "new", "error"),
    [(None, 0, 1, TypeError), ([[]], 1, 0, ValueError), ([[]], 1, -1, ValueError), ([[]], 2, 1, ValueError),
     ([[], []], 1, 1, ValueError)],
)  # fmt: skip
def test_repartitioner_refuses_invalid_arguments(
    previous: Any, old: int, new: int, error: type[Exception]
) -> None:
    with pytest.raises(error, match="subtask"):
        RoundRobinOperatorStateRepartitioner().repartition_state(previous, old, new)


modes = {"s1": SPLIT, "s2": SPLIT, "s3": SPLIT, "u1": UNITED, "u2": UNITED, "b1": BROADCAST}


@st.composite
def checkpoints(draw: Any) -> list[list[OperatorStreamStateHandle | None]]:
    """Handles of some subtasks; a broadcast state has one offset, everything else any number."""
    subtasks = []
    for number in range(draw(st.integers(1, 5))):
        handles: list[OperatorStreamStateHandle | None] = []
        for part in range(draw(st.integers(0, 2))):
            states = {}
            for name in draw(st.lists(st.sampled_from(sorted(modes)), unique=True)):
                count = 1 if modes[name] is BROADCAST else draw(st.integers(0, 6))
                states[name] = (
                    modes[name],
                    sorted(draw(st.sets(st.integers(0, 99), min_size=count, max_size=count))),
                )
            handles.append(draw(st.sampled_from([handle(f"{number}-{part}", **states), None])))
        subtasks.append(handles)
    return subtasks


# A broadcast state that some subtasks lack, at the same parallelism.
@example(
    [
        [handle("A", b1=(BROADCAST, [1]), s1=(SPLIT, [5, 6]))],
        [handle("B", s1=(SPLIT, [7]))],
        [handle("C", b1=(BROADCAST, [3]))],
        [],
    ],
    [4],
)
@given(checkpoints(), st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_repartitioner_loses_duplicates_and_reorders_no_element(previous: Any, steps: list[int]) -> None:
    everything = [h for handles in previous for h in handles]
    state_names = {name for h in everything if h for name in h.state_name_to_partition_offsets}
    current = previous
    for new in steps:
        result = repartition(current, new)
        for name in state_names:
            parts = [elements(handles, name) for handles in result]
            expected = elements(everything, name)
            if modes[name] is SPLIT:
                assert sorted(e for part in parts for e in part) == sorted(expected)
                if new != len(current):
                    sizes = [len(part) for part in parts]
                    assert max(sizes) - min(sizes) <= 1
                    before = [e for handles in current for e in elements(handles, name)]
                    rotations = [[e for p in parts[n:] + parts[:n] for e in p] for n in range(new)]
                    assert before in rotations
                else:
                    assert parts == [elements(handles, name) for handles in current]
            elif modes[name] is UNITED:
                assert all(sorted(part) == sorted(expected) for part in parts)
                assert all(part == parts[0] for part in parts)
                assert current is not previous or parts[0] == expected
            else:
                reported = [len(elements(handles, name)) for handles in current]
                for number, part in enumerate(parts):
                    own = new == len(current) and reported[number]
                    assert len(part) == (own or 1)
                    assert set(part) <= set(expected)
            if any(name in names([h for h in handles if h]) for handles in current):
                assert any(name in names([h for h in handles if h]) for handles in result)
        current = result


class OwnHandle(ByteStreamStateHandle, OperatorStateHandle):
    """A handle of another kind, which is its own stream."""

    state_name_to_partition_offsets = {"list": StateMetaInfo((3, 5), SPLIT)}  # noqa: RUF012

    @property
    def delegate_state_handle(self) -> ByteStreamStateHandle:
        return ByteStreamStateHandle(self.handle_name, self.data)


def test_repartitioner_takes_every_kind_of_handle() -> None:
    result = repartition([[OwnHandle("own", b"")], [handle("B", list=(SPLIT, [7]))]], 3)
    assert [elements(share, "list") for share in result] == [[("own", 3)], [("own", 5)], [("B", 7)]]
