"""Which streams are still needed by some checkpoint."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from spark_statestore.state.handles.base import StreamStateHandle

__all__ = ["SharedStateRegistry"]

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    handle: StreamStateHandle
    created_by: int
    last_used: int
    keeps_creator: bool


class SharedStateRegistry:
    """Keeps, for every shared stream, the last checkpoint that uses it.

    Flink's current design: no counting of references, which a lost message would upset, but the
    number of the last checkpoint in which a stream was seen.
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

    def unregister_unused_state(self, lowest_checkpoint_id: int) -> int:
        """Discard the streams that no checkpoint from a number on uses.

        A stream that cannot be discarded now stays registered and is tried again next time.

        Returns
        -------
        int
            How many streams were discarded.
        """
        discarded = 0
        for key, entry in list(self._entries.items()):
            if entry.last_used >= lowest_checkpoint_id:
                continue
            try:
                entry.handle.discard_state()
            except OSError as error:
                _logger.warning("could not discard %s, will try again: %s", key, error)
                continue
            del self._entries[key]
            discarded += not entry.keeps_creator
        return discarded

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries
