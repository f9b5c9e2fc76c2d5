"""List states and broadcast states, as an operator uses them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_statestore.operator_state import (
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from tests.unit.operator_state.backends import FLAGS, NUMBERS, OFFSETS, RULES, Point, PointSerializer


def test_list_state_takes_iterables() -> None:
    backend = DefaultOperatorStateBackend()
    state = backend.get_list_state(NUMBERS)
    state.add_all(None)
    state.add_all(n for n in (3, 1))
    assert state.get() == [3, 1]
    state.update(n + 1 for n in state.get())
    with pytest.raises(TypeError, match="updated with None"):
        state.update(None)
    assert state.get() == [4, 2]
    assert backend.get_list_state(NUMBERS) is state


@pytest.mark.parametrize("wrong", [None, "text"])
def test_list_state_refuses_all_elements_with_an_invalid_one(wrong: Any) -> None:
    state = DefaultOperatorStateBackend().get_list_state(NUMBERS)
    state.add(1)
    for refuse in (
        lambda: state.add(wrong),
        lambda: state.add_all([2, wrong]),
        lambda: state.update([wrong]),
    ):
        with pytest.raises(TypeError, match=r"list state 'numbers': .* Nothing was added"):
            refuse()
    assert state.get() == [1]


def test_states_of_any_serializer_refuse_none() -> None:
    backend = DefaultOperatorStateBackend()
    points = backend.get_list_state(ListStateDescriptor("points", PointSerializer()))
    map_ = backend.get_broadcast_state(MapStateDescriptor("map", PointSerializer(), PointSerializer()))
    for refuse in (
        lambda: points.add(None),
        lambda: points.add_all([None]),
        lambda: points.update([None]),
        lambda: map_.put(None, Point(1, 1)),
        lambda: map_.put("key", None),
    ):
        with pytest.raises(TypeError, match=r"state '.*': .*None"):
            refuse()


def test_list_state_get_returns_a_copy_with_shared_elements() -> None:
    state = DefaultOperatorStateBackend().get_list_state(OFFSETS)
    state.add({"topic": "a", "parts": [1]})
    got = state.get()
    got.append("anything")
    assert len(state.get()) == 1
    got[0]["parts"].append(2)
    assert state.get() == [{"topic": "a", "parts": [1, 2]}]


def test_broadcast_state_is_read_as_a_map() -> None:
    state = DefaultOperatorStateBackend().get_broadcast_state(FLAGS)
    state.put_all({2: False, 3: True})
    assert (state.get(1), state.get(1, "none"), state.get(2)) == (None, "none", False)
    assert (state.contains(2), 4 in state, len(state), list(state)) == (True, False, 2, [2, 3])


def test_immutable_entries_are_a_read_only_live_view() -> None:
    state = DefaultOperatorStateBackend().get_broadcast_state(RULES)
    view = state.immutable_entries
    state.put("a", [1])
    assert view == {"a": [1]}
    with pytest.raises(TypeError):
        view["b"] = [2]


@pytest.mark.parametrize("entry", [(None, True), (1, None), ("1", True), (1, "yes")])
def test_broadcast_state_refuses_all_entries_with_an_invalid_one(entry: tuple[Any, Any]) -> None:
    state = DefaultOperatorStateBackend().get_broadcast_state(FLAGS)
    with pytest.raises(TypeError, match=r"broadcast state 'flags': .* Nothing was put"):
        state.put(*entry)
    with pytest.raises(TypeError, match="broadcast state 'flags'"):
        state.put_all({7: True, entry[0]: entry[1]})
    assert len(state) == 0
