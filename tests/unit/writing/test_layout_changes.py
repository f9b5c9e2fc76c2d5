"""Changes of state beside which Spark keeps counters and indexes, against lists of rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, get_args

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from spark_statestore import OptionError, RowEncodingError, decode_rows, encode_rows
from spark_statestore.query.operators import OperatorStore, StatefulOperator
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.rows.columns import StateColumns
from spark_statestore.store.changelog_apply import ROW_SCHEMA
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing.changes import KeyCounts, StateChanges
from spark_statestore.writing.layout_changes import LayoutChanges
from spark_statestore.writing.predicate import MatchingDelete
from spark_statestore.writing.rows import Mode
from spark_statestore.writing.state_layouts import StateLayout, layout_of
from tests.support.effort import EFFORT

STORE = StoreId(0, 0, "default")
Rows = list[tuple[dict[str, Any], dict[str, Any]]]


def struct(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "struct",
        "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields],
    }


KEY, USER_KEY = struct(("k", "string")), struct(("u", "long"))
MAP_KEY = struct(("key", KEY), ("userKey", USER_KEY))
EMPTY = struct(("__empty__", "void"))
NO_TIMER = struct(("__dummy__", "void"))
VALUE = struct(("value", "long"))
EXPIRING = struct(("value", "long"), ("ttlExpirationMs", "long"))
TIMER, TIME_FIRST = (
    struct(*fields)
    for fields in (
        (("key", KEY), ("expiryTimestampMs", "long")),
        (("expiryTimestampMs", "long"), ("key", KEY)),
    )
)
INDEX = struct(("field0", "string"), ("index", "long"))
AT = struct(("field0", "string"), ("__event_time", "long"))
JOINED = struct(("value", "long"), ("matched", "boolean"))


def text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def by_key(rows: Rows) -> dict[Any, list[dict[str, Any]]]:
    values: dict[Any, list[dict[str, Any]]] = {}
    for key, value in rows:
        values.setdefault(text(key), []).append(value)
    return values


def counted(field: str) -> Callable[[Rows], Rows]:
    return lambda rows: [(json.loads(key), {field: len(values)}) for key, values in by_key(rows).items()]


def first_expiry(values: list[dict[str, Any]]) -> int:
    return min(value["ttlExpirationMs"] for value in values)


def minima(rows: Rows) -> Rows:
    return [(json.loads(key), {"expirationMs": first_expiry(values)}) for key, values in by_key(rows).items()]


def expiries(rows: Rows) -> Rows:
    return [
        ({"expirationMs": first_expiry(values), "elementKey": json.loads(key)}, {"__empty__": None})
        for key, values in by_key(rows).items()
    ]


def numbers_of(rows: Rows) -> Rows:
    counts = Counter(key["field0"] for key, _ in rows)
    return [({"field0": key}, {"value": number}) for key, number in counts.items()]


@dataclass(frozen=True)
class Kind:
    """A state and what follows from it."""

    name: str
    key: dict[str, Any]
    value: dict[str, Any]
    derived: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[Rows], Rows]]]
    variable: str | None = None
    ttl: bool = False
    multiple: bool = False


def index_of_expiries(key: dict[str, Any]) -> Any:
    return struct(("expirationMs", "long"), ("elementKey", key)), EMPTY, expiries


COUNT, NUMBER = struct(("count", "long")), struct(("value", "long"))
KINDS = [
    Kind("v", KEY, VALUE, {"$rowCounter_v": (KEY, COUNT, counted("count"))}, "ListState", multiple=True),
    Kind(
        "v",
        KEY,
        EXPIRING,
        {
            "$ttl_v": index_of_expiries(KEY),
            "$min_v": (KEY, struct(("expirationMs", "long")), minima),
            "$count_v": (KEY, COUNT, counted("count")),
        },
        "ListState",
        ttl=True,
        multiple=True,
    ),
    Kind("v", KEY, EXPIRING, {"$ttl_v": index_of_expiries(KEY)}, "ValueState", ttl=True),
    Kind("v", MAP_KEY, EXPIRING, {"$ttl_v": index_of_expiries(MAP_KEY)}, "MapState", ttl=True),
    Kind(
        "$eventTimers_keyToTimestamp",
        TIMER,
        NO_TIMER,
        {"$eventTimers_timestampToKey": (TIME_FIRST, NO_TIMER, lambda rows: rows)},
        "TimerState",
    ),
    Kind(
        "left-keyWithIndexToValue",
        INDEX,
        JOINED,
        {"left-keyToNumValues": (struct(("field0", "string")), NUMBER, numbers_of)},
    ),
    Kind(
        "left-keyWithTsToValues",
        AT,
        JOINED,
        {"left-tsWithKey": (AT, NO_TIMER, lambda rows: [(key, {"__dummy__": None}) for key, _ in rows])},
        multiple=True,
    ),
]


class Case:
    """A kind of state with the changes of it."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        values = 0 if kind.multiple else None
        self.state = self.family(kind.name, kind.key, kind.value, values)
        self.derived = {
            name: self.family(name, key, value, values if "tsWithKey" in name else None)
            for name, (key, value, _) in kind.derived.items()
        }
        properties = {
            "stateVariables": [
                {"stateName": kind.name, "stateVariableType": kind.variable, "ttlEnabled": kind.ttl}
            ]
        }
        node = {"operatorPropertiesJson": json.dumps(properties)} if kind.variable else {}
        name = "transformWithStateExec" if kind.variable else "symmetricHashJoin"
        self.operator = StatefulOperator(0, name, (OperatorStore("default", 0, 1),), "v2", node)
        source: Any = SimpleNamespace(
            state=self.state,
            store="default",
            family=kind.name,
            beside=self.derived.get,
            stored_rows=lambda name: 1,
        )
        self.layout = layout_of(self.operator, source, lambda store: source)

    @staticmethod
    def family(name: str, key: Any, value: Any, values: int | None) -> ColumnFamily:
        return ColumnFamily(name, 0, json.dumps(key), json.dumps(value), "hash", 0, values=values)

    @property
    def is_indexed(self) -> bool:
        return self.kind.key is INDEX

    def content(self, rows: Rows, parts: int = 1) -> StoreSnapshot:
        """A store with rows, of which each part has other keys."""
        tables = {self.kind.name: self.encoded(self.state, rows)}
        for name, (_, _, follow) in self.kind.derived.items():
            tables[name] = self.encoded(self.derived[name], self.sorted(follow(rows)))

        def read() -> Iterator[tuple[str, pa.Table]]:
            for part in range(parts):
                for name in sorted(tables, reverse=part % 2 == 1):
                    keys = [sum(key) % parts for key in tables[name]["key"].to_pylist()]
                    yield name, tables[name].filter(pa.array([key == part for key in keys], pa.bool_()))

        return StoreSnapshot(STORE, (self.state, *self.derived.values()), read)

    def encoded(self, family: ColumnFamily, rows: Rows) -> pa.Table:
        columns = []
        for position, schema in enumerate((family.key_schema, family.value_schema)):
            kind = decode_rows(pa.array([], pa.binary()), schema).type
            columns.append(encode_rows(pa.array([row[position] for row in rows], kind), schema))
        return pa.table(columns, schema=ROW_SCHEMA)

    def sorted(self, rows: Rows) -> Rows:
        return sorted(rows, key=text)

    def columns(self) -> StateColumns:
        return StateColumns(self.state, self.kind.variable)

    def table(self, rows: Rows) -> pa.Table:
        """Rows in the columns of `read_state`."""
        batches = self.encoded(self.state, rows).to_batches()
        decoded = [self.columns().decode(batch, 0) for batch in batches]
        return pa.Table.from_batches(decoded, self.columns().schema)

    def changes(self, mode: Mode, rows: Rows) -> StateChanges:
        return StateChanges([self.table(rows)], mode, self.operator, "default", self.state, 1)

    def matching(self, condition: pc.Expression | str) -> MatchingDelete:
        return MatchingDelete(condition, self.operator, "default", self.state, self.columns())

    def changed(self, content: StoreSnapshot, changes: Any) -> tuple[dict[str, pa.Table], KeyCounts]:
        assert self.layout is not None
        layout = LayoutChanges(changes, self.operator, "default", self.layout, lambda partition: iter(()))
        tables: dict[str, list[pa.Table]] = {}
        for name, table in layout.apply(content).rows():
            tables.setdefault(name, []).append(table)
        return {name: pa.concat_tables(parts) for name, parts in tables.items()}, layout.counts

    def decoded(self, family: ColumnFamily, table: pa.Table) -> Rows:
        keys = decode_rows(table["key"], family.key_schema).to_pylist()
        return list(zip(keys, decode_rows(table["value"], family.value_schema).to_pylist(), strict=True))

    def check(self, tables: dict[str, pa.Table], expected: Rows) -> None:
        tables = {name: ROW_SCHEMA.empty_table() for name in (self.kind.name, *self.derived)} | tables
        rows = self.decoded(self.state, tables[self.kind.name])
        assert by_key(rows) == by_key(expected)
        for name, (_, _, follow) in self.kind.derived.items():
            family = self.derived[name]
            assert self.sorted(self.decoded(family, tables[name])) == self.sorted(follow(expected))
            # The bytes are Spark's, which its lookups need.
            assert Counter(tables[name]["key"].to_pylist()) == Counter(
                self.encoded(family, follow(expected))["key"].to_pylist()
            )

    def numbered(self, rows: Rows) -> Rows:
        """Return the rows of a join with numbers from 0 on in each key, in the order of their numbers."""
        if not self.is_indexed:
            return rows
        counts: Counter[Any] = Counter()
        after = []
        for key, value in sorted(rows, key=lambda row: row[0]["index"]):
            after.append((key | {"index": counts[key["field0"]]}, value))
            counts[key["field0"]] += 1
        return after


