"""A checkpoint that exists."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING

from spark_statestore.checkpoint.completed.properties import (
    CheckpointProperties,
    JobStatus,
    SharingFilesStrategy,
)
from spark_statestore.checkpoint.registry import RestoreMode, SharedStateRegistry, runner
from spark_statestore.errors import IllegalStateError
from spark_statestore.state.objects import StateObject, raise_first
from spark_statestore.state.operator_state import OperatorState

if TYPE_CHECKING:
    from spark_statestore.checkpoint.completed.location import CompletedCheckpointStorageLocation

__all__ = ["CompletedCheckpoint"]


class CompletedCheckpoint:
    """A checkpoint that exists, with the states it consists of.

    Discarding goes on after a failure, and raises the first one at the end. What failed is tried
    again when `discard` is called again; Flink forgets the states after the first attempt. Safe to
    use from several threads.

    Parameters
    ----------
    checkpoint_id
        Its number.
    timestamp, completion_timestamp
        When it began and was completed, in milliseconds since 1970.
    operator_states
        The state of each operator, by the operator's name.
    properties
        What kind it is here and now, and when it is discarded.
    storage_location
        Where it lies.
    restored_properties
        What its metadata says that it was when it was taken, if a job starts from it.

    Raises
    ------
    ValueError
        If a number is negative.
    TypeError
        If there is no location.
    """

    def __init__(
        self,
        checkpoint_id: int,
        timestamp: int,
        completion_timestamp: int,
        operator_states: Mapping[str, OperatorState],
        properties: CheckpointProperties,
        storage_location: CompletedCheckpointStorageLocation,
        restored_properties: CheckpointProperties | None = None,
    ) -> None:
        for what, number in (
            ("number", checkpoint_id),
            ("timestamp", timestamp),
            ("completion timestamp", completion_timestamp),
        ):
            if number < 0:
                raise ValueError(
                    f"the {what} of checkpoint {checkpoint_id} is {number}, but it must be 0 or more"
                )
        if storage_location is None:
            raise TypeError(f"checkpoint {checkpoint_id} needs a storage location, got None")
        self.checkpoint_id = checkpoint_id
        self.timestamp = timestamp
        self.completion_timestamp = completion_timestamp
        self.operator_states = dict(operator_states)
        self.properties = properties
        self.storage_location = storage_location
        self.restored_properties = restored_properties
        self._lock = threading.Lock()
        self._marked = False
        self._left: list[StateObject] | None = None

    @property
    def duration(self) -> int:
        """Milliseconds from its beginning to its completion."""
        return self.completion_timestamp - self.timestamp

    @property
    def external_pointer(self) -> str:
        """The URL to find it by."""
        return self.storage_location.external_pointer

    @property
    def state_size(self) -> int:
        """Bytes of all of its state, shared or not."""
        return sum(state.state_size for state in self.operator_states.values())

    @property
    def checkpointed_size(self) -> int:
        """Bytes that were newly written for it."""
        return sum(state.checkpointed_size for state in self.operator_states.values())

    @property
    def sharing_files_strategy(self) -> SharingFilesStrategy:
        """With which other snapshots it shares files: what it was taken as decides."""
        return (self.restored_properties or self.properties).snapshot_type.sharing_files_strategy

    def register_shared_states_after_restored(
        self, registry: SharedStateRegistry, restore_mode: RestoreMode
    ) -> None:
        """Register its streams with the registry of a job that starts from it.

        Raises
        ------
        IllegalStateError
            If the registry has them already.
        """
        registry.register_all_after_restored(self, restore_mode)

    def should_be_discarded_on_subsume(self) -> bool:
        """Whether it is discarded when newer checkpoints take its place."""
        return self.properties.discarded_on_subsume

    def should_be_discarded_on_shutdown(self, status: JobStatus) -> bool:
        """Whether it is discarded when its job ends."""
        return self.properties.discard_on(status)

    def mark_as_discarded(self) -> None:
        """Note that nobody may start from it any more."""
        with self._lock:
            self._marked = True

    @property
    def is_marked_as_discarded(self) -> bool:
        """Whether `mark_as_discarded` was called."""
        return self._marked

    def discard(self) -> None:
        """Remove it: metadata first, so that what is half removed cannot be found; the location last.

        Raises
        ------
        IllegalStateError
            If it is not marked as discarded.
        OSError
            If something is left; later failures are notes of the first one.
        """
        states = self._take_states()
        failures: list[Exception] = []
        self._try(self.storage_location.metadata_handle.discard_state, failures)
        for state in states:
            self._try_state(state, failures)
        self._try(self.storage_location.dispose_storage_location, failures)
        raise_first(failures)

    def discard_async(self, executor: Executor) -> Future[None]:
        """Remove it with several threads: the metadata, then all states at once, then the location.

        Flink removes the metadata along with the states; here it is still first.

        Parameters
        ----------
        executor
            Runs the removals; where it refuses to, the thread that asks does.

        Returns
        -------
        Future
            Done when all was tried; has the first failure, the others being notes of it.

        Raises
        ------
        IllegalStateError
            If it is not marked as discarded.
        """
        states = self._take_states()
        failures: list[Exception] = []
        done: Future[None] = Future()
        run = runner(executor)
        waiting = len(states)
        count_lock = threading.Lock()

        def dispose() -> None:
            self._try(self.storage_location.dispose_storage_location, failures)
            try:
                raise_first(failures)
            except Exception as failure:  # noqa: BLE001 - goes to whoever waits
                done.set_exception(failure)
            else:
                done.set_result(None)

        def discard_state(state: StateObject) -> None:
            nonlocal waiting
            self._try_state(state, failures)
            with count_lock:
                waiting -= 1
                last = waiting == 0
            if last:
                dispose()

        def begin() -> None:
            self._try(self.storage_location.metadata_handle.discard_state, failures)
            if not states:
                dispose()
            for state in states:
                run(partial(discard_state, state))

        run(begin)
        return done

    def _take_states(self) -> list[StateObject]:
        with self._lock:
            if not self._marked:
                raise IllegalStateError(
                    f"checkpoint {self.checkpoint_id} at {self.external_pointer} cannot be discarded: somebody may "
                    "be about to start from it. Mark it as discarded first."
                )
            if self._left is None:
                operators = self.operator_states.values()
                self._left = [state for operator in operators for state in operator.subtasks.values()]
                self.operator_states = {}
            states, self._left = self._left, []
            return states

    def _try_state(self, state: StateObject, failures: list[Exception]) -> None:
        if not self._try(state.discard_state, failures):
            with self._lock:
                self._left = [*(self._left or ()), state]

    def _try(self, remove: Callable[[], None], failures: list[Exception]) -> bool:
        try:
            remove()
        except Exception as error:  # noqa: BLE001 - all is tried before the first is raised
            failures.append(error)
            return False
        return True

    def __repr__(self) -> str:
        return (
            f"{self.properties.snapshot_type.value} {self.checkpoint_id} @ {self.timestamp} located at "
            f"{self.external_pointer}"
        )
