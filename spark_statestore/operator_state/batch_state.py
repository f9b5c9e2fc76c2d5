"""State of a query's own code within one batch, and the snapshot that completes the batch."""

from __future__ import annotations

from collections.abc import KeysView
from typing import TypeVar

from spark_statestore.errors import IllegalStateError
from spark_statestore.operator_state.backend import OperatorStateBackend, OperatorStateStore
from spark_statestore.operator_state.broadcast_state import BroadcastState
from spark_statestore.operator_state.default_backend import DefaultOperatorStateBackend
from spark_statestore.operator_state.descriptors import ListStateDescriptor, MapStateDescriptor
from spark_statestore.operator_state.list_state import ListState
from spark_statestore.operator_state.parts import StatePart
from spark_statestore.operator_state.state_directory import (
    OperatorStateDirectory,
    PendingPart,
    PublishedPart,
)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class BatchSnapshot:
    """The snapshot of one batch, which its block may take before its end.

    Parameters
    ----------
    backend
        The state as the batch before left it.
    directory, part
        The directory and the name of what the batch will leave.

    Attributes
    ----------
    published
        The part, once it is published.
    """

    def __init__(
        self, backend: DefaultOperatorStateBackend, directory: OperatorStateDirectory, part: StatePart
    ) -> None:
        self._backend = backend
        self._directory = directory
        self._part = part
        self._pending: PendingPart | None = None
        self.published: PublishedPart | None = None

    def take(self) -> None:
        """Take the snapshot, and have another thread write it; see `BatchOperatorState.snapshot`."""
        if self._pending is not None:
            raise IllegalStateError(
                f"the state of batch {self._part.batch} of {self._directory} has its snapshot already: a "
                "batch has one, which its end takes if the block has not. Call store.snapshot() once, within "
                "the block, after the last change of state."
            )
        try:
            self._backend.freeze()
            self._pending = self._directory.begin(self._part, self._backend, is_synchronous=False)
        except BaseException:
            self._backend.thaw()
            raise
        self._pending.write_in_background()

    def complete(self) -> None:
        """Publish the batch's state, once all of it is written."""
        if self._pending is None:
            self._pending = self._directory.begin(self._part, self._backend, is_synchronous=True)
        self._backend.require_unchanged()
        self.published = self._pending.publish()
        self._backend.thaw()

    def abandon(self) -> None:
        """Remove what was written, and release the state."""
        self._backend.dispose()
        if self._pending is not None:
            self._pending.discard()


class BatchOperatorState(OperatorStateStore):
    """The state within the block of one batch, see `QueryOperatorState.batch`."""

    def __init__(self, backend: OperatorStateBackend, snapshot: BatchSnapshot) -> None:
        self._backend = backend
        self._snapshot = snapshot

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        return self._backend.get_list_state(descriptor)

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        return self._backend.get_union_list_state(descriptor)

    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> BroadcastState[K, V]:
        return self._backend.get_broadcast_state(descriptor)

    @property
    def registered_state_names(self) -> KeysView[str]:
        return self._backend.registered_state_names

    @property
    def registered_broadcast_state_names(self) -> KeysView[str]:
        return self._backend.registered_broadcast_state_names

    def snapshot(self) -> None:
        """Take the batch's snapshot now; another thread writes it while the block goes on, with its sink.

        The batch counts when its block has ended and the snapshot is written, as without this call. If either
        fails, nothing of the batch remains.

        From here to the end of the block state can be read, and every change is refused: it would be missing
        in the checkpoint. Values that were changed in place, such as a dict in a list, fail the batch at the
        end of the block.

        Raises
        ------
        IllegalStateError
            If the batch has its snapshot already.
        CheckpointError
            If its directory cannot be made. A failure to write is raised at the end of the block.
        TypeError
            If a value was changed in place into one that cannot be stored.
        """
        self._snapshot.take()