names = st.sampled_from(["a", "b", "größe", "d"])
times = st.integers(1, 5)


@st.composite
def rows_of(draw: st.DrawFn, kind: Kind, optional: bool = False) -> Rows:
    by_schema: dict[str, st.SearchStrategy[Any]] = {
        json.dumps(KEY): st.fixed_dictionaries({"k": names}),
        json.dumps(MAP_KEY): st.fixed_dictionaries(
            {"key": st.fixed_dictionaries({"k": names}), "userKey": st.fixed_dictionaries({"u": times})}
        ),
        json.dumps(TIMER): st.fixed_dictionaries(
            {"key": st.fixed_dictionaries({"k": names}), "expiryTimestampMs": times}
        ),
        json.dumps(INDEX): st.fixed_dictionaries({"field0": st.none() | names, "index": st.integers(0, 9)}),
        json.dumps(AT): st.fixed_dictionaries({"field0": st.none() | names, "__event_time": times}),
        json.dumps(VALUE): st.fixed_dictionaries({"value": times}),
        json.dumps(EXPIRING): st.fixed_dictionaries({"value": times, "ttlExpirationMs": times}),
        json.dumps(JOINED): st.fixed_dictionaries({"value": times, "matched": st.booleans()}),
        json.dumps(NO_TIMER): st.just({"__dummy__": None}),
    }
    row = st.tuples(by_schema[json.dumps(kind.key)], by_schema[json.dumps(kind.value)])
    unique = None if kind.multiple else lambda row: text(row[0])
    return draw(st.lists(row, max_size=12, unique_by=unique))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.variable or kind.name}-{kind.ttl}")
