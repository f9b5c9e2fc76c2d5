"""Streams of operator state that are read, and those that cannot be."""

from __future__ import annotations

import io
import json
import struct
import threading
import zlib
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.checkpoint.files import MemoryFileSystem
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
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    Mode,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.state.operator import (
    BytesSerializer,
    Compatibility,
    DefaultOperatorStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
)
from spark_statestore.state.operator.format import encode_element, encode_header
from spark_statestore.state.operator.restore import OperatorStateRestoreOperation
from spark_statestore.state.snapshot import CloseableRegistry
from tests.state.operator.backends import FLAGS, NUMBERS, RULES, UNION, backend_with, written

SAMPLE = written(backend_with(numbers=[1, 2], union=["u"], rules={"r": [1]}))
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


def test_lists_are_appended_and_maps_overwritten_in_the_order_of_the_handles() -> None:
    first = written(backend_with(numbers=[1, 2], union=["a"], rules={"r": [1], "s": [1]}))
    second = written(backend_with(numbers=[3], union=["a", "b"], rules={"s": [2], "t": [2]}))
    backend = restore(first, None, second)
    assert backend.get_list_state(NUMBERS).get() == [1, 2, 3]
    assert backend.get_union_list_state(UNION).get() == ["a", "a", "b"]
    assert backend.get_broadcast_state(RULES).immutable_entries == {"r": [1], "s": [2], "t": [2]}
    assert restore(second, first).get_list_state(NUMBERS).get() == [3, 1, 2]


def test_only_the_elements_of_the_handle_are_taken_in_its_order() -> None:
    meta = STATES["numbers"]
    backend = restore(handle(STREAM, {"numbers": StateMetaInfo(meta.offsets[::-1], meta.distribution_mode)}))
    assert backend.get_list_state(NUMBERS).get() == [2, 1]
    # The stream names the others: they are known, and their content is with other subtasks.
    assert list(backend.registered_state_names) == ["numbers", "union"]
    assert backend.get_union_list_state(UNION).get() == []
    assert backend.get_broadcast_state(RULES).immutable_entries == {}


def test_a_broadcast_state_that_only_the_stream_names_travels_on() -> None:
    again = written(restore(handle(STREAM, {"numbers": STATES["numbers"]})))
    assert len(again.state_name_to_partition_offsets["rules"].offsets) == 1
    assert restore(again).get_broadcast_state(RULES).immutable_entries == {}


@pytest.mark.parametrize("checksum", [None, SAMPLE.checksum], ids=["without-checksum", "with-checksum"])
def test_a_stream_cut_anywhere_is_noticed(checksum: int | None) -> None:
    for end in range(len(STREAM)):
        with pytest.raises(CorruptCheckpointError, match="the-stream"):
            restore(handle(STREAM[:end], checksum=checksum))


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_by_the_checksum(position: int, change: int) -> None:
    data = bytearray(STREAM)
    data[position] ^= change
    with pytest.raises(CorruptCheckpointError, match="does not match its checksum"):
        restore(handle(bytes(data), checksum=SAMPLE.checksum))


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_without_a_checksum_a_changed_byte_is_an_error_of_this_package_or_a_value(
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


def test_a_newer_format_is_refused_with_both_versions() -> None:
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
def test_a_garbled_header_is_noticed(meta: Any) -> None:
    with pytest.raises(CorruptCheckpointError, match="the-stream has an unreadable header"):
        restore(handle(with_meta(meta), {}))


def test_offsets_that_lie_outside_are_noticed() -> None:
    for offset in (-1, len(STREAM), len(STREAM) - 3, 1 << 62):
        for name in ("numbers", "rules"):
            states = {name: StateMetaInfo((offset,), STATES[name].distribution_mode)}
            with pytest.raises(CorruptCheckpointError, match=f"has {len(STREAM)} bytes, but"):
                restore(handle(STREAM, states))


def test_a_serializer_that_the_stream_does_not_have_is_noticed() -> None:
    meta = {"lists": [state(serializers=[{"serializer": "bytes"}, {"serializer": "b"}])], "broadcasts": []}
    data = with_meta(meta)
    element = encode_element(b"x", 2, 2)
    with pytest.raises(CorruptCheckpointError, match="refers to serializer 2 of 2"):
        restore(handle(data + element, {"a": StateMetaInfo((len(data),))}))


def test_a_handle_and_a_stream_that_contradict_each_other_are_noticed() -> None:
    for name, mode, said in (
        ("numbers", Mode.UNION, "calls 'numbers' SPLIT_DISTRIBUTE, but its handle says UNION"),
        ("rules", Mode.UNION, "calls 'rules' BROADCAST, but its handle says UNION"),
    ):
        with pytest.raises(CorruptCheckpointError, match=said):
            restore(handle(STREAM, {name: StateMetaInfo(STATES[name].offsets, mode)}))
    with pytest.raises(CorruptCheckpointError, match=r"does not know \['other'\]"):
        restore(handle(STREAM, {**STATES, "other": StateMetaInfo((0,))}))


def test_streams_with_different_kinds_of_a_state_do_not_belong_together() -> None:
    def one(get: str) -> Any:
        backend = DefaultOperatorStateBackend()
        if get == "get_broadcast_state":
            backend.get_broadcast_state(MapStateDescriptor("a", pa.int8(), pa.int8()))
        else:
            getattr(backend, get)(ListStateDescriptor("a", pa.int8()))
        return written(backend)

    kinds = {"get_list_state": "SPLIT", "get_union_list_state": "UNION", "get_broadcast_state": "BROADCAST"}
    for first, before in kinds.items():
        for second, now in kinds.items():
            if first != second:
                with pytest.raises(IllegalStateError, match=rf"'a' is {before}.* in another"):
                    restore(one(first), one(second))
                assert now


def test_bytes_that_a_serializer_cannot_read_name_the_state() -> None:
    data = encode_header(*_sample_meta()) + b"\1\0\0\0x"
    backend = restore(handle(data, {"numbers": StateMetaInfo((len(data) - 5,))}))
    with pytest.raises(
        CorruptCheckpointError, match="element b'x' of list state 'numbers' could not be read"
    ):
        backend.get_list_state(NUMBERS)


def _sample_meta() -> Any:
    operation = OperatorStateRestoreOperation(CloseableRegistry())
    operation.restore([SAMPLE])
    return [operation.lists["numbers"].meta_info], []


def test_a_stream_that_is_gone_says_so() -> None:
    gone = FileStateHandle(MemoryFileSystem(), "/gone", 3)
    with pytest.raises(CheckpointNotFoundError, match="process-memory:///gone is gone"):
        restore(OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=gone))


