"""The handle to a version of a store: a snapshot and the changes on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_statestore.storage.file_handles import SegmentFileStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.stream_handles import StateObject

if TYPE_CHECKING:
    from spark_statestore.storage.shared_state_registry import SharedStateRegistry

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


class IncrementalStateHandle(StateObject):
    """The chain of streams that together are one version. A `SharedStateRegistry` decides when they are discarded.

    Parameters
    ----------
    version
        The version.
    base_version
        The version of the full snapshot that the chain starts with. The chain is empty if that
        version had no rows and nothing changed since.
    entries
        The streams, in the order in which they apply.
    """

    def __init__(self, version: int, base_version: int, entries: Iterable[ChainEntry]) -> None:
        self._registry: SharedStateRegistry | None = None
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
        """Size of the full snapshot in bytes."""
        return sum(entry.state.state_size for entry in self.entries if entry.full)

    @property
    def delta_size(self) -> int:
        """Size of the changes on top of it in bytes."""
        return sum(entry.state.state_size for entry in self.entries if not entry.full)

    @property
    def state_size(self) -> int:
        return sum(entry.state.state_size for entry in self.entries)

    def register_shared_states(self, registry: SharedStateRegistry) -> None:
        """Register the version as a user of its streams, unless this registry has registered it.

        Raises
        ------
        IllegalStateError
            If a stream is just being deleted.
        """
        if self._registry is registry:
            return
        for entry in self.entries:
            stream = entry.state.delegate_state_handle
            registry.register_reference(
                stream,
                self.version,
                created_by=entry.version,
                keeps_creator=isinstance(stream, SegmentFileStateHandle),
            )
        self._registry = registry

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