@settings(max_examples=25 * EFFORT)
@given(data=st.data())
def test_derived_states_follow_from_changed_rows(kind: Kind, data: st.DataObject) -> None:
    case = Case(kind)
    before = case.numbered(data.draw(rows_of(kind)))
    given_rows = data.draw(rows_of(kind))
    mode = data.draw(st.sampled_from([*get_args(Mode), "predicate"]))
    content = case.content(before, data.draw(st.integers(1, 3)) if not kind.multiple else 1)
    keys = by_key(given_rows)
    unchanged = [row for row in before if text(row[0]) not in keys]
    changes: Any
    if mode == "predicate":
        field = "expiration_timestamp_ms" if kind.variable == "TimerState" else "value.value"
        limit = data.draw(times)
        name, *inside = field.split(".")
        if kind.variable in ("ListState", "MapState"):
            name = {"ListState": "list_element", "MapState": "user_map_value"}[kind.variable]
        changes = case.matching(pc.field(name, *inside) < limit)
        expected = [
            row for row in before if not row[1].get("value", row[0].get("expiryTimestampMs", 0)) < limit
        ]
    else:
        changes = case.changes(mode, given_rows)
        expected = {"replace": [], "upsert": unchanged, "delete": unchanged}[mode]
        expected = expected if mode == "delete" else [*expected, *given_rows]
    tables, counts = case.changed(content, changes)
    case.check(tables, case.numbered(expected))
    old, new = by_key(before), by_key(expected)
    common = old.keys() & new.keys()
    changed = [key for key in common if old[key] != new[key]] if mode == "predicate" else common & keys.keys()
    assert (counts.added, counts.removed) == (len(new.keys() - old.keys()), len(old.keys() - new.keys()))
    assert counts.changed == len(changed)


