"""Metadata objects of versions and operators: round trips, and detection of every kind of damage."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.files import MemoryFileSystem
from spark_statestore.formats.metadata import (
    INLINE_STATE_OFFSET,
    METADATA_FORMAT_VERSION,
    InlineState,
    attempt_id_of,
)
from spark_statestore.operator_state.metadata import (
    OperatorsMetadata,
    OperatorState,
    decode_operators,
    encode_operators,
)
from spark_statestore.storage.chains import extend_chain, start_chain
from spark_statestore.storage.file_handles import FileStateHandle, SegmentFileStateHandle
from spark_statestore.storage.handle_codec import HandleContext, encode_handle
from spark_statestore.storage.metadata_streams import read_without_state
from spark_statestore.storage.operator_handles import Mode, OperatorStreamStateHandle, StateMetaInfo
from spark_statestore.storage.stream_handles import ByteStreamStateHandle
from spark_statestore.store.metadata import (
    CheckpointMetadata,
    ColumnFamily,
    StoreId,
    decode_metadata,
    encode_metadata,
)
from tests.unit.storage.handles import CONTEXT, facts, operators, state_in, streams

texts = st.text(max_size=20)
attempts = st.binary(min_size=8, max_size=8).map(bytes.hex)
column_families = st.builds(
    ColumnFamily,
    name=texts,
    rows=st.integers(0, 2**62),
    key_schema=texts,
    value_schema=texts,
    key_encoder=st.sampled_from(["hash", "prefix", "range", "timestampPrefix", "timestampPostfix"]),
    prefix_columns=st.integers(0, 9),
    ordering_columns=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    values=st.none() | st.integers(0, 2**62),
    internal=st.booleans(),
    created_at_version=st.integers(0, 2**62),
)
metadatas = st.builds(
    CheckpointMetadata,
    store=st.builds(StoreId, st.integers(0, 99), st.integers(0, 99), texts),
    version=st.integers(0, 2**62),
    attempt_id=attempts,
    parent_attempt_id=st.one_of(st.none(), attempts),
    created_ms=st.integers(0, 2**62),
    written_by=texts,
    host=texts,
    column_families=st.lists(column_families, max_size=3).map(tuple),
    handle=st.just(start_chain(4, None)),
)


def sample(inline: bytes = b"") -> bytes:
    """Metadata of a base in a file and changes inside."""
    base = OperatorStreamStateHandle(
        state_name_to_partition_offsets={
            "default": StateMetaInfo((16, 900)),
            "timers": StateMetaInfo((400,)),
        },
        delegate_state_handle=FileStateHandle(CONTEXT.files, "/store/shared/5-x", 1000, 77),
    )
    segment = (INLINE_STATE_OFFSET, len(inline), "0123456789abcdef", zlib.crc32(inline))
    changes = state_in(SegmentFileStateHandle(CONTEXT.files, "/store/chk-7/_metadata", *segment), 16)
    metadata = CheckpointMetadata(
        store=StoreId(1, 2),
        version=7,
        attempt_id="0123456789abcdef",
        parent_attempt_id="fedcba9876543210",
        created_ms=1,
        written_by="0.1",
        host="host-1",
        column_families=(
            ColumnFamily("default", 3, "{}", "{}", "prefix", 1),
            ColumnFamily("timers", 0, "{}", "{}", "hash", 0),
        ),
        handle=extend_chain(start_chain(5, base), 7, changes),
    )
    return bytes(
        encode_metadata(metadata, InlineState.from_data(inline), encode_handle(metadata.handle, CONTEXT))
    )


def operators_sample() -> bytes:
    """Metadata of two operators, of three and of no subtasks with state."""
    lists = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"offsets": StateMetaInfo((9, 20), Mode.UNION)},
        delegate_state_handle=FileStateHandle(CONTEXT.files, "/store/3-x", 100, 5),
    )
    operators = {
        "source": OperatorState(
            "source",
            4,
            128,
            {
                2: lists,
                0: ByteStreamStateHandle("inline", b"state", zlib.crc32(b"state")),
                3: FileStateHandle(CONTEXT.files, "/store/file", 7),
            },
        ),
        "sink": OperatorState("sink", 1, 1, {}),
    }
    metadata = OperatorsMetadata(3, "0123456789abcdef", 1, operators, "0.2")
    return encode_operators(metadata, CONTEXT)


Decode = Callable[[bytes, HandleContext, str], object]

SAMPLE = sample(b"inline state, which is part of the object")
OPERATORS = operators_sample()
BOTH = pytest.mark.parametrize(
    ("data", "decode"), [(SAMPLE, decode_metadata), (OPERATORS, decode_operators)], ids=["store", "operators"]
)


@given(metadatas, st.binary(max_size=100))
def test_metadata_round_trip(metadata: CheckpointMetadata, inline: bytes) -> None:
    data = bytes(
        encode_metadata(metadata, InlineState.from_data(inline), encode_handle(metadata.handle, CONTEXT))
    )
    assert decode_metadata(data, CONTEXT, "here") == metadata
    assert data[INLINE_STATE_OFFSET:][: len(inline)] == inline
    assert attempt_id_of(data) == metadata.attempt_id


@pytest.mark.parametrize("size", [0, 100, 262_144 - len(sample(b"")), 262_145 - len(sample(b"")), 5_000_000])
def test_read_without_state_returns_the_same_metadata(size: int) -> None:
    files = MemoryFileSystem()
    files.create("/m", data := sample(bytes(size)))
    head = read_without_state(files, "/m")
    assert len(head) <= 262_144
    assert decode_metadata(head, CONTEXT, "here", without_state=True) == decode_metadata(
        data, CONTEXT, "here"
    )


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_read_without_state_detects_damage_outside_of_the_state(size: int) -> None:
    data = sample(bytes(size))
    damaged = [data[:-1], data + b"x", data[:100], data[:-300]]
    damaged += [data[:24] + b"\xff" * 8 + data[32:], data[:32] + b"\xff" * 8 + data[40:]]
    damaged += [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(40 + size, len(data) - 8)]
    undetected = 0
    for stored in damaged:
        files = MemoryFileSystem()
        files.create("/m", stored)
        with contextlib.suppress(CorruptCheckpointError):
            decoded = decode_metadata(read_without_state(files, "/m"), CONTEXT, "here", without_state=True)
            # A flipped bit of compressed data may decompress to the same bytes.
            assert decoded == decode_metadata(data, CONTEXT, "here")
            undetected += 1
    assert undetected < len(damaged) * 0.05


@st.composite
def operator_states(draw: st.DrawFn, name: str) -> OperatorState:
    parallelism = draw(st.one_of(st.integers(1, 5), st.just(300)))
    subtasks = st.dictionaries(st.integers(0, parallelism - 1), st.one_of(operators, streams), max_size=5)
    return OperatorState(name, parallelism, draw(st.integers(parallelism, 2**15)), draw(subtasks))


@st.composite
def operators_metadatas(draw: st.DrawFn) -> OperatorsMetadata:
    names = draw(st.lists(texts, unique=True, max_size=4))
    return OperatorsMetadata(
        checkpoint_id=draw(st.integers(0, 2**62)),
        attempt_id=draw(attempts),
        created_ms=draw(st.integers(0, 2**62)),
        operator_states={name: draw(operator_states(name)) for name in names},
        written_by=draw(texts),
    )


@given(operators_metadatas())
def test_operators_metadata_round_trip(metadata: OperatorsMetadata) -> None:
    data = encode_operators(metadata, CONTEXT)
    decoded = decode_operators(data, CONTEXT, "here")
    assert decoded == metadata
    assert list(decoded.operator_states) == list(metadata.operator_states)
    for name, state in metadata.operator_states.items():
        again = decoded.operator_states[name].subtasks
        assert [(n, facts(h)) for n, h in again.items()] == [(n, facts(h)) for n, h in state.subtasks.items()]
    assert attempt_id_of(data) == metadata.attempt_id


@BOTH
def test_decode_detects_every_bit_flip(data: bytes, decode: Decode) -> None:
    for at, bit in itertools.product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        with pytest.raises(CorruptCheckpointError, match="at the sea"):
            decode(bytes(damaged), CONTEXT, "the one at the sea")


@BOTH
def test_decode_detects_every_truncation(data: bytes, decode: Decode) -> None:
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match="at the sea"):
            decode(data[:length], CONTEXT, "the one at the sea")
    for more in (b"\0", data, bytes(1000)):
        with pytest.raises(CorruptCheckpointError, match="not the length"):
            decode(data + more, CONTEXT, "here")


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: SAMPLE[:12] + tail)))
def test_decode_refuses_arbitrary_bytes(data: bytes) -> None:
    for decode in (decode_metadata, decode_operators):
        with pytest.raises(CorruptCheckpointError):
            decode(data, CONTEXT, "here")


@BOTH
@pytest.mark.parametrize(
    ("damage", "message_part"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: b"PK" + data[2:], "does not start with the magic number of metadata"),
        (lambda data: data[:-4] + b"SSTX", "does not match its checksum"),
        (lambda data: data[:-8] + bytes(4) + data[-4:], "does not match its checksum"),
        (lambda data: data[:-1], "not the length"),
        (lambda data: OPERATORS if data is SAMPLE else SAMPLE, "describes (OPERATORS|STORE_VERSION), not"),
    ],
)
def test_decode_error_names_the_damage(
    data: bytes, decode: Decode, damage: Callable[[bytes], bytes], message_part: str
) -> None:
    with pytest.raises(CorruptCheckpointError, match=message_part):
        decode(damage(data), CONTEXT, "here")


def encoded(body: bytes, version: int = METADATA_FORMAT_VERSION, kind: int = 0) -> bytes:
    """Return a metadata object with a valid checksum around any body."""
    header = struct.pack("<8sHHI8sQQ", SAMPLE[:8], version, kind, 0, bytes(8), 0, len(body))
    data = header + body
    return data + struct.pack("<I4s", zlib.crc32(data), b"SSTE")


def body_of(properties: object, *handles: bytes, count: int | None = None) -> bytes:
    """Return a metadata body with this count of handles in its header."""
    described = json.dumps(properties).encode()
    lengths = [len(described), len(handles) if count is None else count, *map(len, handles)]
    return zlib.compress(struct.pack(f"<{len(lengths)}I", *lengths) + described + b"".join(handles))


@given(
    st.one_of(
        st.binary(max_size=60),
        st.binary(max_size=60).map(zlib.compress),
        st.sampled_from([b"[]", b"{}", b"null", b"[" * 5000, b'{"operator":1}', b"\xff"]).map(
            lambda json: zlib.compress(struct.pack("<II", len(json), 0) + json)
        ),
    )
)
def test_decode_refuses_an_invalid_body_with_a_valid_checksum(body: bytes) -> None:
    for kind, decode in enumerate((decode_metadata, decode_operators)):
        with pytest.raises(CorruptCheckpointError):
            decode(encoded(body, kind=kind), CONTEXT, "here")


def operators_of(handles: int = 2, **changes: object) -> bytes:
    """Metadata of one operator with two subtasks, with other numbers or handles than it should have."""
    node: dict[str, object] = {"operator": "o", "parallelism": 2, "maxParallelism": 4, "subtasks": [0, 1]}
    properties: dict[str, object] = {
        "checkpoint": 1, "createdMs": 1, "writtenBy": "0.2", "operators": [node]
    }  # fmt: skip
    for name, value in changes.items():
        (node if name in node else properties)[name] = value
    stored = [encode_handle(ByteStreamStateHandle(str(n), b"x"), CONTEXT) for n in range(handles)]
    return encoded(body_of(properties, *stored), kind=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint": -1},
        {"checkpoint": "1"},
        {"parallelism": -1},
        {"parallelism": 0},
        {"parallelism": 1},
        {"maxParallelism": 1},
        {"subtasks": [0, -1]},
        {"subtasks": [0, 2]},
        {"subtasks": [0]},
        {"subtasks": [0, 1, 1]},
        {"handles": 1},
        {"handles": 3},
        {"operators": {}},
        {"operators": [None]},
        {"operator": ["o"]},
    ],
    ids=str,
)
def test_decode_operators_validates_numbers(changes: dict[str, Any]) -> None:
    assert decode_operators(operators_of(), CONTEXT, "here").operator_states["o"].parallelism == 2
    with pytest.raises(CorruptCheckpointError, match=r"at the sea cannot be read"):
        decode_operators(operators_of(**changes), CONTEXT, "the one at the sea")


HANDLE = encode_handle(start_chain(4, None), CONTEXT)
FAMILY = ColumnFamily("default", 1, "{}", "{}", "hash", 0).to_json()


def metadata_of(*handles: bytes, **changes: object) -> bytes:
    """Metadata of a version, with other fields or handles than it should have."""
    properties = {
        "operator": 0, "partition": 0, "store": "default", "version": 1, "parentAttemptId": None,
        "createdMs": 1, "writtenBy": "0.2", "host": "a", "columnFamilies": [FAMILY],
    }  # fmt: skip
    return encoded(body_of(properties | changes, *handles))


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "2"},
        {"version": True},
        {"operator": None},
        {"parentAttemptId": "x/../../../../victim"},
        {"parentAttemptId": "0123456789ABCDEF"},
        {"store": ["default"]},
        {"createdMs": -1},
        {"columnFamilies": [{"name": {}}]},
        {"columnFamilies": [FAMILY | {"rows": -1}]},
        {"columnFamilies": [FAMILY | {"name": ["a"]}]},
        {"columnFamilies": [FAMILY | {"createdAtVersion": 1.5}]},
        {"columnFamilies": [FAMILY | {"keySchema": None}]},
    ],
    ids=str,
)
def test_decode_metadata_refuses_fields_of_wrong_types(changes: dict[str, Any]) -> None:
    assert decode_metadata(metadata_of(HANDLE), CONTEXT, "here").version == 1
    with pytest.raises(CorruptCheckpointError, match="at the sea"):
        decode_metadata(metadata_of(HANDLE, **changes), CONTEXT, "the one at the sea")


def test_decode_metadata_requires_one_incremental_handle() -> None:
    for handles in ([], [HANDLE] * 2, [encode_handle(ByteStreamStateHandle("a", b""), CONTEXT)], [b"x"]):
        with pytest.raises(CorruptCheckpointError, match="at the sea"):
            decode_metadata(metadata_of(*handles), CONTEXT, "the one at the sea")


def test_decode_refuses_a_compressed_body_without_its_own_checksum() -> None:
    with pytest.raises(CorruptCheckpointError, match="cut off"):
        decode_metadata(encoded(body_of({}, HANDLE)[:-1]), CONTEXT, "here")


@pytest.mark.parametrize("count", [0, 2, 3, 1000, 2**32 - 1])
def test_decode_refuses_a_wrong_count_of_handles(count: int) -> None:
    for kind, decode in enumerate((decode_metadata, decode_operators)):
        with pytest.raises(CorruptCheckpointError):
            decode(encoded(body_of({}, b"handle", count=count), kind=kind), CONTEXT, "here")


def test_operators_metadata_keeps_names_longer_than_flinks() -> None:
    name = "\u00e4" * 65_536
    handle = OperatorStreamStateHandle(
        state_name_to_partition_offsets={name: StateMetaInfo((0,))},
        delegate_state_handle=ByteStreamStateHandle(name, b"x"),
    )
    metadata = OperatorsMetadata(1, "0" * 16, 1, {name: OperatorState(name, 1, 1, {0: handle})})
    decoded = decode_operators(encode_operators(metadata, CONTEXT), CONTEXT, "here")
    assert decoded == metadata
    assert facts(decoded.operator_states[name].subtasks[0]) == facts(handle)


@pytest.mark.parametrize(
    ("data", "error", "message_part"),
    [
        (
            (SAMPLE[:8] + struct.pack("<H", 99) + b"whatever a later release makes of it").ljust(100, b"\0"),
            UnsupportedFormatError,
            rf"format 99, .* up to {METADATA_FORMAT_VERSION}\. .*Upgrade",
        ),
        (encoded(body_of({}), version=0), CorruptCheckpointError, "does not match its checksum"),
        (encoded(body_of({}), kind=99), CorruptCheckpointError, "99 is not a valid MetadataKind"),
    ],
    ids=["newer format", "format zero", "unknown kind"],
)
def test_decode_refuses_another_format_or_kind(
    data: bytes, error: type[Exception], message_part: str
) -> None:
    for decode in (decode_metadata, decode_operators):
        with pytest.raises(error, match=rf"at the sea .*{message_part}"):
            decode(data, CONTEXT, "the one at the sea")


def test_encode_writes_zero_into_reserved_fields() -> None:
    operators = operators_sample()
    assert [struct.unpack_from("<I", data, 12) for data in (sample(b"inside"), operators)] == [(0,)] * 2
    assert struct.unpack_from("<Q", operators, 24) == (0,)


def test_attempt_id_of_other_bytes_is_none() -> None:
    assert attempt_id_of(SAMPLE) == "0123456789abcdef"
    assert attempt_id_of(SAMPLE[: INLINE_STATE_OFFSET - 1]) is None
    assert attempt_id_of(b"\0" + SAMPLE[1:]) is None
