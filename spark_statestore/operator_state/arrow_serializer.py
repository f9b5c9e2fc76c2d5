"""Serializer of values with an Arrow type."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any, Final

import pyarrow as pa

from spark_statestore.formats.messages import read_batch
from spark_statestore.operator_state.serializers import Compatibility, SerializerSnapshot, StateSerializer

_NAME: Final = "arrow"

_PACKED: Final = {
    pa.bool_(): struct.Struct("<?"),
    pa.int8(): struct.Struct("<b"),
    pa.int16(): struct.Struct("<h"),
    pa.int32(): struct.Struct("<i"),
    pa.int64(): struct.Struct("<q"),
    pa.uint8(): struct.Struct("<B"),
    pa.uint16(): struct.Struct("<H"),
    pa.uint32(): struct.Struct("<I"),
    pa.uint64(): struct.Struct("<Q"),
    pa.float16(): struct.Struct("<e"),
    pa.float32(): struct.Struct("<f"),
    pa.float64(): struct.Struct("<d"),
}

_STRINGS: Final = (pa.utf8(), pa.large_utf8())
_BINARIES: Final = (pa.binary(), pa.large_binary())

_SHOWN: Final = 80

# Before, it takes NumPy's scalars only.
_PYARROW_OF_HALF_FLOATS: Final = 21
_PYARROW: Final = int(pa.__version__.split(".")[0])


class ArrowSerializer(StateSerializer[Any]):
    """Python values of an Arrow type, as `pyarrow.Scalar.as_py` gives them.

    A value is encoded without its type, which the snapshot has:

    * booleans, integers and floats: their bytes, little endian; a boolean takes one;
    * strings: UTF-8; binary: the bytes;
    * other types of a fixed width (dates, times, decimals, ...): their value in Arrow's layout;
    * everything else (lists, structs, maps, ...): an Arrow record batch message of one row and one
      column, without its schema.

    A type that was widened is compatible after migration: integers, floats and decimals that hold
    all values of the old ones, strings and binary with larger offsets, and structs with new nullable
    fields; also inside lists, maps and structs.

    Parameters
    ----------
    type_
        The type. Dictionaries, unions and extension types have no encoding.

    Raises
    ------
    TypeError
        If the type has no encoding, or has half floats inside and pyarrow is older than 21.
    """

    def __init__(self, type_: pa.DataType) -> None:
        if not isinstance(type_, pa.DataType):
            raise TypeError(f"an Arrow type is needed, got {type_!r:.{_SHOWN}}")
        self.type = type_
        self._schema = pa.schema([pa.field("value", type_)])
        self._packed = _PACKED.get(type_)
        self._width = 0 if type_.num_fields else _byte_width(type_)
        _check_encodable(type_, self._schema)
        self._snapshot = {
            "serializer": _NAME,
            "type": str(type_),
            "schema": base64.b64encode(self._schema.serialize()).decode(),
        }

    @property
    def snapshot(self) -> SerializerSnapshot:
        return self._snapshot

    @property
    def is_nested(self) -> bool:
        """Return True if values are lists, dicts and the like, which can be changed and are not hashable."""
        return bool(self.type.num_fields)

    def serialize(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except (pa.ArrowException, OverflowError, TypeError, ValueError, struct.error) as error:
            raise TypeError(
                f"{value!r:.{_SHOWN}} cannot be stored as {self.type}: {error or type(error).__name__}. "
                "Convert it, or declare the state with a type that fits."
            ) from error

    def deserialize(self, data: bytes) -> Any:
        if self._packed is not None:
            return self._packed.unpack(data)[0]
        if self.type in _STRINGS:
            return str(data, "utf-8")
        if self.type in _BINARIES:
            return bytes(data)
        if self._width:
            if len(data) != self._width:
                raise ValueError(f"{len(data)} bytes are no {self.type}, which takes {self._width}")
            return pa.Array.from_buffers(self.type, 1, [None, pa.py_buffer(data)])[0].as_py()
        column = read_batch(pa.py_buffer(data), self._schema, full=True).column(0)
        if len(column) != 1:
            raise ValueError(f"a record batch of {len(column)} rows is no single value")
        return column[0].as_py()

    def check(self, value: Any) -> None:
        self.serialize(value)

    def check_compatibility(self, previous: SerializerSnapshot) -> Compatibility:
        try:
            old = _type_of(previous)
        except (KeyError, TypeError, ValueError, OSError, pa.ArrowException, binascii.Error):
            return super().check_compatibility(previous)
        if old.equals(self.type):
            return Compatibility.COMPATIBLE_AS_IS
        if _widens(old, self.type):
            return Compatibility.COMPATIBLE_AFTER_MIGRATION
        return Compatibility.INCOMPATIBLE

    def migrate(self, data: bytes, previous: SerializerSnapshot) -> Any:
        # The detour through bytes gives new fields their null.
        return self.deserialize(self.serialize(ArrowSerializer(_type_of(previous)).deserialize(data)))

    def __reduce__(self) -> tuple[type[ArrowSerializer], tuple[pa.DataType]]:
        # Spark ships the functions of a query, and what they refer to, to its workers.
        return ArrowSerializer, (self.type,)

    def __repr__(self) -> str:
        return f"ArrowSerializer({self.type})"

    def _encode(self, value: Any) -> bytes:
        if value is None:
            raise TypeError("None is no value")
        if self._packed is not None:
            if self.type == pa.bool_() and not isinstance(value, bool):
                # Packed as it is, everything would be true that Python calls so.
                value = pa.array([value], self.type)[0].as_py()
            return self._packed.pack(value)
        if self.type in _STRINGS:
            return str.encode(value)
        if self.type in _BINARIES:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                raise TypeError(f"it is of type {type(value).__name__}")
            return bytes(value)
        array = pa.array([value], self.type)
        if self._width:
            return bytes(array.buffers()[1])[: self._width]
        return bytes(pa.record_batch([array], schema=self._schema).serialize())


def _byte_width(type_: pa.DataType) -> int:
    try:
        return int(type_.bit_width) // 8
    except ValueError:
        return 0


def _check_encodable(type_: pa.DataType, schema: pa.Schema) -> None:
    try:
        pa.array([], type_)
        message = pa.record_batch([pa.nulls(1, type_)], schema=schema).serialize()
        pa.ipc.read_record_batch(message, schema)
        encodable = not isinstance(type_, pa.BaseExtensionType)
    except (pa.ArrowException, KeyError):
        encodable = False
    if not encodable:
        raise TypeError(
            f"values of the Arrow type {type_} have no encoding of their own. Use the type that is behind "
            "it, or write a StateSerializer."
        )
    if type_.num_fields and _PYARROW < _PYARROW_OF_HALF_FLOATS and _has_half_floats(type_):
        raise TypeError(
            f"pyarrow {pa.__version__} makes no {type_} of Python's floats. Install pyarrow "
            f"{_PYARROW_OF_HALF_FLOATS} or later, or use pyarrow.float32()."
        )


def _has_half_floats(type_: pa.DataType) -> bool:
    return pa.types.is_float16(type_) or any(
        _has_half_floats(type_.field(number).type) for number in range(type_.num_fields)
    )


def _type_of(snapshot: SerializerSnapshot) -> pa.DataType:
    if snapshot["serializer"] != _NAME:
        raise ValueError(f"{snapshot['serializer']} is another serializer")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(snapshot["schema"])))
    return schema.field(0).type


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return True if every value of the old type is one of the new type."""
    if old.equals(new):
        return True
    types = pa.types
    if types.is_integer(old) and types.is_integer(new):
        same_sign = types.is_signed_integer(old) == types.is_signed_integer(new)
        return bool((same_sign or types.is_signed_integer(new)) and new.bit_width > old.bit_width)
    if types.is_floating(old) and types.is_floating(new):
        return bool(new.bit_width > old.bit_width)
    if types.is_decimal(old) and types.is_decimal(new):
        more = new.precision - old.precision
        return bool(0 <= new.scale - old.scale <= more)
    for alike in (_STRINGS, _BINARIES):
        if old in alike and new in alike:
            return True
    if _is_list(old) and _is_list(new):
        return _widens(old.value_type, new.value_type)
    if types.is_map(old) and types.is_map(new):
        return _widens(old.key_type, new.key_type) and _widens(old.item_type, new.item_type)
    if types.is_struct(old) and types.is_struct(new):
        return _widens_struct(old, new)
    return False


def _is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _widens_struct(old: pa.StructType, new: pa.StructType) -> bool:
    before = {field.name: field for field in old}
    after = {field.name: field for field in new}
    if len(before) < old.num_fields or len(after) < new.num_fields:
        return False  # Fields that share a name cannot be distinguished in a dict.
    keeps_fields = all(
        name in after and _widens(field.type, after[name].type) for name, field in before.items()
    )
    return keeps_fields and all(name in before or field.nullable for name, field in after.items())
