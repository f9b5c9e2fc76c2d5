"""Snapshot of an operator's state, copied first and then written to one stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spark_statestore.operator_state.broadcast_state import HeapBroadcastState
from spark_statestore.operator_state.content import (
    BroadcastContent,
    ListContent,
    RestoredBroadcast,
    RestoredList,
)
from spark_statestore.operator_state.list_state import PartitionableListState
from spark_statestore.operator_state.snapshot_strategy import (
    AbstractSnapshotStrategy,
    CheckCancelled,
    CheckpointOptions,
)
from spark_statestore.operator_state.stream_format import encode_elements, encode_header, encode_part
from spark_statestore.storage.operator_handles import (
    Mode,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.storage.snapshot_result import SnapshotResult
from spark_statestore.storage.streams import CheckpointedStateScope

if TYPE_CHECKING:
    from spark_statestore.storage.streams import CheckpointStreamFactory

_Copies = tuple[list[ListContent], list[BroadcastContent]]


class DefaultOperatorStateBackendSnapshotStrategy(AbstractSnapshotStrategy[OperatorStateHandle, _Copies]):
    """Snapshots of a backend's states, in their order, each to one exclusive stream.

    Parameters
    ----------
    lists, broadcasts
        The backend's states by name, which it may change between snapshots.
    """

    def __init__(
        self,
        lists: Mapping[str, PartitionableListState[Any] | RestoredList],
        broadcasts: Mapping[str, HeapBroadcastState[Any, Any] | RestoredBroadcast],
    ) -> None:
        super().__init__("operator state")
        self._lists = lists
        self._broadcasts = broadcasts

    def sync_prepare_resources(self, checkpoint_id: int, options: CheckpointOptions) -> _Copies:
        shallow = options.is_synchronous
        return (
            [state.copy(shallow=shallow) for state in self._lists.values()],
            [state.copy(shallow=shallow) for state in self._broadcasts.values()],
        )

    def async_snapshot(
        self,
        resources: _Copies,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> Callable[[CheckCancelled], SnapshotResult[OperatorStateHandle]]:
        return lambda check_cancelled: _write(resources, checkpoint_id, stream_factory, check_cancelled)


def _write(
    copies: _Copies,
    checkpoint_id: int,
    stream_factory: CheckpointStreamFactory,
    check_cancelled: CheckCancelled,
) -> SnapshotResult[OperatorStateHandle]:
    """Write states to a stream, of which nothing is left if that fails; no stream is opened without state."""
    lists, broadcasts = copies
    if not lists and not broadcasts:
        return SnapshotResult.empty()
    check_cancelled()
    states: dict[str, StateMetaInfo] = {}
    with stream_factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE) as out:

        def write(data: bytes) -> None:
            check_cancelled()
            out.write(data)

        write(encode_header([s.meta_info for s in lists], [s.meta_info for s in broadcasts]))
        for state in lists:
            meta = state.meta_info
            offsets: list[int] = []
            with _naming("list", meta.name, checkpoint_id):
                for piece in encode_elements(state.encoded(), len(meta.serializers), out.get_pos(), offsets):
                    write(piece)
            states[meta.name] = StateMetaInfo(tuple(offsets), meta.mode)
        for broadcast in broadcasts:
            name, serializers = broadcast.meta_info.name, broadcast.meta_info.serializers
            offsets = []
            with _naming("broadcast", name, checkpoint_id):
                for pair, count, entries in broadcast.encoded():
                    offsets.append(out.get_pos())
                    for piece in encode_part(count, entries, pair, len(serializers)):
                        write(piece)
            states[name] = StateMetaInfo(tuple(offsets), Mode.BROADCAST)
        check_cancelled()
        handle = out.close_and_get_handle()
    if handle is None:
        return SnapshotResult.empty()
    return SnapshotResult.of(
        OperatorStreamStateHandle(state_name_to_partition_offsets=states, delegate_state_handle=handle)
    )


@contextmanager
def _naming(kind: str, name: str, checkpoint_id: int) -> Iterator[None]:
    """Add the state's name to an error, which a serializer does not know."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {kind} state {name!r} of checkpoint {checkpoint_id} was written")
        raise
