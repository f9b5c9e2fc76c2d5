"""Restore of an operator's state from its handles."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from spark_statestore.errors import (
    CheckpointError,
    CheckpointIOError,
    CheckpointNotFoundError,
    IllegalStateError,
)
from spark_statestore.operator_state.content import RestoredBroadcast, RestoredList
from spark_statestore.operator_state.stream_format import (
    BroadcastMetaInfo,
    ListMetaInfo,
    Reader,
    corrupt,
    decode_header,
)
from spark_statestore.storage.operator_handles import Mode, OperatorStateHandle, StateMetaInfo

_CHUNK: Final = 1 << 20


class OperatorStateRestoreOperation:
    """Read handles, one after the other.

    Elements of lists are appended in the order of the handles; entries of broadcast states replace
    those with the same key. Nothing is decoded: that happens when a state is asked for, by its
    serializer. A state that a stream names but whose handle has no part of it is known, and empty:
    its content belongs to other subtasks. Streams of one state may differ in its serializer, where
    Flink's class takes the first one for all.
    """

    def __init__(self) -> None:
        self.lists: dict[str, RestoredList] = {}
        self.broadcasts: dict[str, RestoredBroadcast] = {}

    def restore(self, handles: Iterable[OperatorStateHandle | None]) -> None:
        """Read handles; those that are None are skipped.

        Raises
        ------
        CheckpointNotFoundError
            If a stream is gone.
        CheckpointIOError, CorruptCheckpointError, UnsupportedFormatError
            If one cannot be read, or is not what was written.
        IllegalStateError
            If two streams have different kinds of states under one name.
        """
        for handle in handles:
            if handle is not None:
                self._restore(handle)

    def _restore(self, handle: OperatorStateHandle) -> None:
        where = f"the operator state stream {handle.stream_state_handle_id}"
        data = self._read(handle, where)
        if handle.checksum is not None and zlib.crc32(data) != handle.checksum:
            raise corrupt(where, f"({len(data)} bytes) does not match its checksum")
        lists, broadcasts = decode_header(data, where)
        reader = Reader(data, where)
        offsets = dict(handle.state_name_to_partition_offsets)
        for meta in lists:
            self._restore_list(meta, reader, _take(offsets, meta.name, meta.mode, where))
        for broadcast in broadcasts:
            self._restore_broadcast(broadcast, reader, _take(offsets, broadcast.name, Mode.BROADCAST, where))
        if offsets:
            raise corrupt(where, f"does not know {sorted(offsets)}, which its handle lists")

    def _restore_list(self, meta: ListMetaInfo, reader: Reader, offsets: Iterable[int]) -> None:
        state = self.lists.setdefault(meta.name, RestoredList(meta.name, meta.mode))
        if meta.name in self.broadcasts or state.mode is not meta.mode:
            before = "BROADCAST" if meta.name in self.broadcasts else state.mode.name
            raise _conflict(meta.name, before, meta.mode.name)
        numbers = [state.know(serializer) for serializer in meta.serializers]
        for offset in offsets:
            serializer, data = reader.element(offset, len(numbers))
            state.append(numbers[serializer], data)

    def _restore_broadcast(self, meta: BroadcastMetaInfo, reader: Reader, offsets: Iterable[int]) -> None:
        if meta.name in self.lists:
            raise _conflict(meta.name, self.lists[meta.name].mode.name, "BROADCAST")
        state = self.broadcasts.setdefault(meta.name, RestoredBroadcast(meta.name))
        numbers = [state.know(pair) for pair in meta.serializers]
        for offset in offsets:
            pair, entries = reader.part(offset, len(numbers))
            state.append(numbers[pair], entries)

    def _read(self, handle: OperatorStateHandle, where: str) -> bytes:
        try:
            with handle.open_input_stream() as stream:
                return b"".join(iter(lambda: stream.read(_CHUNK), b""))
        except CheckpointError:
            raise
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"{where} is gone. Was its checkpoint deleted? Restore it from a backup, or restore another "
                "checkpoint."
            ) from error
        except (OSError, ValueError) as error:
            raise CheckpointIOError(
                f"{where} could not be read: {error}. Nothing was changed; restore it again when the "
                "storage can be reached."
            ) from error


def _take(states: dict[str, StateMetaInfo], name: str, mode: Mode, where: str) -> tuple[int, ...]:
    """Return the offsets that a handle has of a state, none if its content is other subtasks'."""
    part = states.pop(name, None)
    if part is None:
        return ()
    if part.distribution_mode is not mode:
        raise corrupt(
            where, f"stores {name!r} as {mode.name}, but its handle has {part.distribution_mode.name}"
        )
    return part.offsets


def _conflict(name: str, before: str, now: str) -> IllegalStateError:
    return IllegalStateError(
        f"state {name!r} is {before} in one of the streams to restore and {now} in another. They are not of "
        "one checkpoint of one operator: restore handles that belong together."
    )
