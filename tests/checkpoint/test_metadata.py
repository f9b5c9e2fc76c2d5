"""The metadata object of both kinds: there and back, and every kind of damage."""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spark_statestore.checkpoint import chain
from spark_statestore.checkpoint.files import MemoryFileSystem
from spark_statestore.checkpoint.metadata import (
    METADATA_FORMAT_VERSION,
    CheckpointMetadata,
    NamedState,
    OperatorsMetadata,
    StoreId,
    decode_metadata,
    decode_operators,
    encode_metadata,
    encode_operators,
)
from spark_statestore.checkpoint.metadata.format import INLINE_STATE_OFFSET, InlineState, read_without_state
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.state.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    Mode,
    OperatorStreamStateHandle,
    PlaceholderStreamStateHandle,
    RelativeFileStateHandle,
    SegmentFileStateHandle,
    StateMetaInfo,
)
from spark_statestore.state.handles.codec import HandleContext, encode_handle
from spark_statestore.state.handles.owner import owner_of
from spark_statestore.state.operator_state import OperatorState
from tests.checkpoint.stores import attempt, commit, open_store

CONTEXT = HandleContext(MemoryFileSystem(), "/store")

texts = st.text(max_size=20)
attempts = st.binary(min_size=8, max_size=8).map(bytes.hex)
states = st.builds(
    NamedState,
    name=texts,
    rows=st.integers(0, 2**62),
    key_schema=texts,
    value_schema=texts,
    key_encoder=st.sampled_from(["hash", "prefix", "range", "timestampPrefix", "timestampPostfix"]),
    prefix_columns=st.integers(0, 9),
    ordering_columns=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    values=st.none() | st.integers(0, 2**62),
    internal=st.booleans(),
    since=st.integers(0, 2**62),
)
metadatas = st.builds(
    CheckpointMetadata,
    store=st.builds(StoreId, st.integers(0, 99), st.integers(0, 99), texts),
    version=st.integers(0, 2**62),
    attempt=attempts,
    parent_attempt=st.one_of(st.none(), attempts),
    created_ms=st.integers(0, 2**62),
    written_by=texts,
    states=st.lists(states, max_size=3).map(tuple),
    handle=st.just(chain.start(4, None)),
)


def sample(inline: bytes = b"") -> bytes:
    """Metadata of a base in a file and changes inside."""
    states = {"default": StateMetaInfo((16, 900)), "timers": StateMetaInfo((400,))}
    path = "/store/chk-7/_metadata"
    base = OperatorStreamStateHandle(
        state_name_to_partition_offsets=states,
        delegate_state_handle=FileStateHandle(CONTEXT.files, "/store/shared/5-x", 1000, 77),
    )
    changes = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"default": StateMetaInfo((16,))},
        delegate_state_handle=SegmentFileStateHandle(
            CONTEXT.files, path, INLINE_STATE_OFFSET, len(inline), "0123456789abcdef", zlib.crc32(inline)
        ),
    )
    metadata = CheckpointMetadata(
        store=StoreId(1, 2),
        version=7,
        attempt="0123456789abcdef",
        parent_attempt="fedcba9876543210",
        created_ms=1,
        written_by="0.1",
        states=(
            NamedState("default", 3, "{}", "{}", "prefix", 1),
            NamedState("timers", 0, "{}", "{}", "hash", 0),
        ),
        handle=chain.extend(chain.start(5, base), 7, changes),
    )
    return bytes(encode_metadata(metadata, InlineState.of(inline), encode_handle(metadata.handle, CONTEXT)))


def operators_sample() -> bytes:
    """Metadata of two operators, of three and of no subtasks with state."""
    lists = OperatorStreamStateHandle(
        state_name_to_partition_offsets={"offsets": StateMetaInfo((9, 20), Mode.UNION)},
        delegate_state_handle=RelativeFileStateHandle(CONTEXT.files, "/store", "3-x", 100, 5),
    )
    operators = {
        "source": OperatorState(
            "source",
            4,
            128,
            {
                2: lists,
                0: ByteStreamStateHandle("inline", b"state", zlib.crc32(b"state")),
                3: FileStateHandle(CONTEXT.files, "/elsewhere/file", 7),
            },
        ),
        "sink": OperatorState("sink", 1, 1, {}),
    }
    metadata = OperatorsMetadata(3, "0123456789abcdef", 1, operators, {"snapshotType": "checkpoint"}, "0.2")
    return encode_operators(metadata, CONTEXT)


