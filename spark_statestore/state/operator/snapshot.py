"""How the state of an operator is written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_statestore.checkpoint.streams.base import CheckpointedStateScope
from spark_statestore.errors import CheckpointIOError
from spark_statestore.state.handles.operator import (
    Mode,
    OperatorStateHandle,
    OperatorStreamStateHandle,
    StateMetaInfo,
)
from spark_statestore.state.operator.content import BroadcastContent, ListContent
from spark_statestore.state.operator.format import encode_element, encode_header, encode_part
from spark_statestore.state.snapshot.closeables import CloseableRegistry
from spark_statestore.state.snapshot.future import AsyncSnapshotCallable, DoneFuture, SnapshotFuture
from spark_statestore.state.snapshot.result import SnapshotResult
from spark_statestore.state.snapshot.strategy import AbstractSnapshotStrategy
from spark_statestore.state.snapshot.streams import CancellableStream

if TYPE_CHECKING:
    from spark_statestore.checkpoint.streams.base import CheckpointStreamFactory

__all__ = ["DefaultOperatorStateBackendSnapshotStrategy"]

Result = SnapshotResult[OperatorStateHandle]


class DefaultOperatorStateBackendSnapshotStrategy(AbstractSnapshotStrategy[OperatorStateHandle]):
    """Copies all state when the snapshot is taken, and writes the copy to one stream later.

    Parameters
    ----------
    lists, broadcasts
        The backend's states, as they are at each snapshot.
    registry
        Closing it cancels the snapshots that are not complete.
    asynchronous
        Whether the caller runs the future; otherwise it is complete when it is given.
    """

    def __init__(
        self,
        lists: Mapping[str, ListContent],
        broadcasts: Mapping[str, BroadcastContent],
        registry: CloseableRegistry,
        *,
        asynchronous: bool = True,
    ) -> None:
        super().__init__("DefaultOperatorStateBackend snapshot")
        self._lists = lists
        self._broadcasts = broadcasts
        self._registry = registry
        self._asynchronous = asynchronous

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: int,
        stream_factory: CheckpointStreamFactory,
        options: object | None = None,
    ) -> SnapshotFuture[Result]:
        started = time.monotonic()
        if not self._lists and not self._broadcasts:
            return DoneFuture(SnapshotResult.empty())
        writer = _Writer(
            [state.deep_copy() for state in self._lists.values()],
            [state.deep_copy() for state in self._broadcasts.values()],
            stream_factory,
            self,
            checkpoint_id,
        )
        future = writer.to_async_snapshot_future_task(self._registry)
        self.log_sync_completed(stream_factory, started)
        if not self._asynchronous:
            future.run()
        return future


class _Writer(AsyncSnapshotCallable[Result]):
    def __init__(
        self,
        lists: Iterable[ListContent],
        broadcasts: Iterable[BroadcastContent],
        stream_factory: CheckpointStreamFactory,
        strategy: AbstractSnapshotStrategy[OperatorStateHandle],
        checkpoint_id: int,
    ) -> None:
        super().__init__()
        self._lists = list(lists)
        self._broadcasts = list(broadcasts)
        self._stream_factory = stream_factory
        self._strategy = strategy
        self._checkpoint_id = checkpoint_id

    def call_internal(self) -> Result:
        stream = self._stream_factory.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        with CancellableStream(stream) as out:
            self.closeables.register_closeable(out)
            states = self._write(out)
            if not self.closeables.unregister_closeable(out):
                raise CheckpointIOError(
                    f"the stream of operator state for checkpoint {self._checkpoint_id} was closed before it was "
                    "complete, because the snapshot was cancelled or its backend closed. Nothing of it is left."
                )
            handle = out.close_and_get_handle()
        if handle is None:
            return SnapshotResult.empty()
        return SnapshotResult.of(
            OperatorStreamStateHandle(state_name_to_partition_offsets=states, delegate_state_handle=handle)
        )

    def clean_up_provided_resources(self) -> None:
        # The copies; whoever keeps the future need not keep them.
        self._lists, self._broadcasts = [], []

    def log_async_snapshot_complete(self, started: float) -> None:
        self._strategy.log_async_completed(self._stream_factory, started)

    def __repr__(self) -> str:
        return f"{self._strategy.description} for checkpoint {self._checkpoint_id}"

    def _write(self, out: CancellableStream) -> dict[str, StateMetaInfo]:
        # Cancelling empties the lists, so each is looked at once.
        lists, broadcasts = self._lists, self._broadcasts
        out.write(encode_header([s.meta_info for s in lists], [s.meta_info for s in broadcasts]))
        states: dict[str, StateMetaInfo] = {}
        for state in lists:
            meta = state.meta_info
            offsets = []
            try:
                for serializer, data in state.encoded():
                    offsets.append(out.get_pos())
                    out.write(encode_element(data, serializer, len(meta.serializers)))
            except Exception as error:
                error.add_note(
                    f"while list state {meta.name!r} of checkpoint {self._checkpoint_id} was written"
                )
                raise
            states[meta.name] = StateMetaInfo(tuple(offsets), meta.mode)
        for broadcast in broadcasts:
            name, serializers = broadcast.meta_info.name, broadcast.meta_info.serializers
            offsets = []
            try:
                for pair, entries in broadcast.encoded():
                    offsets.append(out.get_pos())
                    out.write(encode_part(entries, pair, len(serializers)))
            except Exception as error:
                error.add_note(
                    f"while broadcast state {name!r} of checkpoint {self._checkpoint_id} was written"
                )
                raise
            states[name] = StateMetaInfo(tuple(offsets), Mode.BROADCAST)
        return states