class Broken(ByteStreamStateHandle):
    """A handle whose stream does what the test says."""

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
    ("stream", "kind", "said"),
    [(OSError("no route"), CheckpointIOError, "could not be read: no route"),
     (Unreadable(), CheckpointIOError, "could not be read: network is down"),
     (StateLostError("was in memory"), StateLostError, "was in memory")],
)  # fmt: skip
def test_a_storage_that_fails_is_told_from_damage(stream: Any, kind: type[Exception], said: str) -> None:
    broken = OperatorStreamStateHandle(
        state_name_to_partition_offsets={}, delegate_state_handle=Broken(stream)
    )
    with pytest.raises(kind, match=said):
        restore(broken)
    if isinstance(stream, Unreadable):
        assert stream.closed


def test_closing_ends_a_restore() -> None:
    class Slow(io.BytesIO):
        entered, go_on = threading.Event(), threading.Event()

        def read(self, size: int = -1) -> bytes:
            self.entered.set()
            assert self.go_on.wait(30)
            return super().read(size)

    slow, registry, errors = Slow(STREAM), CloseableRegistry(), []

    def run() -> None:
        broken = OperatorStreamStateHandle(
            state_name_to_partition_offsets={}, delegate_state_handle=Broken(slow)
        )
        try:
            OperatorStateRestoreOperation(registry).restore([broken])
        except CheckpointIOError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert slow.entered.wait(30)
    registry.close()
    slow.go_on.set()
    thread.join()
    assert "because the backend was closed meanwhile" in errors[0]


def test_a_restore_that_fails_changes_nothing() -> None:
    backend = DefaultOperatorStateBackend()
    with pytest.raises(CorruptCheckpointError):
        backend.restore([SAMPLE, handle(STREAM[:-1])])
    assert not backend.registered_state_names
    backend.restore([SAMPLE])
    assert backend.get_list_state(NUMBERS).get() == [1, 2]


def test_a_serializer_that_claims_to_migrate_and_does_not_is_told_so() -> None:
    class Claims(BytesSerializer):
        def check_compatibility(self, previous: Any) -> Compatibility:
            return Compatibility.COMPATIBLE_AFTER_MIGRATION

    with pytest.raises(StateMigrationError, match="Implement its method migrate"):
        restore(SAMPLE).get_list_state(ListStateDescriptor("numbers", Claims()))


def test_a_failed_access_leaves_the_state_as_it_was_restored() -> None:
    class Picky(BytesSerializer):
        def deserialize(self, data: bytes) -> bytes:
            raise ValueError("not today")

    backend = DefaultOperatorStateBackend()
    backend.get_list_state(ListStateDescriptor("b", BytesSerializer())).add(b"1")
    backend = restore(written(backend))
    with pytest.raises(CorruptCheckpointError, match="not today"):
        backend.get_list_state(ListStateDescriptor("b", Picky()))
    assert backend.get_list_state(ListStateDescriptor("b", BytesSerializer())).get() == [b"1"]
    assert FLAGS.name == "flags"
