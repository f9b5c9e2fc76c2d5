"""The metadata object: there and back, and every kind of damage."""

from __future__ import annotations

import struct
import zlib
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
    StoreId,
    decode_metadata,
    encode_metadata,
)
from spark_statestore.checkpoint.metadata.format import INLINE_STATE_OFFSET, owner_of
from spark_statestore.checkpoint.storage import CheckpointName
from spark_statestore.errors import CorruptCheckpointError, UnsupportedFormatError
from spark_statestore.state.handles import (
    FileStateHandle,
    OperatorStreamStateHandle,
    SegmentFileStateHandle,
    StateMetaInfo,
)
from spark_statestore.state.handles.codec import HandleContext, encode_handle
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
    key_encoder=st.sampled_from(["hash", "prefix"]),
    prefix_columns=st.integers(0, 9),
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
    return encode_metadata(metadata, inline, encode_handle(metadata.handle, CONTEXT))


SAMPLE = sample(b"inline state, which is part of the object")


@given(metadatas, st.binary(max_size=100))
def test_metadata_comes_back_as_it_was(metadata: CheckpointMetadata, inline: bytes) -> None:
    data = encode_metadata(metadata, inline, encode_handle(metadata.handle, CONTEXT))
    assert decode_metadata(data, CONTEXT, "here") == metadata
    assert data[INLINE_STATE_OFFSET:][: len(inline)] == inline
    assert owner_of(data) == metadata.attempt


def test_the_streams_of_a_version_come_back_as_they_were() -> None:
    handle = decode_metadata(SAMPLE, CONTEXT, "here").handle
    base, changes = handle.entries
    assert (base.version, base.full, base.state.checksum) == (5, True, 77)
    assert base.state.delegate_state_handle.path == "/store/shared/5-x"
    assert base.state.state_name_to_partition_offsets["timers"].offsets == (400,)
    assert (changes.version, changes.full) == (7, False)
    assert changes.state.delegate_state_handle.owner == "0123456789abcdef"


@pytest.mark.parametrize("at", range(len(SAMPLE)))
def test_no_bit_can_change_unnoticed(at: int) -> None:
    for bit in range(8):
        damaged = bytearray(SAMPLE)
        damaged[at] ^= 1 << bit
        version = struct.unpack_from("<H", damaged, 8)[0]
        expected = UnsupportedFormatError if version > METADATA_FORMAT_VERSION else CorruptCheckpointError
        with pytest.raises(expected, match="at the sea"):
            decode_metadata(bytes(damaged), CONTEXT, "the one at the sea")


def test_no_part_passes_for_the_whole() -> None:
    for length in range(len(SAMPLE)):
        with pytest.raises(CorruptCheckpointError, match="at the sea"):
            decode_metadata(SAMPLE[:length], CONTEXT, "the one at the sea")
    with pytest.raises(CorruptCheckpointError):
        decode_metadata(SAMPLE + b"\0", CONTEXT, "here")


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda tail: SAMPLE[:12] + tail)))
def test_any_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_metadata(data, CONTEXT, "here")


def sealed(body: bytes) -> bytes:
    """A metadata object whose checksum is right, whatever its body is."""
    data = struct.pack("<8sHHI8sQQ", SAMPLE[:8], 1, 0, 0, bytes(8), 0, len(body)) + body
    return data + struct.pack("<I4s", zlib.crc32(data), b"SSTE")


@given(
    st.one_of(
        st.binary(max_size=60),
        st.binary(max_size=60).map(zlib.compress),
        st.sampled_from([b"[]", b"{}", b"null", b"[" * 5000, b'{"operator":1}', b"\xff"]).map(
            lambda json: zlib.compress(struct.pack("<II", len(json), 0) + json)
        ),
    )
)
def test_a_body_that_makes_no_sense_is_refused_although_its_checksum_is_right(body: bytes) -> None:
    with pytest.raises(CorruptCheckpointError):
        decode_metadata(sealed(body), CONTEXT, "here")


def test_a_newer_format_is_refused_with_both_numbers() -> None:
    newer = SAMPLE[:8] + struct.pack("<H", 9) + b"whatever a later release makes of the rest"
    with pytest.raises(UnsupportedFormatError, match=r"format 9, .* up to 1") as raised:
        decode_metadata(newer.ljust(100, b"\0"), CONTEXT, "the one at the sea")
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


def test_bytes_that_are_no_metadata_have_no_owner() -> None:
    assert owner_of(SAMPLE) == "0123456789abcdef"
    assert owner_of(SAMPLE[: INLINE_STATE_OFFSET - 1]) is None
    assert owner_of(b"\0" + SAMPLE[1:]) is None