Decode = Callable[[bytes, HandleContext, str], object]

SAMPLE = sample(b"inline state, which is part of the object")
OPERATORS = operators_sample()
BOTH = pytest.mark.parametrize(
    ("data", "decode"), [(SAMPLE, decode_metadata), (OPERATORS, decode_operators)], ids=["store", "operators"]
)


@given(metadatas, st.binary(max_size=100))
def test_metadata_comes_back_as_it_was(metadata: CheckpointMetadata, inline: bytes) -> None:
    data = bytes(encode_metadata(metadata, InlineState.of(inline), encode_handle(metadata.handle, CONTEXT)))
    assert decode_metadata(data, CONTEXT, "here") == metadata
    assert data[INLINE_STATE_OFFSET:][: len(inline)] == inline
    assert owner_of(data) == metadata.attempt


@pytest.mark.parametrize("size", [0, 100, 262_144 - len(sample(b"")), 262_145 - len(sample(b"")), 5_000_000])
def test_what_a_version_is_made_of_is_read_without_its_state(size: int) -> None:
    files = MemoryFileSystem()
    files.create("/m", data := sample(bytes(size)))
    read = read_without_state(files, "/m")
    assert len(read) <= 262_144
    assert decode_metadata(read, CONTEXT, "here", without_state=True) == decode_metadata(
        data, CONTEXT, "here"
    )


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_damage_outside_of_the_state_is_found_without_it(size: int) -> None:
    data = sample(bytes(size))
    damaged = [data[:-1], data + b"x", data[:100], data[:-300]]
    damaged += [data[:24] + b"\xff" * 8 + data[32:], data[:32] + b"\xff" * 8 + data[40:]]
    damaged += [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(40 + size, len(data) - 8)]
    found = 0
    for one in damaged:
        files = MemoryFileSystem()
        files.create("/m", one)
        try:
            read = decode_metadata(read_without_state(files, "/m"), CONTEXT, "here", without_state=True)
        except CorruptCheckpointError:
            found += 1
        else:
            # A bit of compressed data may change so that it stands for the same.
            assert read == decode_metadata(data, CONTEXT, "here")
    assert found > len(damaged) * 0.95


@st.composite
def operator_states(draw: st.DrawFn, name: str) -> OperatorState:
    parallelism = draw(st.one_of(st.integers(1, 5), st.just(300)))
    subtasks = draw(st.lists(st.integers(0, parallelism - 1), unique=True, max_size=5))
    streams = st.one_of(
        st.builds(ByteStreamStateHandle, texts, st.binary(max_size=20)),
        st.builds(
            FileStateHandle, st.just(CONTEXT.files), texts.map("/other/{}".format), st.integers(0, 2**62)
        ),
        st.builds(
            RelativeFileStateHandle,
            st.just(CONTEXT.files),
            st.just("/store"),
            st.from_regex(r"[a-z]{1,9}", fullmatch=True),
            st.integers(0, 2**62),
        ),
    )
    infos = st.builds(
        StateMetaInfo, st.lists(st.integers(0, 2**62), max_size=4).map(tuple), st.sampled_from(Mode)
    )
    handles = st.builds(
        lambda states, stream: OperatorStreamStateHandle(
            state_name_to_partition_offsets=states, delegate_state_handle=stream
        ),
        st.dictionaries(texts, infos, max_size=3),
        streams,
    )
    return OperatorState(
        name,
        parallelism,
        draw(st.integers(parallelism, 2**15)),
        {subtask: draw(st.one_of(handles, streams)) for subtask in subtasks},
    )


@st.composite
def operators_metadatas(draw: st.DrawFn) -> OperatorsMetadata:
    names = draw(st.lists(texts, unique=True, max_size=4))
    return OperatorsMetadata(
        checkpoint_id=draw(st.integers(0, 2**62)),
        attempt=draw(attempts),
        created_ms=draw(st.integers(0, 2**62)),
        operator_states={name: draw(operator_states(name)) for name in names},
        properties=draw(st.dictionaries(texts, st.one_of(texts, st.booleans(), st.none()), max_size=3)),
        written_by=draw(texts),
    )


