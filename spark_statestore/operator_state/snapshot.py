"""Snapshot of an operator's state, written to one stream."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_statestore.operator_state.content import BroadcastContent, ListContent
from spark_statestore.operator_state.stream_format import encode_element, encode_header, encode_part
from spark_statestore.storage.operator_handles import (
    Mode,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.storage.streams import CheckpointedStateScope

if TYPE_CHECKING:
    from spark_statestore.storage.streams import CheckpointStateOutputStream, CheckpointStreamFactory


def write_snapshot(
    lists: Collection[ListContent],
    broadcasts: Collection[BroadcastContent],
    checkpoint_id: int,
    stream_factory: CheckpointStreamFactory,
) -> OperatorStreamStateHandle | None:
    """Write states in their order to one exclusive stream, and return its handle; None if there is no state.

    If that fails, nothing of it is left. The checkpoint's id is for messages.
    """
    if not lists and not broadcasts:
        return None
    with stream_factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as out:
        states = _write(lists, broadcasts, checkpoint_id, out)
        handle = out.close_and_get_handle()
    if handle is None:
        return None
    return OperatorStreamStateHandle(state_name_to_partition_offsets=states, delegate_state_handle=handle)


def _write(
    lists: Collection[ListContent],
    broadcasts: Collection[BroadcastContent],
    checkpoint_id: int,
    out: CheckpointStateOutputStream,
) -> dict[str, StateMetaInfo]:
    out.write(encode_header([s.meta_info for s in lists], [s.meta_info for s in broadcasts]))
    states: dict[str, StateMetaInfo] = {}
    for state in lists:
        meta = state.meta_info
        offsets = []
        with _naming("list", meta.name, checkpoint_id):
            for serializer, data in state.encoded():
                offsets.append(out.get_pos())
                out.write(encode_element(data, serializer, len(meta.serializers)))
        states[meta.name] = StateMetaInfo(tuple(offsets), meta.mode)
    for broadcast in broadcasts:
        name, serializers = broadcast.meta_info.name, broadcast.meta_info.serializers
        offsets = []
        with _naming("broadcast", name, checkpoint_id):
            for pair, entries in broadcast.encoded():
                offsets.append(out.get_pos())
                out.write(encode_part(entries, pair, len(serializers)))
        states[name] = StateMetaInfo(tuple(offsets), Mode.BROADCAST)
    return states


@contextmanager
def _naming(kind: str, name: str, checkpoint_id: int) -> Iterator[None]:
    """Add the state's name to an error, which a serializer does not know."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {kind} state {name!r} of checkpoint {checkpoint_id} was written")
        raise
