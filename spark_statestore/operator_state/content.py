"""Content of a state in a snapshot: of a state in use, or of one that was only restored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from spark_statestore.errors import CorruptCheckpointError, StateMigrationError
from spark_statestore.operator_state.serializers import Compatibility, SerializerSnapshot, StateSerializer
from spark_statestore.operator_state.stream_format import BroadcastMetaInfo, Entry, ListMetaInfo
from spark_statestore.storage.operator_handles import Mode


class ListContent(ABC):
    """A list state, as it is written."""

    @property
    @abstractmethod
    def meta_info(self) -> ListMetaInfo:
        """Name, mode and serializers."""

    @abstractmethod
    def encoded(self) -> Iterator[tuple[int, bytes]]:
        """Return each element: the index of its serializer, and its bytes."""


class BroadcastContent(ABC):
    """A broadcast state, as it is written."""

    @property
    @abstractmethod
    def meta_info(self) -> BroadcastMetaInfo:
        """Name and serializers."""

    @abstractmethod
    def encoded(self) -> Iterator[tuple[int, Sequence[Entry]]]:
        """Return each part: the index of its serializers, and its entries."""


class RestoredList(ListContent):
    """A list state that was not accessed since it was restored, so its elements are bytes."""

    def __init__(self, name: str, mode: Mode) -> None:
        self.name = name
        self.mode = mode
        self._serializers: list[SerializerSnapshot] = []
        self._elements: list[tuple[int, bytes]] = []

    @property
    def meta_info(self) -> ListMetaInfo:
        return ListMetaInfo(self.name, self.mode, tuple(self._serializers))

    def know(self, serializer: SerializerSnapshot) -> int:
        """Return the index of a serializer, which is new or known."""
        return _index_of(serializer, self._serializers)

    def append(self, serializer: int, data: bytes) -> None:
        """Append an element."""
        self._elements.append((serializer, data))

    def encoded(self) -> Iterator[tuple[int, bytes]]:
        return iter(self._elements)

    def decode(self, serializer: StateSerializer[Any]) -> list[Any]:
        """Return the elements, as values of a serializer."""
        what = f"list state {self.name!r}"
        after = [check_compatible(serializer, s, what, "element") for s in self._serializers]
        return [
            _decode(serializer, data, self._serializers[index], after[index], what, "element")
            for index, data in self._elements
        ]


class RestoredBroadcast(BroadcastContent):
    """A broadcast state that was not accessed since it was restored."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._serializers: list[tuple[SerializerSnapshot, SerializerSnapshot]] = []
        self._parts: list[tuple[int, list[Entry]]] = []

    @property
    def meta_info(self) -> BroadcastMetaInfo:
        return BroadcastMetaInfo(self.name, tuple(self._serializers))

    def know(self, serializers: tuple[SerializerSnapshot, SerializerSnapshot]) -> int:
        """Return the index of a pair of serializers, which is new or known."""
        return _index_of(serializers, self._serializers)

    def append(self, serializers: int, entries: list[Entry]) -> None:
        """Put entries over those that are there."""
        self._parts.append((serializers, entries))

    def encoded(self) -> Iterator[tuple[int, Sequence[Entry]]]:
        # An empty state has a part too: the handle's entry is what makes it travel.
        return iter(self._parts or [(0, [])])

    def decode(self, key: StateSerializer[Any], value: StateSerializer[Any]) -> dict[Any, Any]:
        """Return the entries, as keys and values of two serializers."""
        what = f"broadcast state {self.name!r}"
        after = [
            (check_compatible(key, k, what, "key"), check_compatible(value, v, what, "value"))
            for k, v in self._serializers
        ]
        entries = {}
        for index, part in self._parts:
            old_key, old_value = self._serializers[index]
            key_after, value_after = after[index]
            for key_data, value_data in part:
                decoded = _decode(key, key_data, old_key, key_after, what, "key")
                entries[decoded] = _decode(value, value_data, old_value, value_after, what, "value")
        return entries


def check_compatible(
    serializer: StateSerializer[Any], previous: SerializerSnapshot, state: str, part: str
) -> bool:
    """Return True if bytes of a previous serializer must be migrated.

    Raise `StateMigrationError` if they cannot be read.
    """
    compatibility = serializer.check_compatibility(previous)
    if compatibility is Compatibility.INCOMPATIBLE:
        raise StateMigrationError(
            f"each {part} of {state} was written by {_short(previous)}, which {_short(serializer.snapshot)} "
            "cannot read. Declare the state as it was before, and copy what it holds to a state with another "
            "name and the new type; or give a StateSerializer whose check_compatibility and migrate accept "
            "the previous one. The stored state is unchanged."
        )
    return compatibility is Compatibility.COMPATIBLE_AFTER_MIGRATION


def _decode(
    serializer: StateSerializer[Any],
    data: bytes,
    previous: SerializerSnapshot,
    after_migration: bool,
    state: str,
    part: str,
) -> Any:
    try:
        return serializer.migrate(data, previous) if after_migration else serializer.deserialize(data)
    except StateMigrationError:
        raise
    except Exception as error:
        raise CorruptCheckpointError(
            f"{part} {data!r:.60} of {state} could not be read as {_short(serializer.snapshot)}: {error!r}. "
            "Either its bytes are damaged: restore an earlier checkpoint; or the serializer does not read "
            "what it calls compatible: correct it and restore again."
        ) from error


def _index_of(wanted: Any, snapshots: list[Any]) -> int:
    if wanted not in snapshots:
        snapshots.append(wanted)
    return snapshots.index(wanted)


def _short(snapshot: SerializerSnapshot) -> str:
    """Return a serializer snapshot for messages, without what only programs read."""
    rest = {key: value for key, value in snapshot.items() if key not in ("serializer", "schema")}
    return f"{snapshot.get('serializer')}{rest or ''}"
