"""Serializers of values, and the comparison of a stored serializer with a new one.

Nothing is pickled. A serializer's snapshot, which is stored beside its bytes, is JSON.
"""

from __future__ import annotations

import enum
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from spark_statestore.errors import StateMigrationError

T = TypeVar("T")

SerializerSnapshot = Mapping[str, Any]
"""Description of a serializer as JSON; `serializer` is its name."""

_SHOWN: Final = 200


class Compatibility(enum.Enum):
    """Compatibility of a serializer with bytes that another one wrote."""

    COMPATIBLE_AS_IS = "as is"
    """The bytes can be read as they are."""

    COMPATIBLE_AFTER_MIGRATION = "after migration"
    """The bytes can be read by `StateSerializer.migrate`."""

    INCOMPATIBLE = "incompatible"
    """The bytes cannot be read."""


class StateSerializer(ABC, Generic[T]):
    """Conversion of a state's values into bytes and back.

    A serializer does not change after it was made, and is used by several threads at once.
    """

    @property
    @abstractmethod
    def snapshot(self) -> SerializerSnapshot:
        """Description of this serializer: a JSON object, with at least its name as `serializer`.

        It is stored with the state and given to `check_compatibility` of a later serializer.
        """

    @abstractmethod
    def serialize(self, value: T) -> bytes:
        """Return the bytes of a value."""

    @abstractmethod
    def deserialize(self, data: bytes) -> T:
        """Return the value of its bytes; damaged ones raise an error."""

    def check(self, value: T) -> None:
        """Raise TypeError if a value cannot be serialized.

        Called for each value that enters a state, so that it fails there and not in a snapshot.
        Does nothing unless a subclass overrides it.
        """

    def check_compatibility(self, previous: SerializerSnapshot) -> Compatibility:
        """Return the compatibility with bytes of the serializer that has a snapshot."""
        equal = previous == describe(self)
        return Compatibility.COMPATIBLE_AS_IS if equal else Compatibility.INCOMPATIBLE

    def migrate(self, data: bytes, previous: SerializerSnapshot) -> T:
        """Return the value of bytes that a serializer wrote which is compatible after migration."""
        raise StateMigrationError(
            f"{type(self).__name__} declares the data of {dict(previous)} compatible after migration, but "
            "does not implement the method migrate. Implement it; the stored state is unchanged."
        )


class BytesSerializer(StateSerializer[bytes]):
    """Bytes as they are."""

    @property
    def snapshot(self) -> SerializerSnapshot:
        return {"serializer": "bytes"}

    def serialize(self, value: bytes) -> bytes:
        return bytes(value)

    def deserialize(self, data: bytes) -> bytes:
        return data

    def check(self, value: bytes) -> None:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(f"a value of type {type(value).__name__} is not bytes. Encode it first.")


def describe(serializer: StateSerializer[Any]) -> SerializerSnapshot:
    """Return the snapshot of a serializer, as it will be when it has been stored and read."""
    snapshot = serializer.snapshot
    try:
        described = json.loads(json.dumps(dict(snapshot)))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the snapshot of {type(serializer).__name__} is no JSON object: {error}. Describe the "
            "serializer with strings, numbers, lists and dicts alone."
        ) from error
    if not isinstance(described.get("serializer"), str):
        raise TypeError(
            f"the snapshot of {type(serializer).__name__} has no name: {snapshot!r:.{_SHOWN}}. Put one under "
            "'serializer'; it is how a later serializer knows what it finds."
        )
    return described  # type: ignore[no-any-return]
