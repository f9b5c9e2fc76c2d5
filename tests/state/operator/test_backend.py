"""How states are registered, restored and let go."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_statestore.errors import CheckpointIOError, IllegalStateError, StateMigrationError
from spark_statestore.state.operator import (
    BytesSerializer,
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from tests.state.operator.backends import (
    FLAGS,
    MEMORY,
    NUMBERS,
    OFFSETS,
    RULES,
    UNION,
    Point,
    PointSerializer,
    backend_with,
    written,
)


def test_a_name_gives_the_same_object_again() -> None:
    backend = DefaultOperatorStateBackend()
    assert backend.get_list_state(NUMBERS) is backend.get_list_state(
        ListStateDescriptor("numbers", pa.int64())
    )
    assert backend.get_union_list_state(UNION) is backend.get_union_list_state(UNION)
    assert backend.get_broadcast_state(RULES) is backend.get_broadcast_state(RULES)


def test_the_names_are_live_views() -> None:
    backend = DefaultOperatorStateBackend()
    lists, broadcasts = backend.registered_state_names, backend.registered_broadcast_state_names
    assert (list(lists), list(broadcasts)) == ([], [])
    backend.get_list_state(NUMBERS)
    backend.get_union_list_state(UNION)
    backend.get_broadcast_state(RULES)
    assert (list(lists), list(broadcasts)) == (["numbers", "union"], ["rules"])


USES = {
    "SPLIT_DISTRIBUTE": lambda b: b.get_list_state(ListStateDescriptor("x", pa.int64())),
    "UNION": lambda b: b.get_union_list_state(ListStateDescriptor("x", pa.int64())),
    "BROADCAST": lambda b: b.get_broadcast_state(MapStateDescriptor("x", pa.int64(), pa.int64())),
}


@pytest.mark.parametrize("restored", [False, True], ids=["registered", "restored"])
@pytest.mark.parametrize("first", USES)
@pytest.mark.parametrize("second", USES)
def test_18_a_name_stands_for_one_kind_of_state_also_after_restore(
    first: str, second: str, restored: bool
) -> None:
    backend = DefaultOperatorStateBackend()
    state = USES[first](backend)
    if restored:
        backend = DefaultOperatorStateBackend([written(backend)])
    if first == second:
        assert restored or USES[second](backend) is state
        return
    with pytest.raises(IllegalStateError, match=f"'x' is {first} and cannot be used as {second}"):
        USES[second](backend)
    USES[first](backend)


@pytest.mark.parametrize("wrong", [None, "numbers", FLAGS, NUMBERS])
def test_only_descriptors_of_the_kind_are_taken(wrong: Any) -> None:
    backend = DefaultOperatorStateBackend()
    for get, right in (
        (backend.get_list_state, NUMBERS),
        (backend.get_union_list_state, NUMBERS),
        (backend.get_broadcast_state, FLAGS),
    ):
        if wrong is not right:
            with pytest.raises(TypeError, match="StateDescriptor, got"):
                get(wrong)
    assert list(backend.registered_state_names) == []


def test_within_a_run_the_serializer_of_a_state_does_not_change() -> None:
    backend = backend_with(numbers=[1], flags={1: True})
    with pytest.raises(StateMigrationError, match=r"each element of list state 'numbers' .* one descriptor"):
        backend.get_list_state(ListStateDescriptor("numbers", pa.utf8()))
    with pytest.raises(StateMigrationError, match="each key of broadcast state 'flags'"):
        backend.get_broadcast_state(MapStateDescriptor("flags", pa.int64(), pa.bool_()))
    with pytest.raises(StateMigrationError, match="each value of broadcast state 'flags'"):
        backend.get_broadcast_state(MapStateDescriptor("flags", pa.int32(), pa.int8()))


def test_what_was_written_is_restored_and_known_before_it_is_asked_for() -> None:
    offsets = [{"topic": "a", "parts": [1, 2]}, {"topic": "b", "parts": []}]
    backend = backend_with(
        numbers=[3, 1, 2], offsets=offsets, union=["x", "ü"], rules={"r": [1], "s": []}, flags={}
    )
    restored = DefaultOperatorStateBackend([None, written(backend)])
    assert list(restored.registered_state_names) == ["numbers", "offsets", "union"]
    assert list(restored.registered_broadcast_state_names) == ["rules", "flags"]
    assert restored.get_list_state(NUMBERS).get() == [3, 1, 2]
    assert restored.get_list_state(NUMBERS) is restored.get_list_state(NUMBERS)
    assert restored.get_list_state(OFFSETS).get() == offsets
    assert restored.get_union_list_state(UNION).get() == ["x", "ü"]
    assert restored.get_broadcast_state(RULES).immutable_entries == {"r": [1], "s": []}
    assert restored.get_broadcast_state(FLAGS).immutable_entries == {}


def test_what_nobody_asks_for_goes_on_from_snapshot_to_snapshot() -> None:
    handle = written(backend_with(numbers=[3, 1], union=[], rules={"r": [1]}, flags={}))
    for _ in range(3):
        backend = DefaultOperatorStateBackend([handle])
        handle = written(backend)
    restored = DefaultOperatorStateBackend([handle])
    assert [*restored.registered_state_names, *restored.registered_broadcast_state_names] == [
        "numbers", "union", "rules", "flags",
    ]  # fmt: skip
    assert restored.get_list_state(NUMBERS).get() == [3, 1]
    assert restored.get_broadcast_state(RULES).immutable_entries == {"r": [1]}
    with pytest.raises(StateMigrationError):
        restored.get_union_list_state(ListStateDescriptor("union", pa.int64()))
    assert restored.get_union_list_state(UNION).get() == []


def test_a_broadcast_state_changes_over_several_restores_beside_no_list_state() -> None:
    backend = backend_with(rules={"a": [1], "b": [2]})
    backend = DefaultOperatorStateBackend([written(backend)])
    backend.get_broadcast_state(RULES).remove("a")
    backend = DefaultOperatorStateBackend([written(backend)])
    assert backend.get_broadcast_state(RULES).immutable_entries == {"b": [2]}
    backend.get_broadcast_state(RULES).clear()
    backend = DefaultOperatorStateBackend([written(backend)])
    assert list(backend.registered_broadcast_state_names) == ["rules"]
    assert backend.get_broadcast_state(RULES).immutable_entries == {}


def test_a_serializer_that_cannot_read_a_state_is_refused_and_the_state_stays() -> None:
    restored = DefaultOperatorStateBackend([written(backend_with(numbers=[1], flags={1: True}))])
    with pytest.raises(
        StateMigrationError,
        match=r"each element of list state 'numbers' was written by arrow\{'type': 'int64'\}, which "
        r"arrow\{'type': 'string'\} cannot read",
    ):
        restored.get_list_state(ListStateDescriptor("numbers", pa.utf8()))
    with pytest.raises(
        StateMigrationError, match=r"each key of broadcast state 'flags' .* bytes cannot read"
    ):
        restored.get_broadcast_state(MapStateDescriptor("flags", BytesSerializer(), pa.bool_()))
    with pytest.raises(StateMigrationError, match="each value of broadcast state 'flags'"):
        restored.get_broadcast_state(MapStateDescriptor("flags", pa.int32(), pa.int8()))
    assert restored.get_list_state(NUMBERS).get() == [1]
    assert restored.get_broadcast_state(FLAGS).get(1) is True


def test_a_widened_state_is_migrated_and_then_stored_in_its_new_type() -> None:
    handle = written(backend_with(flags={7: True}))
    wide = MapStateDescriptor("flags", pa.int64(), pa.bool_())
    restored = DefaultOperatorStateBackend([handle])
    restored.get_broadcast_state(wide).put(2**40, False)
    again = DefaultOperatorStateBackend([written(restored)])
    with pytest.raises(StateMigrationError):
        again.get_broadcast_state(FLAGS)
    assert again.get_broadcast_state(wide).immutable_entries == {7: True, 2**40: False}


def points(version: int) -> ListStateDescriptor[Point]:
    return ListStateDescriptor("points", PointSerializer(version))


def test_streams_with_different_serializers_of_a_state_are_each_read_by_their_own() -> None:
    old, new = DefaultOperatorStateBackend(), DefaultOperatorStateBackend()
    old.get_list_state(points(1)).update([Point(1, 2), Point(3, 4)])
    old.get_broadcast_state(MapStateDescriptor("m", pa.int8(), pa.int8())).put_all({1: 1, 2: 2})
    new.get_list_state(points(2)).update([Point(5, 6)])
    new.get_broadcast_state(MapStateDescriptor("m", pa.int64(), pa.int8())).put_all({2: 3})
    merged = DefaultOperatorStateBackend([written(old), written(new)])
    # Neither is asked for: both serializers go into the next stream.
    restored = DefaultOperatorStateBackend([written(merged)])
    assert restored.get_list_state(points(2)).get() == [Point(1, 2), Point(3, 4), Point(5, 6)]
    entries = restored.get_broadcast_state(MapStateDescriptor("m", pa.int64(), pa.int8())).immutable_entries
    assert entries == {1: 1, 2: 3}
    with pytest.raises(StateMigrationError):
        DefaultOperatorStateBackend([written(merged)]).get_list_state(points(1))


def test_a_users_serializer_copies_what_it_is_asked_to() -> None:
    serializer, key, value = PointSerializer(), PointSerializer(), PointSerializer()
    backend = DefaultOperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("points", serializer)).update([Point(1, 2), Point(3, 4)])
    state = backend.get_broadcast_state(MapStateDescriptor("m", key, value))

    class Key(Point):
        def __hash__(self) -> int:
            return 0

    key.copy = lambda point: setattr(key, "copies", key.copies + 1) or Key(point.x, point.y)
    state.put(Key(1, 1), Point(2, 2))
    backend.snapshot(1, 0, MEMORY).cancel()
    assert (serializer.copies, key.copies, value.copies) == (2, 1, 1)


def test_restored_state_is_not_mixed_with_other_state() -> None:
    handle = written(backend_with(numbers=[1]))
    backend = DefaultOperatorStateBackend()
    backend.restore(None)
    backend.restore([])
    backend.restore([handle])
    with pytest.raises(IllegalStateError, match=r"has the states \['numbers'\] already"):
        backend.restore([handle])
    assert backend.get_list_state(NUMBERS).get() == [1]


def test_closing_ends_snapshots_and_keeps_state() -> None:
    backend = backend_with(numbers=[1])
    future = backend.snapshot(1, 0, MEMORY)
    backend.close()
    backend.close()
    assert future.cancelled()
    assert backend.get_list_state(NUMBERS).get() == [1]
    with pytest.raises(CheckpointIOError, match=r"snapshot for checkpoint 2, cancelled\) was closed"):
        backend.snapshot(2, 0, MEMORY)


def test_disposing_ends_snapshots_and_lets_state_go() -> None:
    backend = backend_with(numbers=[1], flags={1: True})
    future = backend.snapshot(1, 0, MEMORY)
    backend.dispose()
    backend.dispose()
    assert future.cancelled()
    assert not backend.registered_state_names
    assert not backend.registered_broadcast_state_names
    for use in (
        lambda: backend.get_list_state(NUMBERS),
        lambda: backend.get_union_list_state(UNION),
        lambda: backend.get_broadcast_state(FLAGS),
        lambda: backend.snapshot(1, 0, MEMORY),
        lambda: backend.restore(None),
    ):
        with pytest.raises(IllegalStateError, match="disposed of"):
            use()