def described(handle: object) -> object:
    """All that a handle says, of which equality compares a part only."""
    if isinstance(handle, OperatorStreamStateHandle):
        states = list(handle.state_name_to_partition_offsets.items())
        return (states, described(handle.delegate_state_handle))
    said = {name: value for name, value in vars(handle).items() if name != "files"}
    return (type(handle), said)


@given(operators_metadatas())
def test_metadata_of_operators_comes_back_as_it_was(metadata: OperatorsMetadata) -> None:
    data = encode_operators(metadata, CONTEXT)
    found = decode_operators(data, CONTEXT, "here")
    assert found == metadata
    assert list(found.operator_states) == list(metadata.operator_states)
    for name, state in metadata.operator_states.items():
        again = found.operator_states[name].subtasks
        assert [(n, described(h)) for n, h in again.items()] == [
            (n, described(h)) for n, h in state.subtasks.items()
        ]
    assert owner_of(data) == metadata.attempt


def test_the_streams_of_a_version_come_back_as_they_were() -> None:
    handle = decode_metadata(SAMPLE, CONTEXT, "here").handle
    base, changes = handle.entries
    assert (base.version, base.full, base.state.checksum) == (5, True, 77)
    assert base.state.delegate_state_handle.path == "/store/shared/5-x"
    assert base.state.state_name_to_partition_offsets["timers"].offsets == (400,)
    assert (changes.version, changes.full) == (7, False)
    assert changes.state.delegate_state_handle.owner == "0123456789abcdef"


@BOTH
def test_no_bit_can_change_unnoticed(data: bytes, decode: Decode) -> None:
    for at, bit in itertools.product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        with pytest.raises(CorruptCheckpointError, match="at the sea"):
            decode(bytes(damaged), CONTEXT, "the one at the sea")


@BOTH
def test_no_part_passes_for_the_whole(data: bytes, decode: Decode) -> None:
    for length in range(len(data)):
        with pytest.raises(CorruptCheckpointError, match="at the sea"):
            decode(data[:length], CONTEXT, "the one at the sea")
    for more in (b"\0", data, bytes(1000)):
        with pytest.raises(CorruptCheckpointError, match="not the length"):
            decode(data + more, CONTEXT, "here")


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: SAMPLE[:12] + tail)))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    for decode in (decode_metadata, decode_operators):
        with pytest.raises(CorruptCheckpointError):
            decode(data, CONTEXT, "here")


@BOTH
def test_what_is_wrong_is_told(data: bytes, decode: Decode) -> None:
    for damaged, what in [
        (b"", "is empty"),
        (b"PK" + data[2:], "does not start as metadata does"),
        (data[:-4] + b"SSTX", "does not match its checksum"),
        (data[:-8] + bytes(4) + data[-4:], "does not match its checksum"),
        (data[:-1], "not the length"),
    ]:
        with pytest.raises(CorruptCheckpointError, match=what):
            decode(damaged, CONTEXT, "here")


def test_one_kind_is_not_taken_for_the_other() -> None:
    with pytest.raises(CorruptCheckpointError, match="describes OPERATORS, not a version of a store"):
        decode_metadata(OPERATORS, CONTEXT, "here")
    with pytest.raises(CorruptCheckpointError, match="describes STORE_VERSION, not the state of operators"):
        decode_operators(SAMPLE, CONTEXT, "here")


def sealed(body: bytes, version: int = METADATA_FORMAT_VERSION, kind: int = 0, inline: bytes = b"") -> bytes:
    """A metadata object whose checksum is right, whatever its body is."""
    header = struct.pack("<8sHHI8sQQ", SAMPLE[:8], version, kind, 0, bytes(8), len(inline), len(body))
    data = header + inline + body
    return data + struct.pack("<I4s", zlib.crc32(data), b"SSTE")


def body_of(properties: object, *handles: bytes, count: int | None = None) -> bytes:
    """A body of the newest format, which says that it has so many handles."""
    said = json.dumps(properties).encode()
    lengths = [len(said), len(handles) if count is None else count, *map(len, handles)]
    return zlib.compress(struct.pack(f"<{len(lengths)}I", *lengths) + said + b"".join(handles))


