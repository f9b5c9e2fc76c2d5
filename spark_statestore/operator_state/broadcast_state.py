"""Broadcast state: maps that are the same on every subtask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterator, Mapping
from types import MappingProxyType
from typing import Generic, TypeVar, overload

from spark_statestore.operator_state.content import BroadcastCopy, CopiedValues, StateInUse
from spark_statestore.operator_state.descriptors import MapStateDescriptor
from spark_statestore.operator_state.stream_format import BroadcastMetaInfo

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class BroadcastState(ABC, Generic[K, V]):
    """A state that is a map; no key and no value is None.

    That it is the same on every subtask is up to the operator: nothing compares them.
    """

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: D | None = None) -> V | D | None:
        """Return the value of a key, `default` if there is none."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value of a key.

        Raises
        ------
        TypeError
            If either is None, or nothing that can be stored.
        """

    @abstractmethod
    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set the values of keys, all or, if an entry is refused, none.

        Raises
        ------
        TypeError
            If a key or value is None, or nothing that can be stored.
        """

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove a key, if it is there."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return True if a key has a value."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries; the state stays registered."""

    @abstractmethod
    def items(self) -> ItemsView[K, V]:
        """Return the entries, a live view."""

    @property
    @abstractmethod
    def immutable_entries(self) -> Mapping[K, V]:
        """The entries as a mapping that cannot be changed; a live view."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[K]:
        return iter(self.immutable_entries)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)


class HeapBroadcastState(StateInUse[BroadcastCopy], BroadcastState[K, V]):
    """A map in memory.

    Parameters
    ----------
    descriptor
        Name and serializers.
    entries
        The first entries.
    """

    def __init__(self, descriptor: MapStateDescriptor[K, V], entries: Mapping[K, V] | None = None) -> None:
        self.descriptor = descriptor
        self._entries = dict(entries or {})

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: D | None = None) -> V | D | None:
        return self._entries.get(key, default)

    def put(self, key: K, value: V) -> None:
        self.put_all({key: value})

    def put_all(self, entries: Mapping[K, V]) -> None:
        self._require_changeable()
        for key, value in entries.items():
            self._check(key, value)
        self._entries.update(entries)

    def remove(self, key: K) -> None:
        self._require_changeable()
        self._entries.pop(key, None)

    def contains(self, key: K) -> bool:
        return key in self._entries

    def clear(self) -> None:
        self._require_changeable()
        self._entries.clear()

    def items(self) -> ItemsView[K, V]:
        return self._entries.items()

    @property
    def immutable_entries(self) -> Mapping[K, V]:
        return MappingProxyType(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def _name(self) -> str:
        return f"broadcast state {self.descriptor.name!r}"

    def _new_copy(self, *, shallow: bool) -> BroadcastCopy:
        return BroadcastCopy(
            BroadcastMetaInfo(self.descriptor.name, (self.descriptor.serializer_snapshots,)),
            CopiedValues(self._entries, self.descriptor.key_serializer, shallow=shallow),
            CopiedValues(self._entries.values(), self.descriptor.value_serializer, shallow=shallow),
        )

    def _has_changed(self, copy: BroadcastCopy) -> bool:
        return copy.values.differ_from(self._entries.values())

    def _check(self, key: K, value: V) -> None:
        try:
            if key is None or value is None:
                raise TypeError("neither a key nor a value can be None")
            self.descriptor.key_serializer.check(key)
            self.descriptor.value_serializer.check(value)
        except TypeError as error:
            raise TypeError(
                f"broadcast state {self.descriptor.name!r}: {error}. Nothing was put into it."
            ) from error

    def __repr__(self) -> str:
        return f"HeapBroadcastState({self.descriptor!r}, {len(self._entries)} entries)"
