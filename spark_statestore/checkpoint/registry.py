"""Which streams are still needed by some checkpoint, and who discards the others."""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from spark_statestore.errors import IllegalStateError
from spark_statestore.state.handles.base import StreamStateHandle
from spark_statestore.state.handles.placeholder import PlaceholderStreamStateHandle
from spark_statestore.state.objects import CompositeStateHandle, StateObject

if TYPE_CHECKING:
    from spark_statestore.checkpoint.completed.checkpoint import CompletedCheckpoint

__all__ = ["Execute", "RestoreMode", "SharedStateRegistry", "runner"]

_logger = logging.getLogger(__name__)

# Below the number of every checkpoint.
_NONE: Final = -(2**63)

Task = Callable[[], None]
Execute = Callable[[Task], object]
"""Runs a task, now or later."""


class RestoreMode(enum.Enum):
    """Who owns the snapshot that a job starts from; newer releases of Flink call it a claim mode."""

    CLAIM = "claim"
    """The job: the snapshot is one of its checkpoints from then on."""
    NO_CLAIM = "no-claim"
    """The user: the job never deletes anything of it, and its first checkpoint is a full one."""
    LEGACY = "legacy"
    """Nobody: the job never deletes anything of it, but may build on it."""


def runner(executor: Executor | Execute | None) -> Execute:
    """What runs tasks: an executor, any callable that takes a task, or else the caller's thread.

    A task that is refused, as by an executor that was shut down, runs in the caller's thread.
    """
    if executor is None:
        return lambda task: task()
    execute: Execute = executor.submit if isinstance(executor, Executor) else executor

    def run(task: Task) -> None:
        try:
            execute(task)
        except RuntimeError as error:
            _logger.debug("%r was refused, it runs in this thread: %s", task, error)
            task()

    return run


