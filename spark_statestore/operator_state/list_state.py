"""List state: elements that a redistribution gives to other subtasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from spark_statestore.operator_state.content import CopiedValues, ListCopy, StateInUse
from spark_statestore.operator_state.descriptors import ListStateDescriptor
from spark_statestore.operator_state.stream_format import ListMetaInfo
from spark_statestore.storage.operator_handles import Mode

T = TypeVar("T")


class ListState(ABC, Generic[T]):
    """A state that is a list; no element is None."""

    @abstractmethod
    def get(self) -> list[T]:
        """Return the elements: a new list of the same objects, so changes of an element are kept."""

    @abstractmethod
    def add(self, value: T) -> None:
        """Append an element.

        Raises
        ------
        TypeError
            If it is None, or nothing that can be stored.
        """

    @abstractmethod
    def add_all(self, values: Iterable[T] | None) -> None:
        """Append elements, all or, if one of them is refused, none.

        Raises
        ------
        TypeError
            If one is None, or nothing that can be stored.
        """

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the elements, all or none.

        Raises
        ------
        TypeError
            If one is None, or nothing that can be stored.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove all elements; the state stays registered."""


class PartitionableListState(StateInUse[ListCopy], ListState[T]):
    """A list in memory.

    Checks every element as it comes, also those of `add_all`, where Flink's class takes None.

    Parameters
    ----------
    descriptor
        Name and serializer.
    mode
        `Mode.SPLIT_DISTRIBUTE` or `Mode.UNION`.
    elements
        The first elements.
    """

    def __init__(self, descriptor: ListStateDescriptor[T], mode: Mode, elements: Iterable[T] = ()) -> None:
        self.descriptor = descriptor
        self.mode = mode
        self._elements = list(elements)

    def get(self) -> list[T]:
        return list(self._elements)

    def add(self, value: T) -> None:
        self._require_changeable()
        self._elements.append(self._checked(value))

    def add_all(self, values: Iterable[T] | None) -> None:
        self._require_changeable()
        if values is not None:
            checked = [self._checked(value) for value in values]
            # The iterable may have taken the snapshot.
            self._require_changeable()
            self._elements.extend(checked)

    def update(self, values: Iterable[T]) -> None:
        self._require_changeable()
        if values is None:
            raise TypeError(
                f"list state {self.descriptor.name!r} cannot be updated with None. Give an iterable of "
                "elements, or call clear."
            )
        checked = [self._checked(value) for value in values]
        self._require_changeable()
        self._elements = checked

    def clear(self) -> None:
        self._require_changeable()
        self._elements = []

    @property
    def _name(self) -> str:
        return f"list state {self.descriptor.name!r}"

    def _new_copy(self, *, shallow: bool) -> ListCopy:
        meta = ListMetaInfo(self.descriptor.name, self.mode, (self.descriptor.serializer_snapshot,))
        return ListCopy(meta, CopiedValues(self._elements, self.descriptor.serializer, shallow=shallow))

    def _has_changed(self, copy: ListCopy) -> bool:
        return copy.elements.differ_from(self._elements)

    def _checked(self, value: T) -> T:
        try:
            if value is None:
                raise TypeError("None cannot be an element")
            self.descriptor.serializer.check(value)
        except TypeError as error:
            raise TypeError(
                f"list state {self.descriptor.name!r}: {error}. Nothing was added to it."
            ) from error
        return value

    def __repr__(self) -> str:
        return (
            f"PartitionableListState({self.descriptor!r}, {self.mode.name}, {len(self._elements)} elements)"
        )