def test_rows_of_a_key_in_several_parts_stay() -> None:
    case = Case(KINDS[5])
    rows: Rows = [
        ({"field0": "a", "index": number}, {"value": number, "matched": True}) for number in range(6)
    ]
    # One part has no row that matches.
    tables, counts = case.changed(case.content(rows, 2), case.matching(pc.field("value", "value") < 1))
    case.check(tables, case.numbered(rows[1:]))
    assert (counts.added, counts.changed, counts.removed) == (0, 0, 1)


def not_utf8(case: Case, content: StoreSnapshot) -> StoreSnapshot:
    """Return a store in which the key ``b?`` has a byte that no string of UTF-8 has."""

    def rows() -> Iterator[tuple[str, pa.Table]]:
        for name, table in content.rows():
            keys = pa.array([key.replace(b"b?", b"b\xff") for key in table["key"].to_pylist()], pa.binary())
            yield name, table.set_column(0, ROW_SCHEMA.field("key"), keys)

    return StoreSnapshot(content.store, content.column_families, rows)


@pytest.mark.parametrize("kind", [KINDS[2], KINDS[4], KINDS[5]], ids=lambda kind: kind.variable or kind.name)
def test_strings_that_are_not_utf8_keep_their_bytes(kind: Kind) -> None:
    case = Case(kind)
    keys = {
        "v": lambda k: {"k": k},
        "$eventTimers_keyToTimestamp": lambda k: {"key": {"k": k}, "expiryTimestampMs": 1},
        "left-keyWithIndexToValue": lambda k: {"field0": k, "index": 0},
    }[kind.name]
    value = {"value": 1, "ttlExpirationMs": 7, "matched": True, "__dummy__": None}
    value = {field["name"]: value[field["name"]] for field in kind.value["fields"]}
    content = not_utf8(case, case.content([(keys("a"), value), (keys("b?"), value)]))
    before = {name: set(table["key"].to_pylist()) for name, table in content.rows()}
    # The key of the changes is shown as the one in the state, but is another one.
    tables, counts = case.changed(content, case.changes("upsert", [(keys("b\ufffd"), value)]))
    for name, table in tables.items():
        assert before[name] < set(table["key"].to_pylist())
        assert table.num_rows == 3
    assert (counts.added, counts.changed, counts.removed) == (1, 0, 0)
    inside = "field0" if kind.key is INDEX else "k"
    tables, counts = case.changed(content, case.matching(pc.field("key", inside) == "b\ufffd"))
    case.check(tables, [(keys("a"), value)])
    assert (counts.added, counts.changed, counts.removed) == (0, 0, 1)


def test_keys_that_arrow_does_not_represent_stay_or_are_refused() -> None:
    key = struct(("k", "interval"))
    case = Case(Kind("v", key, EXPIRING, {"$ttl_v": index_of_expiries(key)}, "ValueState", ttl=True))
    content = case.content([({"k": None}, {"value": 1, "ttlExpirationMs": 7})])

    def rows() -> Iterator[tuple[str, pa.Table]]:
        # A null beside bytes of another row, as Spark leaves them.
        for name, table in content.rows():
            (data,) = table["key"].to_pylist()
            changed = pa.array([data[:-8] + b"leftover" if name == "v" else data], pa.binary())
            yield name, table.set_column(0, ROW_SCHEMA.field("key"), changed)

    snapshot = StoreSnapshot(STORE, content.column_families, rows)
    tables, _ = case.changed(snapshot, case.matching(pc.field("value", "value") > 1))
    assert tables == dict(rows())
    with pytest.raises(RowEncodingError, match=r"partition 0.*: 1 keys that change of .* not exact in Arrow"):
        case.changed(snapshot, case.matching(pc.field("value", "value") == 1))


