"""Content of a state in a snapshot: a copy of a state in use, or of one that was only restored."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, Self, TypeVar

from spark_statestore.errors import CorruptCheckpointError, IllegalStateError, StateMigrationError
from spark_statestore.operator_state.serializers import Compatibility, SerializerSnapshot, StateSerializer
from spark_statestore.operator_state.stream_format import BroadcastMetaInfo, Entry, ListMetaInfo
from spark_statestore.storage.operator_handles import Mode

C = TypeVar("C")

# Objects of just these types cannot change.
_IMMUTABLE: Final = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, datetime, time, timedelta}
)


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
    def encoded(self) -> Iterator[tuple[int, int, Iterable[Entry]]]:
        """Return each part: the index of its serializers, the number of its entries, and the entries."""


class CopiedValues:
    """Values as they were when this was made.

    Objects that cannot change are shared, however large; lists, tuples and dicts of such objects are copied.
    Of any other object it has the bytes, which a snapshot needs in any case. With `shallow` all objects are
    shared.
    """

    def __init__(self, values: Iterable[Any], serializer: StateSerializer[Any], *, shallow: bool) -> None:
        self._serializer = serializer
        self._values = list(values)
        self._is_shared = shallow or _IMMUTABLE.issuperset(map(type, self._values))
        if not self._is_shared:
            self._values = [self._copy(value) for value in self._values]

    def encoded(self) -> Iterator[bytes]:
        """Return the bytes of each value."""
        serialize = self._serializer.serialize
        return (v.data if isinstance(v, _Serialized) else serialize(v) for v in self._values)

    def differ_from(self, values: Iterable[Any]) -> bool:
        """Return True if one of the same values, in the same order, was changed in place since."""
        return not self._is_shared and any(
            before is not value and self._differ(before, value)
            for before, value in zip(self._values, values, strict=True)
        )

    def _copy(self, value: Any) -> Any:
        copy = _copied(value, set())
        return _Serialized(self._serializer.serialize(value)) if copy is _OPAQUE else copy

    def _differ(self, before: Any, value: Any) -> bool:
        try:
            if not isinstance(before, _Serialized):
                # Equal values may have other bytes, such as 0.0 and -0.0.
                return not _has_same_objects(before, value) and bool(
                    before != value or self._serializer.serialize(before) != self._serializer.serialize(value)
                )
            # The bytes of equal values may differ, as those of encrypted ones.
            is_same = before.data == self._serializer.serialize(value)
            return not is_same and bool(self._serializer.deserialize(before.data) != value)
        except Exception:  # noqa: BLE001 - what was put into it can be neither compared nor stored
            return True

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True, slots=True)
class _Serialized:
    data: bytes


_OPAQUE: Final = object()


def _copied(value: Any, ids: set[int]) -> Any:
    """Return a copy of lists, tuples and dicts that shares what cannot change; `_OPAQUE` of other objects.

    A list or dict that is there twice, or within itself, is one for a serializer to keep so: `_OPAQUE`, too.
    `ids` has those of the objects before.
    """
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is not list and kind is not dict and kind is not tuple:
        return _OPAQUE
    if kind is not tuple:
        if id(value) in ids:
            return _OPAQUE
        ids.add(id(value))
    items = value.values() if kind is dict else value
    if not _IMMUTABLE.issuperset(map(type, items)):
        items = [_copied(item, ids) for item in items]
        if any(item is _OPAQUE for item in items):
            return _OPAQUE
    if kind is not dict:
        return kind(items)
    return dict(zip(value, items, strict=True)) if _IMMUTABLE.issuperset(map(type, value)) else _OPAQUE


def _has_same_objects(copy: Any, value: Any) -> bool:
    """Return True if a value has just the objects that its copy shares with it."""
    kind = type(copy)
    if copy is value:
        return True
    if kind in _IMMUTABLE or kind is not type(value) or len(copy) != len(value):
        return False
    if kind is not dict:
        return all(map(operator.is_, copy, value)) or all(map(_has_same_objects, copy, value))
    return all(map(operator.is_, copy, value)) and all(map(_has_same_objects, copy.values(), value.values()))


class StateInUse(ABC, Generic[C]):
    """A state that its operator changes, except between the early snapshot of a batch and the batch's end."""

    _frozen: C | None = None

    def copy(self, *, shallow: bool = False) -> C:
        """Return the content as it is now, see `CopiedValues`; as it was frozen, if it is."""
        if self._frozen is not None:
            return self._frozen
        try:
            return self._new_copy(shallow=shallow)
        except Exception as error:
            # The name, which a serializer does not know.
            error.add_note(f"while {self._name} was copied for a snapshot")
            raise

    def freeze(self) -> None:
        """Refuse changes from now on."""
        self._frozen = self.copy()

    def thaw(self) -> None:
        """Allow changes again."""
        self._frozen = None

    def require_unchanged(self) -> None:
        """Raise if a value was changed in place, which no method can refuse, since the state was frozen."""
        if self._frozen is not None and self._has_changed(self._frozen):
            raise IllegalStateError(f"a value in {self._name} was changed in place. {_AFTER_SNAPSHOT}")

    @property
    @abstractmethod
    def _name(self) -> str:
        """Kind and name, for messages."""

    @abstractmethod
    def _new_copy(self, *, shallow: bool) -> C: ...

    @abstractmethod
    def _has_changed(self, copy: C) -> bool: ...

    def _require_changeable(self) -> None:
        if self._frozen is not None:
            raise IllegalStateError(f"{self._name} cannot be changed. {_AFTER_SNAPSHOT}")


