"""Tests of the columns that decide a row's partition, for every operator and state of Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_statestore.errors import RescaleError
from spark_statestore.query import OperatorStore, StatefulOperator
from spark_statestore.rescaling.partitioning import partition_key
from spark_statestore.rows.types import parse_schema
from spark_statestore.store.metadata import ColumnFamily
from tests.unit.query.stored_query import schema


def struct(**fields: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(schema(**fields))
    return parsed


def state(name: str, key: dict[str, Any], encoder: str = "hash") -> ColumnFamily:
    return ColumnFamily(name, 0, json.dumps(key), json.dumps(struct()), encoder, 0)


def operator(name: str) -> StatefulOperator:
    return StatefulOperator(3, name, (OperatorStore("default", 0, 4),), "v1", {})


GROUP = struct(a="long", b="string")
MAP_KEY = struct(key=GROUP, userKey=struct(c="date"))
BY = struct(a="long", b="string", last="timestamp")

# Operator, store, state; the types of the columns that decide are always those of GROUP.
RULES = [
    ("stateStoreSave", "default", state("default", GROUP)),
    ("dedupe", "default", state("default", GROUP)),
    ("dedupeWithinWatermark", "default", state("default", GROUP)),
    ("flatMapGroupsWithState", "default", state("default", GROUP)),
    ("applyInPandasWithState", "default", state("default", GROUP)),
    ("sessionWindowStateStoreSaveExec", "default", state("default", BY, "prefix")),
    ("symmetricHashJoin", "left-keyToNumValues", state("default", GROUP)),
    ("symmetricHashJoin", "right-keyWithIndexToValue", state("default", BY)),
    ("symmetricHashJoin", "default", state("right-keyToNumValues", GROUP)),
    ("symmetricHashJoin", "default", state("left-keyWithIndexToValue", BY)),
    ("symmetricHashJoin", "default", state("left-keyWithTsToValues", BY, "timestampPostfix")),
    ("symmetricHashJoin", "default", state("right-tsWithKey", BY, "timestampPrefix")),
    ("transformWithStateExec", "default", state("value", GROUP)),
    ("transformWithStateInPandasExec", "default", state("map", MAP_KEY, "prefix")),
    ("transformWithStateInPySparkExec", "default", state("$rowCounter_list", GROUP)),
    ("transformWithStateExec", "default", state("$min_list", GROUP)),
    ("transformWithStateExec", "default", state("$count_list", GROUP)),
    ("transformWithStateExec", "default", state("$ttl_value", struct(at="long", key=GROUP), "range")),
    ("transformWithStateExec", "default", state("$ttl_map", struct(at="long", key=MAP_KEY), "range")),
    ("transformWithStateExec", "default", state("$ttl_gone", struct(at="long", key=GROUP), "range")),
    ("transformWithStateExec", "default", state("$ttl_gone", struct(at="long", key=MAP_KEY), "range")),
    (
        "transformWithStateExec",
        "default",
        state("$procTimers_keyToTimestamp", struct(key=GROUP, at="long"), "prefix"),
    ),
    (
        "transformWithStateExec",
        "default",
        state("$eventTimers_timestampToKey", struct(at="long", key=GROUP), "range"),
    ),
]

FAMILIES = {family.name: family for family in (state("value", GROUP), state("map", MAP_KEY, "prefix"))}


@pytest.mark.parametrize(("name", "store", "family"), RULES, ids=lambda part: getattr(part, "name", part))
def test_partition_key_has_the_columns_of_the_shuffle(name: str, store: str, family: ColumnFamily) -> None:
    key = partition_key(operator(name), store, family, FAMILIES)
    columns = key.columns(parse_schema(family.key_schema))
    assert [column.name for column in columns] == ["long", "string"]


def test_partition_key_of_a_map_like_value_is_the_whole_key() -> None:
    lookalike = {"value": state("value", MAP_KEY)}
    expiries = state("$ttl_value", struct(at="long", key=MAP_KEY), "range")
    key = partition_key(operator("transformWithStateExec"), "default", expiries, lookalike)
    assert len(key.columns(parse_schema(expiries.key_schema))) == 2
    assert key.inside == (1,)


@pytest.mark.parametrize(
    ("name", "store", "state_name"),
    [
        ("aNewOperator", "default", "default"),
        ("symmetricHashJoin", "left-aNewStore", "default"),
        ("symmetricHashJoin", "default", "left-aNewState"),
        ("transformWithStateExec", "default", "$aNewIndex_value"),
        ("stateStoreSave", "default", "aNewState"),
    ],
)
def test_partition_key_refuses_an_unknown_state(name: str, store: str, state_name: str) -> None:
    with pytest.raises(
        RescaleError, match=rf"operator 3 \({name}\), store {store}: .* state '.?{state_name[1:]}'"
    ):
        partition_key(operator(name), store, state(state_name, GROUP), {})


@pytest.mark.parametrize(
    ("name", "key", "single"),
    [
        ("stateStoreSave", struct(), True),
        ("stateStoreSave", struct(a="void"), False),
        ("sessionWindowStateStoreSaveExec", struct(start="timestamp"), True),
        ("sessionWindowStateStoreSaveExec", struct(a="long", start="timestamp"), False),
        ("globalLimit", struct(key="void"), True),
        ("dedupe", struct(), False),
    ],
)
def test_operators_without_grouping_columns_are_single(name: str, key: dict[str, Any], single: bool) -> None:
    assert operator(name).is_single(json.dumps(key)) == single