@pytest.mark.parametrize("version", range(1, METADATA_FORMAT_VERSION + 1))
@given(
    st.one_of(
        st.binary(max_size=60),
        st.binary(max_size=60).map(zlib.compress),
        st.sampled_from([b"[]", b"{}", b"null", b"[" * 5000, b'{"operator":1}', b"\xff"]).map(
            lambda json: zlib.compress(struct.pack("<II", len(json), 0) + json)
        ),
    )
)
def test_a_body_that_makes_no_sense_is_refused_although_its_checksum_is_right(
    version: int, body: bytes
) -> None:
    for kind, decode in enumerate((decode_metadata, decode_operators)):
        with pytest.raises(CorruptCheckpointError):
            decode(sealed(body, version, kind), CONTEXT, "here")


def test_an_unknown_kind_is_refused() -> None:
    for decode in (decode_metadata, decode_operators):
        with pytest.raises(CorruptCheckpointError, match=r"at the sea .*99 is not a valid MetadataKind"):
            decode(sealed(body_of({}), kind=99), CONTEXT, "the one at the sea")


def operators_of(handles: int = 2, **changes: object) -> bytes:
    """Metadata of one operator with two subtasks, with other numbers or handles than it should have."""
    node: dict[str, object] = {"operator": "o", "parallelism": 2, "maxParallelism": 4, "subtasks": [0, 1]}
    properties: dict[str, object] = {
        "checkpoint": 1, "createdMs": 1, "writtenBy": "0.2", "operators": [node], "properties": {}
    }  # fmt: skip
    for name, value in changes.items():
        (node if name in node else properties)[name] = value
    encoded = [encode_handle(ByteStreamStateHandle(str(n), b"x"), CONTEXT) for n in range(handles)]
    return sealed(body_of(properties, *encoded), kind=1)


def test_the_numbers_of_operators_are_checked() -> None:
    assert decode_operators(operators_of(), CONTEXT, "here").operator_states["o"].parallelism == 2
    for changes in [
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
    ]:
        with pytest.raises(CorruptCheckpointError, match=r"at the sea cannot be read"):
            decode_operators(operators_of(**changes), CONTEXT, "the one at the sea")


def test_a_store_has_one_handle_and_no_negative_sizes() -> None:
    handle = encode_handle(chain.start(4, None), CONTEXT)
    properties = {
        "operator": 0, "partition": 0, "store": "default", "version": 1, "parentAttempt": None, "createdMs": 1,
        "writtenBy": "0.2", "states": [],
    }  # fmt: skip
    assert decode_metadata(sealed(body_of(properties, handle)), CONTEXT, "here").version == 1
    for handles in ([], [handle, handle], [encode_handle(ByteStreamStateHandle("a", b""), CONTEXT)]):
        with pytest.raises(CorruptCheckpointError, match="at the sea"):
            decode_metadata(sealed(body_of(properties, *handles)), CONTEXT, "the one at the sea")
    with pytest.raises(CorruptCheckpointError):
        decode_metadata(sealed(body_of(properties, b"x")), CONTEXT, "here")
    # Compressed data that lacks its own checksum has all of the body.
    with pytest.raises(CorruptCheckpointError, match="cut off"):
        decode_metadata(sealed(body_of(properties, handle)[:-1]), CONTEXT, "here")


@pytest.mark.parametrize("count", [0, 2, 3, 1000, 2**32 - 1])
def test_a_count_of_handles_that_is_wrong_is_refused(count: int) -> None:
    for kind, decode in enumerate((decode_metadata, decode_operators)):
        with pytest.raises(CorruptCheckpointError):
            decode(sealed(body_of({}, b"handle", count=count), kind=kind), CONTEXT, "here")


def test_a_body_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_statestore.checkpoint.metadata.format._LARGEST_BODY", 10_000)
    with pytest.raises(CorruptCheckpointError, match="larger than metadata can be"):
        decode_metadata(sealed(zlib.compress(bytes(20_000))), CONTEXT, "here")


@pytest.mark.parametrize("length", [65_535, 65_536, 200_000])
def test_names_may_be_longer_than_flinks(length: int) -> None:
    name = "\u00e4" * length
    handle = OperatorStreamStateHandle(
        state_name_to_partition_offsets={name: StateMetaInfo((0,))},
        delegate_state_handle=ByteStreamStateHandle(name, b"x"),
    )
    states = {name: OperatorState(name, 1, 1, {0: handle})}
    found = decode_operators(
        encode_operators(OperatorsMetadata(1, "0" * 16, 1, states), CONTEXT), CONTEXT, "here"
    )
    assert found.operator_states == states
    assert found.operator_states[name].subtasks[0].state_name_to_partition_offsets[name].offsets == (0,)


