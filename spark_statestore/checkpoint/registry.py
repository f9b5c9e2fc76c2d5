"""Which streams are still needed by some checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from spark_statestore.state.handles.base import StreamStateHandle

__all__ = ["SharedStateRegistry", "UnregisteredState"]


@dataclass(slots=True)
class _Entry:
    handle: StreamStateHandle
    created_by: int
    last_used: int
    keeps_creator: bool


@dataclass(frozen=True, slots=True)
class UnregisteredState:
    """A stream that no checkpoint uses any more, for its owner to discard.

    Attributes
    ----------
    key
        Names the physical stream.
    entry
        What the registry knew of it.
    """

    key: str
    entry: _Entry

    @property
    def handle(self) -> StreamStateHandle:
        """The stream."""
        return self.entry.handle


class SharedStateRegistry:
    """Keeps, for every shared stream, the last checkpoint that uses it.

    Flink's current design: no counting of references, which a lost message would upset, but the
    number of the last checkpoint in which a stream was seen. Not safe to use from several threads
    at once.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def register_reference(
        self,
        key: str,
        handle: StreamStateHandle,
        checkpoint_id: int,
        *,
        created_by: int | None = None,
        keeps_creator: bool = False,
    ) -> StreamStateHandle:
        """Note that a checkpoint uses a stream.

        Parameters
        ----------
        key
            Names the physical stream.
        checkpoint_id
            The checkpoint that uses it.
        created_by
            The checkpoint that wrote it, if that is an earlier one.
        keeps_creator
            Whether the stream lies inside of its creator, which must then stay as long.

        Returns
        -------
        StreamStateHandle
            The handle to use from now on: the first one that was registered.
        """
        entry = self._entries.get(key)
        if entry is None:
            creator = checkpoint_id if created_by is None else created_by
            self._entries[key] = _Entry(handle, creator, checkpoint_id, keeps_creator)
            return handle
        entry.last_used = max(entry.last_used, checkpoint_id)
        return entry.handle

    def checkpoints_in_use(self, lowest_checkpoint_id: int) -> set[int]:
        """Checkpoints below a number that must stay: a stream that is still used lies inside them."""
        return {
            entry.created_by
            for entry in self._entries.values()
            if entry.keeps_creator and entry.created_by < lowest_checkpoint_id <= entry.last_used
        }

    def unregister_unused_state(self, lowest_checkpoint_id: int) -> list[UnregisteredState]:
        """Forget the streams that no checkpoint from a number on uses.

        Flink's registry discards them itself; here the caller does, outside of its lock.

        Returns
        -------
        list of UnregisteredState
            The streams to discard.
        """
        unused = [
            UnregisteredState(key, entry)
            for key, entry in self._entries.items()
            if entry.last_used < lowest_checkpoint_id
        ]
        for unregistered in unused:
            del self._entries[unregistered.key]
        return unused

    def register_again(self, unregistered: UnregisteredState) -> None:
        """Take back a stream that could not be discarded, to try again later."""
        self._entries.setdefault(unregistered.key, unregistered.entry)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries
