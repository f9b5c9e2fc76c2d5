"""Serializers: round trips, copies and compatibility."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from spark_statestore.operator_state import (
    ArrowSerializer,
    BytesSerializer,
    Compatibility,
    ListStateDescriptor,
    MapStateDescriptor,
)
from spark_statestore.operator_state.serializers import describe

AS_IS = Compatibility.COMPATIBLE_AS_IS
MIGRATED = Compatibility.COMPATIBLE_AFTER_MIGRATION
INCOMPATIBLE = Compatibility.INCOMPATIBLE

UTC = datetime.UTC

HALF_FLOATS_INSIDE = int(pa.__version__.split(".")[0]) >= 21

scalars: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *((getattr(pa, f"int{n}")(), st.integers(-(2 ** (n - 1)), 2 ** (n - 1) - 1)) for n in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{n}")(), st.integers(0, 2**n - 1)) for n in (8, 16, 32, 64)),
    *((getattr(pa, f"float{n}")(), st.floats(width=n, allow_nan=False)) for n in (16, 32, 64)),
    (pa.utf8(), st.text()),
    (pa.large_utf8(), st.text()),
    (pa.binary(), st.binary()),
    (pa.large_binary(), st.binary()),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(-(10**6)), datetime.timedelta(10**6))),
    (pa.decimal128(9, 2), st.decimals(-(10**6), 10**6, places=2)),
]


def typed() -> st.SearchStrategy[tuple[pa.DataType, Any]]:
    """A type and a value of it."""

    def nested(inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]) -> Any:
        return st.one_of(
            inner.map(lambda t: (pa.list_(t[0]), st.lists(st.none() | t[1], max_size=3))),
            st.lists(inner, min_size=1, max_size=3).map(
                lambda ts: (
                    pa.struct([(f"f{n}", t[0]) for n, t in enumerate(ts)]),
                    st.fixed_dictionaries({f"f{n}": st.none() | t[1] for n, t in enumerate(ts)}),
                )
            ),
            inner.map(lambda t: (pa.map_(pa.utf8(), t[0]), st.lists(st.tuples(st.text(), t[1]), max_size=3))),
        )

    inside = [scalar for scalar in scalars if HALF_FLOATS_INSIDE or scalar[0] != pa.float16()]
    types = st.sampled_from(scalars) | st.recursive(st.sampled_from(inside), nested, max_leaves=4)
    return types.flatmap(lambda t: st.tuples(st.just(t[0]), t[1]))


@given(typed())
def test_serializer_round_trips_values_and_is_compatible_with_itself(case: tuple[pa.DataType, Any]) -> None:
    type_, value = case
    serializer = ArrowSerializer(type_)
    serializer.check(value)
    data = serializer.serialize(value)
    assert type(data) is bytes
    assert serializer.deserialize(data) == value
    stored = json.loads(json.dumps(serializer.snapshot))
    assert stored == describe(serializer)
    assert ArrowSerializer(type_).check_compatibility(stored) is AS_IS


@pytest.mark.parametrize(
    ("type_", "value", "size"),
    [(pa.int64(), 1, 8), (pa.bool_(), True, 1), (pa.utf8(), "ab", 2), (pa.binary(), b"abc", 3),
     (pa.timestamp("us", "UTC"), datetime.datetime(2020, 1, 1, tzinfo=UTC), 8),
     (pa.date32(), datetime.date(2020, 1, 1), 4), (pa.decimal128(9, 2), decimal.Decimal("1.25"), 16)],
)  # fmt: skip
def test_scalars_are_encoded_without_overhead(type_: pa.DataType, value: Any, size: int) -> None:
    serializer = ArrowSerializer(type_)
    assert len(serializer.serialize(value)) == size
    assert serializer.deserialize(serializer.serialize(value)) == value


@pytest.mark.parametrize(
    ("type_", "value"),
    [(pa.int8(), 128), (pa.uint8(), -1), (pa.int64(), 1.5), (pa.int64(), "1"), (pa.int64(), None),
     (pa.utf8(), 1), (pa.utf8(), b"a"), (pa.utf8(), "\ud800"), (pa.binary(), "a"), (pa.binary(3), b"ab"),
     (pa.date32(), "x"), (pa.list_(pa.int8()), [1000]), (pa.struct([("a", pa.int8())]), {"a": "b"}),
     (pa.decimal128(3, 2), decimal.Decimal(100))],
)  # fmt: skip
def test_serializer_refuses_a_value_of_another_type(type_: pa.DataType, value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be stored as"):
        ArrowSerializer(type_).check(value)


@pytest.mark.parametrize(
    "type_", [pa.dictionary(pa.int8(), pa.utf8()), pa.list_(pa.dictionary(pa.int8(), pa.utf8())),
              pa.dense_union([pa.field("a", pa.int8())]), pa.uuid()],
)  # fmt: skip
def test_serializer_refuses_a_type_without_encoding(type_: pa.DataType) -> None:
    with pytest.raises(TypeError, match="no encoding of their own"):
        ArrowSerializer(type_)


@pytest.mark.parametrize(
    ("type_", "value"),
    [(pa.list_(pa.float16()), [0.5]), (pa.map_(pa.utf8(), pa.float16()), [("a", 0.5)]),
     (pa.struct([("a", pa.float16())]), {"a": 0.5})],
)  # fmt: skip
def test_serializer_refuses_half_floats_inside_with_an_old_pyarrow(type_: pa.DataType, value: Any) -> None:
    if HALF_FLOATS_INSIDE:
        assert ArrowSerializer(type_).deserialize(ArrowSerializer(type_).serialize(value)) == value
    else:
        with pytest.raises(TypeError, match="Install pyarrow 21 or later"):
            ArrowSerializer(type_)


def test_descriptor_refuses_other_than_types_and_serializers() -> None:
    with pytest.raises(TypeError, match="an Arrow type is needed"):
        ArrowSerializer("int64")
    with pytest.raises(TypeError, match="need a StateSerializer or an Arrow type"):
        ListStateDescriptor("a", "int64")
    with pytest.raises(TypeError, match="need a StateSerializer or an Arrow type"):
        MapStateDescriptor("a", pa.int8(), int)
    with pytest.raises(TypeError, match="must be a string"):
        ListStateDescriptor(None, pa.int8())
    with pytest.raises(TypeError, match="cannot be keys of a dict"):
        MapStateDescriptor("a", pa.list_(pa.int8()), pa.int8())
    with pytest.raises(TypeError, match="is not bytes"):
        BytesSerializer().check("a")


def struct(*fields: tuple[str, pa.DataType] | pa.Field) -> pa.DataType:
    return pa.struct(fields)


REQUIRED = pa.field("b", pa.int8(), nullable=False)

MIGRATIONS = [
    (pa.int8(), pa.int64(), MIGRATED, 7),
    (pa.uint8(), pa.uint32(), MIGRATED, 7),
    (pa.uint8(), pa.int16(), MIGRATED, 255),
    (pa.uint8(), pa.int8(), INCOMPATIBLE, 7),
    (pa.int8(), pa.uint16(), INCOMPATIBLE, 7),
    (pa.int64(), pa.int32(), INCOMPATIBLE, 7),
    (pa.int8(), pa.float64(), INCOMPATIBLE, 7),
    (pa.float32(), pa.float64(), MIGRATED, 0.5),
    (pa.float64(), pa.float32(), INCOMPATIBLE, 0.5),
    (pa.decimal128(5, 2), pa.decimal128(7, 4), MIGRATED, decimal.Decimal("123.45")),
    (pa.decimal128(5, 2), pa.decimal128(6, 4), INCOMPATIBLE, decimal.Decimal("123.45")),
    (pa.decimal128(5, 2), pa.decimal128(5, 1), INCOMPATIBLE, decimal.Decimal("123.45")),
    (pa.utf8(), pa.large_utf8(), MIGRATED, "a"),
    (pa.large_binary(), pa.binary(), MIGRATED, b"a"),
    (pa.utf8(), pa.binary(), INCOMPATIBLE, "a"),
    (pa.list_(pa.int8()), pa.list_(pa.int16()), MIGRATED, [1]),
    (pa.list_(pa.int8()), pa.large_list(pa.int8()), MIGRATED, [1]),
    (pa.list_(pa.int16()), pa.list_(pa.int8()), INCOMPATIBLE, [1]),
    (pa.map_(pa.utf8(), pa.int8()), pa.map_(pa.utf8(), pa.int16()), MIGRATED, [("a", 1)]),
    (pa.map_(pa.int16(), pa.int8()), pa.map_(pa.int8(), pa.int8()), INCOMPATIBLE, [(1, 1)]),
    (struct(("a", pa.int8())), struct(("b", pa.utf8()), ("a", pa.int16())), MIGRATED, {"a": 1}),
    (struct(("a", pa.int8())), struct(("a", pa.int8()), REQUIRED), INCOMPATIBLE, {"a": 1}),
    (struct(("a", pa.int8()), ("b", pa.int8())), struct(("a", pa.int8())), INCOMPATIBLE, {"a": 1}),
    (struct(("a", pa.int16())), struct(("a", pa.int8())), INCOMPATIBLE, {"a": 1}),
    (struct(("a", pa.int8()), ("a", pa.int8())), struct(("a", pa.int16())), INCOMPATIBLE, {}),
]


@pytest.mark.parametrize(("old", "new", "expected", "value"), MIGRATIONS, ids=str)
def test_widened_type_is_compatible_after_migration(
    old: pa.DataType, new: pa.DataType, expected: Compatibility, value: Any
) -> None:
    before, after = ArrowSerializer(old), ArrowSerializer(new)
    assert after.check_compatibility(describe(before)) is expected
    if expected is MIGRATED:
        migrated = after.migrate(before.serialize(value), describe(before))
        assert migrated == ({"b": None, "a": 1} if pa.types.is_struct(new) else value)
        assert after.deserialize(after.serialize(migrated)) == migrated


@pytest.mark.parametrize(
    "previous", [{"serializer": "bytes"}, {"serializer": "arrow"}, {"serializer": "arrow", "schema": "%"},
                 {"serializer": "arrow", "schema": "AAAA"}, {"serializer": "arrow", "schema": 1}, {}],
)  # fmt: skip
def test_arrow_serializer_is_incompatible_with_other_snapshots(previous: dict[str, Any]) -> None:
    assert ArrowSerializer(pa.int8()).check_compatibility(previous) is INCOMPATIBLE


@pytest.mark.parametrize(
    ("snapshot", "problem"),
    [({"serializer": "a", "b": object()}, "no JSON object"), ([("serializer",)], "no JSON object"),
     ({}, "has no name"), ({"serializer": 1}, "has no name")],
)  # fmt: skip
def test_serializer_with_a_snapshot_beyond_json_is_refused(snapshot: Any, problem: str) -> None:
    class Odd(BytesSerializer):
        @property
        def snapshot(self) -> Any:
            return snapshot

    with pytest.raises(TypeError, match=problem):
        ListStateDescriptor("a", Odd())


LISTS = pa.list_(pa.int8())
TWO_ROWS = pa.record_batch([pa.array([[1], [2]], LISTS)], names=["value"]).serialize()


@pytest.mark.parametrize(
    ("type_", "data"),
    [(pa.int64(), b"1234567"), (pa.utf8(), b"\xff"), (pa.date32(), b"12345"), (LISTS, b"abc"),
     (LISTS, bytes(TWO_ROWS))],
)  # fmt: skip
def test_serializer_detects_damaged_bytes(type_: pa.DataType, data: bytes) -> None:
    with pytest.raises(Exception, match=r"."):
        ArrowSerializer(type_).deserialize(data)