def test_many_operators_with_many_subtasks_come_back() -> None:
    states = {
        f"operator {o}": OperatorState(
            f"operator {o}", 20, 128, {n: ByteStreamStateHandle(f"{o}/{n}", bytes([o, n])) for n in range(20)}
        )
        for o in range(50)
    }
    data = encode_operators(OperatorsMetadata(1, "0" * 16, 1, states), CONTEXT)
    found = decode_operators(data, CONTEXT, "here")
    assert found.operator_states == states
    assert found.operator_states["operator 7"].subtasks[9].data == bytes([7, 9])


def first_format(data: bytes) -> bytes:
    """A store's metadata as the first release laid it out: without a count of handles."""
    inline, length = struct.unpack_from("<QQ", data, 24)
    body = zlib.decompress(data[INLINE_STATE_OFFSET + inline :][:length])
    described, count, handle = struct.unpack_from("<3I", body)
    assert count == 1
    old = zlib.compress(struct.pack("<2I", described, handle) + body[12:])
    return sealed(old, version=1, inline=data[INLINE_STATE_OFFSET:][:inline])


def test_the_first_format_is_still_read() -> None:
    found, wanted = (decode_metadata(data, CONTEXT, "here") for data in (first_format(SAMPLE), SAMPLE))
    assert found.attempt == "0" * 16
    assert replace(found, attempt=wanted.attempt) == wanted
    assert [described(entry.state) for entry in found.handle] == [
        described(entry.state) for entry in wanted.handle
    ]
    with pytest.raises(CorruptCheckpointError):
        decode_metadata(first_format(SAMPLE)[:-9] + first_format(SAMPLE)[-8:], CONTEXT, "here")


def test_what_came_with_a_later_format_is_not_read_from_the_first() -> None:
    placeholder = PlaceholderStreamStateHandle("sent before", 1)
    state = OperatorStreamStateHandle(state_name_to_partition_offsets={}, delegate_state_handle=placeholder)
    metadata = replace(decode_metadata(SAMPLE, CONTEXT, "here"), handle=chain.start(7, state))
    data = bytes(encode_metadata(metadata, InlineState(), encode_handle(metadata.handle, CONTEXT)))
    assert decode_metadata(data, CONTEXT, "here").handle == metadata.handle
    with pytest.raises(CorruptCheckpointError, match="format 1 does not have"):
        decode_metadata(first_format(data), CONTEXT, "here")


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    newer = SAMPLE[:8] + struct.pack("<H", 99) + b"whatever a later release makes of the rest"
    for decode in (decode_metadata, decode_operators):
        with pytest.raises(
            UnsupportedFormatError, match=rf"format 99, .* up to {METADATA_FORMAT_VERSION}\."
        ) as raised:
            decode(newer.ljust(100, b"\0"), CONTEXT, "the one at the sea")
        assert "the one at the sea" in str(raised.value)
        assert "Upgrade" in str(raised.value)


def test_damage_on_disk_is_told_with_its_place_and_left_as_it_is(tmp_path: Path) -> None:
    commit(open_store(tmp_path), CheckpointName(1), {b"a": b"1"}, by=attempt())
    path = tmp_path / "chk-1" / "_metadata"
    damaged = path.read_bytes()[:-20]
    path.write_bytes(damaged)
    with pytest.raises(CorruptCheckpointError) as raised:
        open_store(tmp_path).load(CheckpointName(1))
    for part in ("operator 0, partition 3", "version 1", str(path.parent), "backup"):
        assert part in str(raised.value)
    assert path.read_bytes() == damaged


def test_what_is_reserved_is_zero_and_operators_have_no_state_inside() -> None:
    operators = operators_sample()
    assert [struct.unpack_from("<I", data, 12) for data in (sample(b"inside"), operators)] == [(0,)] * 2
    assert struct.unpack_from("<Q", operators, 24) == (0,)


def test_bytes_that_are_no_metadata_have_no_owner() -> None:
    assert owner_of(SAMPLE) == "0123456789abcdef"
    assert owner_of(SAMPLE[: INLINE_STATE_OFFSET - 1]) is None
    assert owner_of(b"\0" + SAMPLE[1:]) is None