_AFTER_SNAPSHOT: Final = (
    "The batch has called store.snapshot(), whose checkpoint would lack the change. Change state before the "
    "call, or leave the call out: then the state is checkpointed at the end of the block."
)


class ListCopy(ListContent):
    """Copy of a list state."""

    def __init__(self, meta_info: ListMetaInfo, elements: CopiedValues) -> None:
        self._meta_info = meta_info
        self.elements = elements

    @property
    def meta_info(self) -> ListMetaInfo:
        return self._meta_info

    def encoded(self) -> Iterator[tuple[int, bytes]]:
        return ((0, data) for data in self.elements.encoded())


class BroadcastCopy(BroadcastContent):
    """Copy of a broadcast state."""

    def __init__(self, meta_info: BroadcastMetaInfo, keys: CopiedValues, values: CopiedValues) -> None:
        self._meta_info = meta_info
        self._keys = keys
        self.values = values

    @property
    def meta_info(self) -> BroadcastMetaInfo:
        return self._meta_info

    def encoded(self) -> Iterator[tuple[int, int, Iterable[Entry]]]:
        entries = zip(self._keys.encoded(), self.values.encoded(), strict=True)
        return iter([(0, len(self._keys), entries)])


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

    def copy(self, *, shallow: bool = False) -> Self:
        """Return this object, which does not change any more."""
        return self

    def decode(self, serializer: StateSerializer[Any]) -> list[Any]:
        """Return the elements, as values of a serializer."""
        subject = f"list state {self.name!r}"
        after = [check_compatible(serializer, s, subject, "element") for s in self._serializers]
        return [
            _decode(serializer, data, self._serializers[index], after[index], subject, "element")
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

    def encoded(self) -> Iterator[tuple[int, int, Iterable[Entry]]]:
        # An empty state has a part too: the handle's entry is what makes it travel.
        return ((pair, len(entries), entries) for pair, entries in self._parts or [(0, [])])

    def copy(self, *, shallow: bool = False) -> Self:
        """Return this object, which does not change any more."""
        return self

    def decode(self, key: StateSerializer[Any], value: StateSerializer[Any]) -> dict[Any, Any]:
        """Return the entries, as keys and values of two serializers."""
        subject = f"broadcast state {self.name!r}"
        after = [
            (check_compatible(key, k, subject, "key"), check_compatible(value, v, subject, "value"))
            for k, v in self._serializers
        ]
        entries = {}
        for index, part in self._parts:
            old_key, old_value = self._serializers[index]
            key_after, value_after = after[index]
            for key_data, value_data in part:
                decoded = _decode(key, key_data, old_key, key_after, subject, "key")
                entries[decoded] = _decode(value, value_data, old_value, value_after, subject, "value")
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


def _index_of(snapshot: Any, snapshots: list[Any]) -> int:
    if snapshot not in snapshots:
        snapshots.append(snapshot)
    return snapshots.index(snapshot)


def _short(snapshot: SerializerSnapshot) -> str:
    """Return a serializer snapshot for messages, without what only programs read."""
    rest = {key: value for key, value in snapshot.items() if key not in ("serializer", "schema")}
    return f"{snapshot.get('serializer')}{rest or ''}"