@pytest.mark.parametrize("kind", [KINDS[3]], ids=["MapState"])
def test_predicate_removes_rows_that_spark_has_left_behind(kind: Kind) -> None:
    case = Case(kind)
    key = {"key": {"k": "a"}, "userKey": {"u": 1}}
    value = {"value": 1, "ttlExpirationMs": 7}
    content = case.content([(key, value)])

    def rows() -> Iterator[tuple[str, pa.Table]]:
        yield from content.rows()
        gone = ({"expirationMs": 3, "elementKey": {**key, "userKey": {"u": 2}}}, {"__empty__": None})
        yield "$ttl_v", case.encoded(case.derived["$ttl_v"], [gone])

    snapshot = StoreSnapshot(STORE, content.column_families, rows)
    tables, _ = case.changed(snapshot, case.matching(pc.field("key", "k") == "b"))
    case.check(tables, [(key, value)])
    tables, _ = case.changed(snapshot, case.matching(pc.field("key", "k") == "a"))
    case.check(tables, [])

    def only_left() -> Iterator[tuple[str, pa.Table]]:
        return (part for part in rows() if part[0] != "v")

    alone = StoreSnapshot(STORE, content.column_families, only_left)
    case.check(case.changed(alone, case.matching(pc.field("key", "k") == "a"))[0], [])


def test_a_partition_of_a_state_in_several_stores_has_one_result() -> None:
    """A predicate may be another one at the next call, as with the time of day."""
    base = KINDS[5]
    case = Case(base)
    assert case.layout is not None
    (numbers,) = case.layout.derived
    apart = ColumnFamily("default", 0, numbers.state.key_schema, numbers.state.value_schema, "hash", 0)
    layout = StateLayout(case.state, [replace(numbers, store="numbers", state=apart)], is_indexed=True)
    rows = case.numbered(
        [({"field0": k, "index": n}, {"value": n, "matched": True}) for k in "abc" for n in range(9)]
    )
    content = case.content(rows)
    tables = dict(content.rows())
    changes = case.matching("random() < 0.5")

    def rows_of_partition(_: int) -> Iterator[pa.Table]:
        yield tables[base.name]

    whole = LayoutChanges(changes, case.operator, "default", layout, rows_of_partition)
    counters = StoreSnapshot(
        StoreId(0, 0, "numbers"), (apart,), lambda: iter([("default", tables["left-keyToNumValues"])])
    )
    own = StoreSnapshot(STORE, (case.state,), lambda: iter([(base.name, tables[base.name])]))
    stores = [whole.apply(store).rows() for store in (counters, own)]
    results = [pa.concat_tables(table for _, table in store) for store in stores]
    rows_left = case.decoded(case.state, results[1])
    assert 0 < len(rows_left) < 27
    assert case.sorted(case.decoded(apart, results[0])) == case.sorted(numbers_of(rows_left))


def test_state_without_what_follows_from_it_is_refused() -> None:
    lacking = Kind("v", KEY, EXPIRING, {}, "ValueState", ttl=True)
    with pytest.raises(OptionError, match=r"'v' of the store 'default' has no '\$ttl_v' beside it"):
        Case(lacking)


@pytest.mark.parametrize(("kind", "field"), [(KINDS[1], "ttlExpirationMs"), (KINDS[5], "matched")])
def test_fields_that_spark_always_has_are_not_null(kind: Kind, field: str) -> None:
    case = Case(kind)
    key = {"k": "a"} if kind.key is KEY else {"field0": "a", "index": 0}
    value = {"value": 1, "ttlExpirationMs": 7, "matched": True} | {field: None}
    rows = [(key, {name["name"]: value[name["name"]] for name in kind.value["fields"]})]
    with pytest.raises(RowEncodingError, match=f"row 0 of the changes has no '{field}' in its value"):
        case.changes("upsert", rows)
