"""Registry of the streams that several checkpoints share, which discards a stream after its last use."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from spark_statestore.errors import IllegalStateError
from spark_statestore.storage.stream_handles import StreamStateHandle

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    handle: StreamStateHandle
    created_by: int
    keeps_creator: bool
    last_used: int
    # First and last checkpoint of each run of users: a set of ids would grow with the chain of versions.
    users: list[tuple[int, int]]

    def use(self, checkpoint_id: int) -> None:
        self.last_used = max(self.last_used, checkpoint_id)
        for i, (first, last) in enumerate(self.users):
            if first - 1 <= checkpoint_id <= last + 1:
                self.users[i] = (min(first, checkpoint_id), max(last, checkpoint_id))
                return
        self.users.append((checkpoint_id, checkpoint_id))

    def is_used_by(self, checkpoint_ids: Collection[int]) -> bool:
        return any(first <= number <= last for number in checkpoint_ids for first, last in self.users)


class SharedStateRegistry:
    """Registry of the last checkpoint that uses each shared stream.

    Flink's current design: no reference counts, which a lost message would upset, but the id of the
    last checkpoint in which a stream was seen. Safe to use from several threads. Streams are discarded
    outside of the lock; one whose deletion fails is retried whenever unused state is unregistered.

    Parameters
    ----------
    on_discarded
        Called with every stream that was discarded.

    Notes
    -----
    Differences from Flink, each of which keeps a file that is needed:

    * Two handles with one `stream_state_handle_id` are one stream. Flink deletes "the other" one, and with it
      the file.
    * A stream that is pending deletion is kept if it is registered again before the deletion begins.
    * A stream is registered under its own id, so that another file never replaces it. Flink's keys are
      chosen by the backend, which needs confirmations and claim modes to tell which file to keep.
    """

    def __init__(self, *, on_discarded: Callable[[StreamStateHandle], None] | None = None) -> None:
        self._on_discarded = on_discarded
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # By stream id: the streams that wait to be discarded, and those that are being discarded.
        self._pending_deletion: dict[str, StreamStateHandle] = {}
        self._running: set[str] = set()

    def register_reference(
        self,
        handle: StreamStateHandle,
        checkpoint_id: int,
        *,
        created_by: int | None = None,
        keeps_creator: bool = False,
    ) -> None:
        """Register that a checkpoint uses a stream.

        Parameters
        ----------
        created_by
            The checkpoint that wrote it, if that is an earlier one.
        keeps_creator
            Whether the stream is a part of a file of its creator, which must then stay as long.

        Raises
        ------
        IllegalStateError
            If the stream is just being deleted, since no checkpoint used it any more.
        """
        key = handle.stream_state_handle_id
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._cancel_deletion(handle, checkpoint_id)
                creator = checkpoint_id if created_by is None else created_by
                entry = self._entries[key] = _Entry(handle, creator, keeps_creator, checkpoint_id, [])
            entry.use(checkpoint_id)

    def register_orphan(self, handle: StreamStateHandle, last_checkpoint_id: int) -> None:
        """Register a stream that no known checkpoint uses.

        It stays as long as a checkpoint up to an id may use it.
        """
        with self._lock:
            self._cancel_deletion(handle, last_checkpoint_id)
            entry = _Entry(handle, last_checkpoint_id, False, last_checkpoint_id, [])
            self._entries.setdefault(handle.stream_state_handle_id, entry)

    def checkpoints_in_use(self, lowest_checkpoint_id: int, also: Collection[int] = ()) -> set[int]:
        """Return the checkpoints below an id that must stay.

        A stream in one of their files is still used. The streams of the older checkpoints `also` are used
        too.
        """
        with self._lock:
            in_use = self._creators(lowest_checkpoint_id, also)
        return {creator for creator in in_use if creator < lowest_checkpoint_id}

    def unregister_unused_state(self, lowest_checkpoint_id: int, also: Collection[int] = ()) -> set[int]:
        """Discard the streams that no checkpoint from an id on uses, and none of the older ones `also`.

        Return the checkpoints that have a stream in a file of their own that is still used.
        """
        with self._lock:
            unused = [
                key for key, entry in self._entries.items() if not _is_used(entry, lowest_checkpoint_id, also)
            ]
            for key in unused:
                self._pending_deletion[key] = self._entries.pop(key).handle
            in_use = self._creators(lowest_checkpoint_id, also)
            pending_deletion = list(self._pending_deletion)
        for key in pending_deletion:
            self._discard(key)
        return in_use

    def is_discarding(self, stream_state_handle_id: str) -> bool:
        """Return whether a stream waits to be discarded, or is being discarded."""
        with self._lock:
            return stream_state_handle_id in self._pending_deletion or stream_state_handle_id in self._running

    def _creators(self, lowest_checkpoint_id: int, also: Collection[int]) -> set[int]:
        return {
            entry.created_by
            for entry in self._entries.values()
            if entry.keeps_creator and _is_used(entry, lowest_checkpoint_id, also)
        }

    def _cancel_deletion(self, handle: StreamStateHandle, checkpoint_id: int) -> None:
        name = handle.stream_state_handle_id
        if name in self._running:
            raise IllegalStateError(
                f"checkpoint {checkpoint_id} uses the stream {name}, which is being deleted, since no "
                "checkpoint used it any more. The task fails and Spark may retry it, which writes the state "
                "again."
            )
        self._pending_deletion.pop(name, None)

    def _discard(self, name: str) -> None:
        with self._lock:
            # It was registered again meanwhile, or another thread is discarding it.
            if name in self._running or (handle := self._pending_deletion.pop(name, None)) is None:
                return
            self._running.add(name)
        try:
            handle.discard_state()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed
            _logger.warning("could not discard %s, the next cleanup retries: %s", handle, error)
            with self._lock:
                self._running.discard(name)
                self._pending_deletion[name] = handle
            return
        with self._lock:
            self._running.discard(name)
        if self._on_discarded is not None:
            self._on_discarded(handle)

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._entries


def _is_used(entry: _Entry, lowest_checkpoint_id: int, also: Collection[int]) -> bool:
    return entry.last_used >= lowest_checkpoint_id or entry.is_used_by(also)
