"""Descriptors of states: name and serializers."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import pyarrow as pa

from spark_statestore.operator_state.arrow_serializer import ArrowSerializer
from spark_statestore.operator_state.serializers import SerializerSnapshot, StateSerializer, describe

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ListStateDescriptor(Generic[T]):
    """A state that is a list.

    Parameters
    ----------
    name
        Its name, unique among the states of the operator.
    serializer
        Of the elements: a serializer or an Arrow type.
    """

    def __init__(self, name: str, serializer: StateSerializer[T] | pa.DataType) -> None:
        self.name = _checked_name(name)
        self.serializer: StateSerializer[T] = _serializer(serializer, f"the elements of {name!r}")
        self.serializer_snapshot: SerializerSnapshot = describe(self.serializer)

    def __repr__(self) -> str:
        return f"ListStateDescriptor({self.name!r}, {self.serializer!r})"


class MapStateDescriptor(Generic[K, V]):
    """A state that is a map.

    Parameters
    ----------
    name
        Its name, unique among the states of the operator.
    key_serializer, value_serializer
        Of the keys and values: serializers or Arrow types. Keys must be hashable, which lists,
        structs and maps are not.

    Raises
    ------
    TypeError
        If keys would not be hashable.
    """

    def __init__(
        self,
        name: str,
        key_serializer: StateSerializer[K] | pa.DataType,
        value_serializer: StateSerializer[V] | pa.DataType,
    ) -> None:
        self.name = _checked_name(name)
        self.key_serializer: StateSerializer[K] = _serializer(key_serializer, f"the keys of {name!r}")
        self.value_serializer: StateSerializer[V] = _serializer(value_serializer, f"the values of {name!r}")
        if isinstance(self.key_serializer, ArrowSerializer) and self.key_serializer.is_nested:
            raise TypeError(
                f"the keys of {name!r} are declared as {self.key_serializer.type}, whose values cannot be "
                "keys of a dict. Use a scalar type, for instance a string that is made of the parts."
            )
        self.serializer_snapshots: tuple[SerializerSnapshot, SerializerSnapshot] = (
            describe(self.key_serializer),
            describe(self.value_serializer),
        )

    def __repr__(self) -> str:
        return f"MapStateDescriptor({self.name!r}, {self.key_serializer!r}, {self.value_serializer!r})"


def _checked_name(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a state is {name!r}, but it must be a string")
    return name


def _serializer(serializer: StateSerializer[Any] | pa.DataType, subject: str) -> StateSerializer[Any]:
    if isinstance(serializer, pa.DataType):
        return ArrowSerializer(serializer)
    if not isinstance(serializer, StateSerializer):
        raise TypeError(
            f"{subject} need a StateSerializer or an Arrow type, such as pyarrow.int64(); got {serializer!r}"
        )
    return serializer
