"""A version of a store: a full snapshot and the changes on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_statestore.errors import IllegalStateError
from spark_statestore.state.handles.file import SegmentFileStateHandle
from spark_statestore.state.handles.operator import OperatorStreamStateHandle
from spark_statestore.state.objects import CompositeStateHandle, discard_all

if TYPE_CHECKING:
    from spark_statestore.checkpoint.registry import SharedStateRegistry

__all__ = ["ChainEntry", "IncrementalStateHandle"]


@dataclass(frozen=True, slots=True)
class ChainEntry:
    """One stream of a chain.

    Attributes
    ----------
    version
        The version whose commit the stream belongs to.
    full
        Whether it holds all of that version's rows, rather than what changed.
    state
        The stream, with the named states in it.
    """

    version: int
    full: bool
    state: OperatorStreamStateHandle


class IncrementalStateHandle(CompositeStateHandle):
    """The chain of streams that together are one version.

    Until its streams are registered with a `SharedStateRegistry` they are its own, and discarding
    it discards them; afterwards they are the registry's. Registering is for one thread at a time.

    Parameters
    ----------
    version
        The version.
    base_version
        The version of the full snapshot that the chain starts with. The chain is empty if that
        version had no rows and nothing changed since.
    entries
        The streams, in the order in which they apply.
    persisted_size
        Bytes that were newly written for this version, -1 if unknown.
    """

    def __init__(
        self,
        version: int,
        base_version: int,
        entries: Iterable[ChainEntry],
        *,
        persisted_size: int = -1,
    ) -> None:
        if persisted_size < -1:
            raise ValueError(f"version {version} wrote {persisted_size} bytes, but it must be -1 or more")
        self._registry: SharedStateRegistry | None = None
        self._owns_streams = True
        self.persisted_size = persisted_size
        self.version = version
        self.base_version = base_version
        self.entries = tuple(entries)
        versions = [entry.version for entry in self.entries]
        if versions != sorted(versions) or any(entry.full for entry in self.entries[1:]):
            raise ValueError(f"a chain is one full snapshot and then changes, in order: {self.entries}")
        if self.entries and (versions[0] < base_version or versions[-1] > version):
            raise ValueError(f"the chain of version {version} does not start at {base_version}: {versions}")

    @property
    def base_size(self) -> int:
        """Bytes of the full snapshot."""
        return sum(entry.state.state_size for entry in self.entries if entry.full)

    @property
    def delta_size(self) -> int:
        """Bytes of the changes on top of it."""
        return sum(entry.state.state_size for entry in self.entries if not entry.full)

    @property
    def state_size(self) -> int:
        return sum(entry.state.state_size for entry in self.entries)

    @property
    def checkpointed_size(self) -> int:
        """Bytes newly written for this version; all of its bytes if that is not known."""
        return self.state_size if self.persisted_size < 0 else self.persisted_size

    def register_shared_states(self, registry: SharedStateRegistry, checkpoint_id: int) -> None:
        """Hand the streams over to a registry, and use the handles that it gives back.

        A placeholder becomes the handle that it stands for. Another registry than before takes
        the streams over, as a restart needs it.

        Raises
        ------
        IllegalStateError
            If this registry has them already, or a placeholder names a stream it does not know.
        """
        if self.is_registered_with(registry):
            raise IllegalStateError(
                f"the streams of {self!r} are registered with this registry already. Register a checkpoint once; to "
                "use the same state in another checkpoint, register what rebound() returns."
            )
        # From the first stream on some are the registry's.
        self._owns_streams = False
        entries = []
        for entry in self.entries:
            stream = entry.state.delegate_state_handle
            registered = registry.register_reference(
                stream.stream_state_handle_id,
                stream,
                checkpoint_id,
                created_by=min(entry.version, checkpoint_id),
                keeps_creator=isinstance(stream, SegmentFileStateHandle),
            )
            if registered is not stream:
                state = OperatorStreamStateHandle(
                    state_name_to_partition_offsets=entry.state.state_name_to_partition_offsets,
                    delegate_state_handle=registered,
                )
                entry = replace(entry, state=state)
            entries.append(entry)
        self.entries = tuple(entries)
        self._registry = registry

    def is_registered_with(self, registry: SharedStateRegistry) -> bool:
        """Whether a registry has taken the streams over."""
        return self._registry is registry

    def rebound(self, checkpoint_id: int) -> IncrementalStateHandle:
        """The same state as another checkpoint's, to be registered under that one's number.

        Who discards the streams stays as it is: in Flink a copy of registered state would discard
        them itself, as long as it is not registered too.
        """
        copy = IncrementalStateHandle(
            checkpoint_id, self.base_version, self.entries, persisted_size=self.persisted_size
        )
        copy._owns_streams = self._owns_streams
        return copy

    def discard_state(self) -> None:
        """Discard every stream of the chain, unless a registry has taken them over."""
        if self._owns_streams:
            discard_all(entry.state for entry in self.entries)

    def __iter__(self) -> Iterator[ChainEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IncrementalStateHandle):
            return NotImplemented
        mine = (self.version, self.base_version, self.entries)
        return mine == (other.version, other.base_version, other.entries)

    def __hash__(self) -> int:
        return hash((self.version, self.base_version, len(self.entries)))

    def __repr__(self) -> str:
        return (
            f"IncrementalStateHandle(version={self.version}, base_version={self.base_version}, "
            f"{len(self.entries)} streams, {self.state_size} bytes)"
        )
