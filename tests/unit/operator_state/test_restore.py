"""Restore of operator state from streams, intact and damaged ones."""

from __future__ import annotations

import io
import json
import struct
import zlib
from itertools import permutations
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    IllegalStateError,
    StateLostError,
    StateMigrationError,
    UnsupportedFormatError,
)
from spark_statestore.operator_state import (
    BytesSerializer,
    Compatibility,
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from spark_statestore.operator_state.stream_format import encode_elements
from spark_statestore.storage.operator_handles import Mode, OperatorStreamStateHandle, StateMetaInfo
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from tests.unit.operator_state.backends import NUMBERS, RULES, UNION, backend_with, snapshot_of

SAMPLE = snapshot_of(backend_with(numbers=[1, 2], union=["u"], rules={"r": [1]}))
STREAM = SAMPLE.as_bytes_if_in_memory()
STATES = SAMPLE.state_name_to_partition_offsets


def handle(data: bytes, states: Any = None, checksum: int | None = None) -> OperatorStreamStateHandle:
    return OperatorStreamStateHandle(
        state_name_to_partition_offsets=STATES if states is None else states,
        delegate_state_handle=ByteStreamStateHandle("the-stream", data, checksum),
    )


def restore(*handles: Any) -> DefaultOperatorStateBackend:
    return DefaultOperatorStateBackend(handles)


def with_meta(meta: Any) -> bytes:
    body = meta if isinstance(meta, bytes) else json.dumps(meta).encode()
    return STREAM[:12] + struct.pack("<I", len(body)) + body


def test_restore_appends_lists_and_overwrites_maps_in_handle_order() -> None:
    first = snapshot_of(backend_with(numbers=[1, 2], union=["a"], rules={"r": [1], "s": [1]}))
    second = snapshot_of(backend_with(numbers=[3], union=["a", "b"], rules={"s": [2], "t": [2]}))
    backend = restore(first, None, second)
    assert backend.get_list_state(NUMBERS).get() == [1, 2, 3]
    assert backend.get_union_list_state(UNION).get() == ["a", "a", "b"]
    assert backend.get_broadcast_state(RULES).immutable_entries == {"r": [1], "s": [2], "t": [2]}
    assert restore(second, first).get_list_state(NUMBERS).get() == [3, 1, 2]


def test_restore_reads_only_the_offsets_of_the_handle() -> None:
    meta = STATES["numbers"]
    backend = restore(handle(STREAM, {"numbers": StateMetaInfo(meta.offsets[::-1], meta.distribution_mode)}))
    assert backend.get_list_state(NUMBERS).get() == [2, 1]
    # The stream names the others: they are known, and their content is with other subtasks.
    assert list(backend.registered_state_names) == ["numbers", "union"]
    assert backend.get_union_list_state(UNION).get() == []
    assert backend.get_broadcast_state(RULES).immutable_entries == {}


def test_restore_registers_broadcast_state_without_offsets() -> None:
    again = snapshot_of(restore(handle(STREAM, {"numbers": STATES["numbers"]})))
    assert len(again.state_name_to_partition_offsets["rules"].offsets) == 1
    assert restore(again).get_broadcast_state(RULES).immutable_entries == {}


def test_restore_detects_a_truncated_stream_without_a_checksum() -> None:
    for end in range(len(STREAM)):
        with pytest.raises(CorruptCheckpointError, match="the-stream"):
            restore(handle(STREAM[:end]))


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_restore_detects_a_changed_byte_by_checksum(position: int, change: int) -> None:
    data = bytearray(STREAM)
    data[position] ^= change
    with pytest.raises(CorruptCheckpointError, match="does not match its checksum"):
        restore(handle(bytes(data), checksum=SAMPLE.checksum))


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_restore_without_checksum_raises_package_errors_or_returns_a_value(
    position: int, change: int
) -> None:
    data = bytearray(STREAM)
    data[position] ^= change
    try:
        backend = restore(handle(bytes(data)))
        backend.get_list_state(NUMBERS)
        backend.get_union_list_state(UNION)
        backend.get_broadcast_state(RULES)
    except (CheckpointError, IllegalStateError):
        pass


def test_restore_refuses_a_newer_format_with_both_versions() -> None:
    data = STREAM[:8] + struct.pack("<H", 2) + STREAM[10:]
    with pytest.raises(UnsupportedFormatError, match=r"the-stream has operator state format 2, .* up to 1"):
        restore(handle(data, checksum=zlib.crc32(data)))


def state(**values: Any) -> dict[str, Any]:
    return {"name": "a", "mode": 0, "serializers": [{"serializer": "bytes"}]} | values


PAIR = {"key": {"serializer": "bytes"}, "value": {"serializer": "bytes"}}


@pytest.mark.parametrize(
    "meta",
    [b"", b"\xff", b"[", b"[]", b"[" * 100_000, {}, {"lists": []}, {"lists": [], "broadcasts": {"a": 1}},
     {"lists": [state(mode=2)], "broadcasts": []}, {"lists": [state(mode=3)], "broadcasts": []},
     {"lists": [state(name=1)], "broadcasts": []}, {"lists": [state(serializers=[])], "broadcasts": []},
     {"lists": [state(serializers=[1])], "broadcasts": []}, {"lists": [state(), state()], "broadcasts": []},
     {"lists": [], "broadcasts": [state()]}, {"lists": [], "broadcasts": [state(serializers=[])]},
     {"lists": [state()], "broadcasts": [state(serializers=[PAIR])]}],
    ids=lambda meta: repr(meta)[:60],
)  # fmt: skip
def test_restore_detects_an_invalid_header(meta: Any) -> None:
    with pytest.raises(CorruptCheckpointError, match="the-stream has an unreadable header"):
        restore(handle(with_meta(meta), {}))


def test_restore_detects_offsets_out_of_range() -> None:
    for offset in (-1, len(STREAM), len(STREAM) - 3, 1 << 62):
        for name in ("numbers", "rules"):
            states = {name: StateMetaInfo((offset,), STATES[name].distribution_mode)}
            with pytest.raises(CorruptCheckpointError, match=f"has {len(STREAM)} bytes, but"):
                restore(handle(STREAM, states))


def test_restore_detects_an_unknown_serializer_index() -> None:
    meta = {"lists": [state(serializers=[{"serializer": "bytes"}, {"serializer": "b"}])], "broadcasts": []}
    data = with_meta(meta)
    (element,) = encode_elements([(2, b"x")], 2, 0, [])
    with pytest.raises(CorruptCheckpointError, match="refers to serializer 2 of 2"):
        restore(handle(data + element, {"a": StateMetaInfo((len(data),))}))


def test_restore_detects_a_handle_that_contradicts_its_stream() -> None:
    for name, mode, expected in (
        ("numbers", Mode.UNION, "stores 'numbers' as SPLIT_DISTRIBUTE, but its handle has UNION"),
        ("rules", Mode.UNION, "stores 'rules' as BROADCAST, but its handle has UNION"),
    ):
        with pytest.raises(CorruptCheckpointError, match=expected):
            restore(handle(STREAM, {name: StateMetaInfo(STATES[name].offsets, mode)}))
    with pytest.raises(CorruptCheckpointError, match=r"does not know \['other'\]"):
        restore(handle(STREAM, {**STATES, "other": StateMetaInfo((0,))}))


def test_restore_refuses_streams_with_conflicting_kinds_of_a_state() -> None:
    split, union, broadcast = (DefaultOperatorStateBackend() for _ in range(3))
    split.get_list_state(ListStateDescriptor("a", pa.int8()))
    union.get_union_list_state(ListStateDescriptor("a", pa.int8()))
    broadcast.get_broadcast_state(MapStateDescriptor("a", pa.int8(), pa.int8()))
    handles = {"SPLIT": snapshot_of(split), "UNION": snapshot_of(union), "BROADCAST": snapshot_of(broadcast)}
    for before, now in permutations(handles, 2):
        with pytest.raises(IllegalStateError, match=rf"'a' is {before}.* and {now}.* in another"):
            restore(handles[before], handles[now])


class Broken(ByteStreamStateHandle):
    """Build a handle with the given stream."""

    def __init__(self, stream: Any) -> None:
        super().__init__("broken", b"")
        self.stream = stream

    def open_input_stream(self) -> Any:
        if isinstance(self.stream, Exception):
            raise self.stream
        return self.stream


class Unreadable(io.BytesIO):
    def read(self, size: int = -1) -> bytes:
        raise OSError("network is down")


@pytest.mark.parametrize(
    ("stream", "kind", "expected"),
    [(FileNotFoundError(), CheckpointNotFoundError, "operator state stream broken is gone"),
     (OSError("no route"), CheckpointIOError, "could not be read: no route"),
     (Unreadable(), CheckpointIOError, "could not be read: network is down"),
     (StateLostError("was in memory"), StateLostError, "was in memory")],
)  # fmt: skip
def test_restore_distinguishes_storage_failure_from_damage(
    stream: Any, kind: type[Exception], expected: str
) -> None:
    broken = OperatorStreamStateHandle(
        state_name_to_partition_offsets={}, delegate_state_handle=Broken(stream)
    )
    with pytest.raises(kind, match=expected):
        restore(broken)
    if isinstance(stream, Unreadable):
        assert stream.closed


def test_failed_restore_changes_nothing() -> None:
    backend = DefaultOperatorStateBackend()
    with pytest.raises(CorruptCheckpointError):
        backend.restore([SAMPLE, handle(STREAM[:-1])])
    assert not backend.registered_state_names
    backend.restore([SAMPLE])
    assert backend.get_list_state(NUMBERS).get() == [1, 2]


def test_serializer_that_claims_migration_without_migrate_is_refused() -> None:
    class Claims(BytesSerializer):
        def check_compatibility(self, previous: Any) -> Compatibility:
            return Compatibility.COMPATIBLE_AFTER_MIGRATION

    with pytest.raises(StateMigrationError, match="does not implement the method migrate"):
        restore(SAMPLE).get_list_state(ListStateDescriptor("numbers", Claims()))


def test_failed_access_keeps_the_restored_state() -> None:
    class Picky(BytesSerializer):
        def deserialize(self, data: bytes) -> bytes:
            raise ValueError("not today")

    backend = DefaultOperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("b", BytesSerializer())).add(b"1")
    backend = restore(snapshot_of(backend))
    message = "element b'1' of list state 'b' could not be read .*not today"
    with pytest.raises(CorruptCheckpointError, match=message):
        backend.get_list_state(ListStateDescriptor("b", Picky()))
    assert backend.get_list_state(ListStateDescriptor("b", BytesSerializer())).get() == [b"1"]
