"""The handle to a version of a store: a base snapshot, and runs and deltas on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_statestore.storage.file_handles import SegmentFileStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.stream_handles import StateObject

if TYPE_CHECKING:
    from spark_statestore.storage.shared_state_registry import SharedStateRegistry


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
    since
        Of a run, the version that its changes apply to: it has the net changes of several commits. None for
        other streams.
    rows
        Number of rows of a full snapshot, None if it is unknown.
    """

    version: int
    full: bool
    state: OperatorStreamStateHandle
    since: int | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.since is not None and (self.full or not 0 <= self.since < self.version):
            raise ValueError(
                f"a run of the changes since version {self.since} is not of version {self.version}"
            )

    @property
    def parent_version(self) -> int:
        """The oldest version that the stream can apply to; -1 for a full snapshot."""
        if self.full:
            return -1
        return self.version - 1 if self.since is None else self.since


class IncrementalStateHandle(StateObject):
    """The chain of streams that together are one version.

    A `SharedStateRegistry` decides when they are discarded.

    Parameters
    ----------
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
        ends = [base_version, *versions]
        if any(
            entry.since is not None and entry.since < end
            for end, entry in zip(ends, self.entries, strict=False)
        ):
            raise ValueError(f"a run overlaps with the stream before it: {self.entries}")

    @property
    def base_size(self) -> int:
        """Size of the full snapshot in bytes."""
        return sum(entry.state.state_size for entry in self.entries if entry.full)

    @property
    def base_rows(self) -> int | None:
        """Number of rows of the full snapshot, None if it is unknown."""
        return next((entry.rows for entry in self.entries if entry.full), 0)

    @property
    def runs_and_deltas(self) -> tuple[ChainEntry, ...]:
        """The streams on top of the full snapshot, in the order in which they apply."""
        return tuple(entry for entry in self.entries if not entry.full)

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
        fields = (self.version, self.base_version, self.entries)
        return fields == (other.version, other.base_version, other.entries)

    def __hash__(self) -> int:
        return hash((self.version, self.base_version, len(self.entries)))

    def __repr__(self) -> str:
        return (
            f"IncrementalStateHandle(version={self.version}, base_version={self.base_version}, "
            f"{len(self.entries)} streams, {self.state_size} bytes)"
        )
