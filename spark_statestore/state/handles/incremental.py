"""A version of a store: a full snapshot and the changes on top of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from spark_statestore.state.handles.operator import OperatorStreamStateHandle
from spark_statestore.state.objects import StateObject, discard_all

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
    """The chain of streams that together are one version.

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

    def discard_state(self) -> None:
        """Discard every stream of the chain, also those that other versions share."""
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