@dataclass(slots=True)
class _Entry:
    handle: StreamStateHandle
    created_by: int
    keeps_creator: bool
    last_used: int
    # The checkpoints that use it, as first and last of each row of numbers: a long chain of
    # versions would make sets of numbers large.
    users: list[tuple[int, int]]
    confirmed: bool = False
    prevents_discarding: bool = False

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
    """Keeps, for every shared stream, the last checkpoint that uses it.

    Flink's current design: no counting of references, which a lost message would upset, but the
    number of the last checkpoint in which a stream was seen. Safe to use from several threads.
    Streams are discarded outside of the lock; one that could not be discarded is tried again
    whenever unused state is unregistered.

    Parameters
    ----------
    executor
        Discards streams: an executor or a callable that takes a task. By default the thread that
        calls.
    on_discarded
        Called with every stream that was discarded.

    Notes
    -----
    Where this differs from Flink, it is to keep a file that is needed:

    * Two handles with one `stream_state_handle_id`, such as an absolute and a relative one, are one
      stream. Flink deletes "the other" one, and with it the file.
    * A stream that any entry still holds, under whatever key, is not deleted, and one that waits
      to be deleted is kept if it is registered again.
    * An entry is confirmed by every completed checkpoint that uses it, not only by the last one,
      and what was restored is confirmed from the start. So a stream is replaced only if no
      completed checkpoint uses it. A checkpoint that is still pending then has lost the stream:
      abort it, as a failover does.
    * Nothing of a snapshot that is not claimed is deleted, also not when its stream is replaced.
    * `prevent_discarding` counts also when a stream is registered for the first time.
    """

    def __init__(
        self,
        executor: Executor | Execute | None = None,
        *,
        on_discarded: Callable[[StreamStateHandle], None] | None = None,
    ) -> None:
        self._run = runner(executor)
        self._on_discarded = on_discarded
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        # By physical id: what waits to be discarded, and what is being discarded right now.
        self._doomed: dict[str, StreamStateHandle] = {}
        self._running: set[str] = set()
        self._restored: set[int] = set()
        self._self_contained: set[int] = set()
        self._highest_not_claimed = _NONE
        self._not_claimed: set[str] = set()
        self._open = True

    def register_reference(
        self,
        key: str,
        handle: StreamStateHandle,
        checkpoint_id: int,
        prevent_discarding: bool = False,
        *,
        created_by: int | None = None,
        keeps_creator: bool = False,
    ) -> StreamStateHandle:
        """Note that a checkpoint uses a stream.

        Parameters
        ----------
        key
            Names the stream; usually its physical id.
        handle
            The stream, or a placeholder for one that is known.
        checkpoint_id
            The checkpoint that uses it.
        prevent_discarding
            Whether the checkpoint that wrote it must stay as long, if that one was restored.
        created_by
            The checkpoint that wrote it, if that is an earlier one.
        keeps_creator
            Whether the stream lies inside of its creator, which must then stay as long.

        Returns
        -------
        StreamStateHandle
            The handle to use from now on. If it is not the given one, the given one is discarded,
            unless both are handles to the same stream.

        Raises
        ------
        TypeError
            If there is no handle.
        IllegalStateError
            If the registry is closed, a placeholder names an unknown stream, or the stream is just
            being deleted, since no checkpoint used it any more.
        """
        if handle is None:
            raise TypeError(f"the stream {key!r} needs a handle, got None")
        with self._lock:
            if not self._open:
                raise IllegalStateError(
                    f"checkpoint {checkpoint_id} cannot register {key!r}: the registry was closed when its job "
                    "ended. Register with the registry of the job that runs now."
                )
            creator = checkpoint_id if created_by is None else created_by
            if checkpoint_id in self._self_contained:
                creator = checkpoint_id
            new = _Entry(handle, creator, keeps_creator, checkpoint_id, [(checkpoint_id, checkpoint_id)])
            entry = self._entries.get(key)
            unwanted = None
            if entry is None:
                if isinstance(handle, PlaceholderStreamStateHandle):
                    raise IllegalStateError(
                        f"checkpoint {checkpoint_id} refers to the stream {key!r} as one that was sent before, but "
                        "no checkpoint that is kept has it. Send the state itself."
                    )
                self._rescue(handle, checkpoint_id)
                entry = self._entries[key] = new
            else:
                unwanted = self._merge(entry, new, checkpoint_id)
            entry.prevents_discarding |= prevent_discarding
            kept = entry.handle
            doomed = [] if unwanted is None else self._doom([unwanted])
        self._discard(doomed)
        return kept

    def register_stray(self, handle: StreamStateHandle, last_checkpoint_id: int) -> None:
        """Note a stream that no known checkpoint uses: it stays as long as one up to a number may.

        Raises
        ------
        IllegalStateError
            If the stream is just being deleted.
        """
        with self._lock:
            self._rescue(handle, last_checkpoint_id)
            entry = _Entry(handle, last_checkpoint_id, False, last_checkpoint_id, [])
            self._entries.setdefault(handle.stream_state_handle_id, entry)

    def register_all(self, states: Iterable[StateObject | None] | None, checkpoint_id: int) -> None:
        """Register the shared streams of a checkpoint's states.

        Raises
        ------
        IllegalStateError
            See `register_reference`.
        """
        for state in states or ():
            if isinstance(state, CompositeStateHandle):
                state.register_shared_states(self, checkpoint_id)

    def register_all_after_restored(self, checkpoint: CompletedCheckpoint, mode: RestoreMode) -> None:
        """Register the streams of the checkpoint that a job starts from.

        Raises
        ------
        IllegalStateError
            See `register_reference`.
        """
        number = checkpoint.checkpoint_id
        with self._lock:
            self._restored.add(number)
            if not checkpoint.sharing_files_strategy.shares_files:
                self._self_contained.add(number)
            if mode is not RestoreMode.CLAIM:
                self._highest_not_claimed = max(self._highest_not_claimed, number)
        self.register_all(checkpoint.operator_states.values(), number)
        self.checkpoint_completed(number)
        with self._lock:
            # Also if a later checkpoint registers them under another key, as its own.
            self._not_claimed.update(
                entry.handle.stream_state_handle_id
                for entry in self._entries.values()
                if entry.created_by <= self._highest_not_claimed
            )

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Note that a checkpoint exists, so that its streams are not replaced any more."""
        with self._lock:
            for entry in self._entries.values():
                if entry.is_used_by((checkpoint_id,)):
                    entry.confirmed = True

    def checkpoints_in_use(self, lowest_checkpoint_id: int, also: Collection[int] = ()) -> set[int]:
        """Checkpoints below a number that must stay: a stream that is still used lies inside them.

        Parameters
        ----------
        also
            Older checkpoints whose streams are used too.
        """
        with self._lock:
            in_use = self._creators(
                lambda entry: entry.last_used >= lowest_checkpoint_id or entry.is_used_by(also)
            )
        return {creator for creator in in_use if creator < lowest_checkpoint_id}

    def unregister_unused_state(self, lowest_checkpoint_id: int, also: Collection[int] = ()) -> set[int]:
        """Discard the streams that no checkpoint from a number on uses.

        Parameters
        ----------
        also
            Older checkpoints whose streams stay too.

        Returns
        -------
        set of int
            The checkpoints that a stream which is still used lies inside of.
        """
        return self._unregister(
            lambda entry: entry.last_used >= lowest_checkpoint_id or entry.is_used_by(also)
        )

    def checkpoints_needed_by(self, checkpoint_ids: Collection[int]) -> set[int]:
        """Checkpoints that must stay while some others do: a stream that those use lies inside them."""
        with self._lock:
            return self._creators(lambda entry: entry.is_used_by(checkpoint_ids))

    def unregister_all_but(self, checkpoint_ids: Collection[int]) -> set[int]:
        """Discard the streams that none of some checkpoints uses, as at the end of a job.

        Returns
        -------
        set of int
            See `unregister_unused_state`.
        """
        return self._unregister(lambda entry: entry.is_used_by(checkpoint_ids))

    def is_discarding(self, stream_state_handle_id: str) -> bool:
        """Whether a stream waits to be discarded."""
        with self._lock:
            return stream_state_handle_id in self._doomed or stream_state_handle_id in self._running

    def close(self) -> None:
        """Refuse new registrations; what is registered can still be unregistered."""
        with self._lock:
            self._open = False

    def _unregister(self, used: Callable[[_Entry], bool]) -> set[int]:
        with self._lock:
            unused = [key for key, entry in self._entries.items() if not used(entry)]
            self._doom([self._entries.pop(key) for key in unused])
            in_use = self._creators(used)
            doomed = list(self._doomed)
        self._discard(doomed)
        return in_use

    def _creators(self, used: Callable[[_Entry], bool]) -> set[int]:
        return {
            entry.created_by for entry in self._entries.values() if used(entry) and self._keeps_creator(entry)
        }

    def _keeps_creator(self, entry: _Entry) -> bool:
        return (
            entry.keeps_creator
            or entry.created_by in self._self_contained
            or (entry.prevents_discarding and entry.created_by in self._restored)
        )

    def _merge(self, entry: _Entry, new: _Entry, checkpoint_id: int) -> _Entry | None:
        """Settle which of two handles under one key stays; returns what goes."""
        unwanted = None
        if isinstance(new.handle, PlaceholderStreamStateHandle) or (
            entry.handle.stream_state_handle_id == new.handle.stream_state_handle_id
        ):
            pass
        elif entry.confirmed:
            # A confirmation was late, and the task has written the state once more.
            unwanted = new
        else:
            # The task failed and wrote the state again, before any checkpoint had it.
            self._rescue(new.handle, checkpoint_id)
            unwanted = _Entry(entry.handle, entry.created_by, False, entry.last_used, [])
            entry.handle = new.handle
            entry.created_by = new.created_by
            entry.keeps_creator = new.keeps_creator
            entry.prevents_discarding = False
            entry.users = []
        entry.use(checkpoint_id)
        return unwanted

    def _doom(self, entries: list[_Entry]) -> list[str]:
        if not entries:
            return []
        needed = {entry.handle.stream_state_handle_id for entry in self._entries.values()} | self._not_claimed
        doomed = []
        for entry in entries:
            name = entry.handle.stream_state_handle_id
            if entry.created_by > self._highest_not_claimed and name not in needed:
                self._doomed[name] = entry.handle
                doomed.append(name)
        return doomed

    def _rescue(self, handle: StreamStateHandle, checkpoint_id: int) -> None:
        name = handle.stream_state_handle_id
        if name in self._running:
            raise IllegalStateError(
                f"checkpoint {checkpoint_id} uses the stream {name}, which is being deleted, since no checkpoint "
                "used it any more. Write the state again."
            )
        self._doomed.pop(name, None)

    def _discard(self, names: Iterable[str]) -> None:
        for name in names:
            self._run(partial(self._discard_one, name))

    def _discard_one(self, name: str) -> None:
        with self._lock:
            # Registered again meanwhile, or another thread is at it.
            if name in self._running or (handle := self._doomed.pop(name, None)) is None:
                return
            self._running.add(name)
        try:
            handle.discard_state()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt may succeed
            _logger.warning("could not discard %s, will try again: %s", handle, error)
            with self._lock:
                self._running.discard(name)
                self._doomed[name] = handle
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
