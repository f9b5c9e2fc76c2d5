"""What a provider with column families has to do and to refuse, on this one and on Spark's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import spark_statestore
from tests.effort import EFFORT
from tests.spark.families_model import FamilyModel, order_key, prefix_of
from tests.spark.harness import CLEAN_AT_ONCE, ROCKSDB, Family, Provider, Row, Store

OURS = spark_statestore.PROVIDER_CLASS
Open = Callable[..., Provider]

A, B, C = ("a", 1), ("b", 1), ("c", 1)
TIMES = Family("times", key="t bigint, a string", spec=("range", 0))
LISTS = Family("lists", multiple=True)
MAPS = Family("maps", spec=("prefix", 1))
EXPIRIES = Family("expiries", spec=("timestampPrefix",))
EVENTS = Family("events", spec=("timestampPostfix",))

INVALID = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
RESERVED = "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"
MISSING = "STATE_STORE_UNSUPPORTED_OPERATION_ON_MISSING_COLUMN_FAMILY"
# What Spark refuses with a bare assertion, we refuse with the condition that it has for it elsewhere.
UNSUPPORTED = {"IllegalStateException", "IllegalArgumentException", "STATE_STORE_UNSUPPORTED_OPERATION"}


def value(number: int, text: str = "") -> Row:
    return (number, text)


def numbers(pairs: list[tuple[Row, Row]]) -> list[int]:
    return [row[0] for _, row in pairs]


def open_provider(spark: Any, location: Path, provider_class: str, **options: Any) -> Provider:
    chosen = {"families": True, "rocksdb__changelogCheckpointing__enabled": "true"} | CLEAN_AT_ONCE | options
    return Provider(spark, f"file:{location}", provider=provider_class, **chosen)


@pytest.fixture(params=[OURS, ROCKSDB], ids=["ours", "rocksdb"])
def provider_class(request: pytest.FixtureRequest) -> str:
    return request.param


ours_alone = pytest.mark.parametrize("provider_class", [OURS], ids=["ours"])


@pytest.fixture
def instance(spark: Any, tmp_path: Path, provider_class: str) -> Iterator[Open]:
    """Opens instances of one store, as several executors would."""
    opened = []

    def open_instance(**options: Any) -> Provider:
        opened.append(open_provider(spark, tmp_path, provider_class, **options))
        return opened[-1]

    yield open_instance
    for provider in opened:
        provider.end_stores()
        provider.close()


@pytest.fixture
def store(instance: Open) -> Store:
    return instance().open(0)


def created(store: Store, *families: Family) -> Store:
    for family in families:
        store.create(family)
    return store


# Order

BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64, "float": 32, "double": 64}
# By their bits: zeros, ones, infinities and NaNs of either sign, and numbers that are hardly any.
FLOATS = [0x00000000, 0x3F800000, 0x7F800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x00000001]
DOUBLES = [bits << 32 for bits in (0x00000000, 0x3FF00000, 0x7FF00000, 0x7FF80000)] + [0x7FF0000000000001, 1]


def signed(bits: int, width: int) -> int:
    return bits - (1 << width) if bits >> (width - 1) else bits


def column(kind: str) -> st.SearchStrategy[int | None]:
    width = BITS[kind]
    special = {"float": FLOATS, "double": DOUBLES}.get(kind, [0, 1, 2])
    special = [signed(bits ^ sign, width) for bits in special for sign in (0, 1 << (width - 1))]
    anything = st.integers(-(1 << (width - 1)), (1 << (width - 1)) - 1)
    return st.none() | st.sampled_from(special) | anything


@st.composite
def ordered_keys(draw: st.DrawFn) -> tuple[Family, list[Row]]:
    kinds = draw(st.lists(st.sampled_from(list(BITS)), min_size=1, max_size=3))
    types = [*kinds, "string"]
    spec = ("range", *draw(st.permutations(range(len(kinds)))))
    family = Family("ordered", key=", ".join(f"c{i} {kind}" for i, kind in enumerate(types)), spec=spec)
    key = st.tuples(*map(column, kinds), st.sampled_from([None, "", "a"]))
    return family, draw(st.lists(key, min_size=3, max_size=12, unique=True))


@pytest.fixture
def both(spark: Any, tmp_path: Path) -> Iterator[list[Store]]:
    """A store of each kind."""
    providers = [open_provider(spark, tmp_path / name[-20:], name) for name in (OURS, ROCKSDB)]
    stores = [provider.open(0) for provider in providers]
    yield stores
    for provider in providers:
        provider.end_stores()
        provider.close()


def test_every_type_is_ordered_as_in_rocksdb(both: list[Store]) -> None:
    used = iter(range(10**9))

    @settings(max_examples=60 * EFFORT, suppress_health_check=list(HealthCheck))
    @given(drawn=ordered_keys())
    def check(drawn: tuple[Family, list[Row]]) -> None:
        family, keys = drawn
        # RocksDB never forgets what a name stands for.
        family = Family(f"ordered{next(used)}", key=family.key, spec=family.spec)
        model = FamilyModel(family)
        for i, key in enumerate(keys):
            model.put(key, value(i))
        scans = [("all",), *(("range", start, end) for start in (None, keys[0]) for end in (None, keys[1]))]
        scans += [("prefix", prefix_of(family, key)) for key in keys[:2]]
        for store in both:
            script = store.script()
            script.create(family)
            for i, key in enumerate(keys):
                script.put(key, value(i), family.name)
            for scan in scans:
                script.scan(*scan, family=family.name)
            script.remove_family(family.name)
            found = script.run()[len(keys) + 1 : -1]
            assert found == [model.scan(*scan) for scan in scans]

    check()


def test_ranges_are_half_open_and_may_be_empty(store: Store) -> None:
    created(store, TIMES)
    for i in range(-2, 3):
        store.put((i, "x"), value(i), "times")
    found = [
        numbers(store.range_rows(start, end, "times"))
        for start, end in [
            (None, None), ((-1, "x"), (2, "x")), ((1, "x"), (1, "x")), ((2, "x"), (-2, "x")),
            ((9, "x"), None), (None, (-9, "x")), ((2, "x"), (None, "x")), ((None, "x"), None),
        ]
    ]  # fmt: skip
    assert found == [[-2, -1, 0, 1, 2], [-1, 0, 1], [], [], [], [], [2], []]


@pytest.mark.parametrize("family", [EXPIRIES, EVENTS], ids=lambda family: family.name)
def test_timestamps_are_signed(store: Store, family: Family) -> None:
    created(store, family)
    times = [2**63 - 1, 0, -(2**63), 5, -1, 1]
    for at in times:
        store.put(("a", at), value(at), family.name)
    assert numbers(store.range_rows(("a", -(2**63)), ("a", 2**63 - 1), family.name)) == sorted(times)[:-1]
    assert numbers(store.rows(family.name)) == sorted(times)
    assert order_key(family, ("a", -1)) < order_key(family, ("a", 0))


# Names

REFUSED_NAMES = [
    ("", False, INVALID), ("", True, INVALID), (" a", False, INVALID), ("a ", True, INVALID),
    ("default", False, INVALID), ("$a", False, RESERVED), ("$a", True, None), ("_a", False, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "internal", "kind"), REFUSED_NAMES)
def test_names_that_a_family_cannot_have(instance: Open, name: str, internal: bool, kind: str | None) -> None:
    provider = instance()
    store = provider.open(0)
    refused = store.refusal("create", Family(name, internal=internal))
    assert (refused.kind if refused else None) == kind
    store.abort()
    read = provider.open_read(0)
    refused = read.refusal("register", Family(name, internal=internal))
    assert (refused.kind if refused else None) == kind
    read.release()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("default", INVALID), (" a", INVALID), ("", INVALID), ("$a", RESERVED), ("never seen", None)],
)
def test_names_that_cannot_be_removed(store: Store, name: str, kind: str | None) -> None:
    refused = store.refusal("remove_family", name)
    assert (refused.kind if refused else None) == kind


USES: dict[str, tuple[Any, ...]] = {
    "put": (A, value(1)),
    "put_list": (A, [value(1)]),
    "merge": (A, value(1)),
    "merge_list": (A, [value(1)]),
    "remove": (A,),
    "delete_range": (A, B),
    "get": (A,),
    "exists": (A,),
    "multi_get": ([A],),
    "values": (A,),
    "rows": (),
    "range_rows": (None, None),
}


def use(operation: str) -> tuple[str, tuple[Any, ...]]:
    """What a test calls for an operation or for a kind of iterator."""
    if operation in USES:
        return operation, USES[operation]
    return "scan", (operation, *((None, None) if operation.startswith("range") else (("a",),)))


def test_a_family_that_was_never_created_is_named(store: Store) -> None:
    for operation in (*USES, "prefix", "prefixValues", "rangeValues", "allValues", "reusable"):
        method, arguments = use(operation)
        refused = store.refusal(method, *arguments, family="unknown")
        assert refused is not None, operation
        assert refused.kind == MISSING
        assert "unknown" in refused.message


# What a family's declaration does not allow

LIST_USES = ["put_list", "merge", "merge_list", "values", "allValues"]
REFUSED_USES = [
    *((family, operation) for family in (Family("plain"), TIMES, MAPS) for operation in LIST_USES),
    *((Family("plain"), operation) for operation in ("prefix", "range_rows", "delete_range")),
    *((LISTS, operation) for operation in ("prefixValues", "rangeValues", "delete_range")),
    *((MAPS, operation) for operation in ("range_rows", "delete_range")),
    *((EXPIRIES, operation) for operation in ("prefix", "delete_range", "merge")),
    *((EVENTS, operation) for operation in ("delete_range", "rangeValues", "prefixValues")),
]


def test_what_a_familys_encoding_does_not_allow_is_refused(store: Store) -> None:
    allowed = []
    for family, operation in REFUSED_USES:
        created(store, family)
        method, arguments = use(operation)
        if family.key != Family.key and operation != "values":
            arguments = tuple((1, "a") if argument == A else argument for argument in arguments)
        elif family.key != Family.key:
            arguments = ((1, "a"),)
        refused = store.refusal(method, *arguments, family=family.name)
        if refused is None or refused.kind not in UNSUPPORTED:
            allowed.append((family.name, operation, refused))
    assert allowed == []


REFUSED_DECLARATIONS = [
    ("a string, b bigint", ("range", 0), "STATE_STORE_VARIABLE_SIZE_ORDERING_COLS_NOT_SUPPORTED"),
    ("b bigint, a binary", ("range", 0, 1), "STATE_STORE_VARIABLE_SIZE_ORDERING_COLS_NOT_SUPPORTED"),
    ("a void, b bigint", ("range", 0), "STATE_STORE_NULL_TYPE_ORDERING_COLS_NOT_SUPPORTED"),
    ("a bigint, b bigint", ("range",), "STATE_STORE_INCORRECT_NUM_ORDERING_COLS_FOR_RANGE_SCAN"),
    ("a bigint, b bigint", ("range", 0, 1, 0), "STATE_STORE_INCORRECT_NUM_ORDERING_COLS_FOR_RANGE_SCAN"),
    ("a bigint, b bigint", ("prefix", 0), "STATE_STORE_INCORRECT_NUM_PREFIX_COLS_FOR_PREFIX_SCAN"),
    ("a bigint, b bigint", ("prefix", 2), "STATE_STORE_INCORRECT_NUM_PREFIX_COLS_FOR_PREFIX_SCAN"),
]


@pytest.mark.parametrize(("key", "spec", "kind"), REFUSED_DECLARATIONS)
def test_keys_that_cannot_be_ordered_or_cut_are_refused(store: Store, key: str, spec: Row, kind: str) -> None:
    refused = store.refusal("create", Family("bad", key=key, spec=spec))
    assert refused is not None
    assert refused.kind == kind


@ours_alone
@pytest.mark.parametrize(
    "other",
    [
        Family("times", key=TIMES.key, spec=("prefix", 1)),
        Family("times", key=TIMES.key, spec=TIMES.spec, multiple=True),
        Family("times", key="t bigint, a string, c int", spec=TIMES.spec),
        Family("times", key=TIMES.key, spec=TIMES.spec, value="v string"),
    ],
    ids=["encoder", "values per key", "key", "value"],
)
def test_a_family_with_rows_does_not_become_another(instance: Open, other: Family) -> None:
    provider = instance()
    store = created(provider.open(0), TIMES)
    store.put((1, "a"), value(1), "times")
    for opened in (store, None):
        if opened is None:
            store.commit()
            opened = instance().open(1)
        refused = opened.refusal("create", other)
        assert refused is not None
        assert "times has range keys" in refused.message
        assert numbers(created(opened, TIMES).rows("times")) == [1]


@ours_alone
def test_a_removed_family_may_come_back_as_another(instance: Open) -> None:
    store = created(instance().open(0), TIMES)
    store.put((1, "a"), value(1), "times")
    store.commit()
    store = created(instance().open(1), TIMES)
    assert store.remove_family("times")
    again = Family("times", multiple=True)
    created(store, again).merge(A, value(2), "times")
    store.commit()
    store = created(instance().open(2), again)
    assert store.scan("allValues", family="times") == [(A, value(2))]
    assert numbers(created(instance().open(1), TIMES).rows("times")) == [1]


# Families belong to a version


def test_a_version_has_its_families_and_no_others(instance: Open) -> None:
    provider = instance()
    store = created(provider.open(0), MAPS)
    store.put(A, value(1), "maps")
    store.commit()
    store = created(provider.open(1), MAPS, LISTS)
    store.merge(A, value(2), "lists")
    assert store.families() == {"default", "maps", "lists"}
    store.commit()
    store = created(provider.open(2), MAPS, LISTS)
    assert store.remove_family("maps")
    assert not store.remove_family("maps")
    assert store.refusal("get", A, family="maps").kind == MISSING
    store.commit()
    for opened in (provider, instance()):
        found = []
        for version in (3, 2, 1, 0):
            read = opened.open_read(version)
            found.append(read.families())
            read.release()
        assert found == [{"default", "lists"}, {"default", "maps", "lists"}, {"default", "maps"}, {"default"}]


def test_a_removed_family_stays_removed(instance: Open) -> None:
    provider = instance()
    store = created(provider.open(0), MAPS, LISTS)
    for i in range(20):
        store.put(("a", i), value(i), "maps")
    store.commit()
    store = created(provider.open(1), MAPS, LISTS)
    assert store.remove_family("maps")
    assert store.commit() == 2
    store = created(instance().open(2), MAPS)
    assert store.rows("maps") == []
    store.put(A, value(1), "maps")
    store.commit()
    assert created(instance().open(3), MAPS).rows("maps") == [(A, value(1))]


def test_an_abort_undoes_everything(instance: Open) -> None:
    provider = instance()
    store = created(provider.open(0), TIMES, LISTS, MAPS)
    for i in range(5):
        store.put((i, "x"), value(i), "times")
    store.put_list(A, [value(1), value(2)], "lists")
    store.put(A, value(1), "maps")
    store.commit()
    before = None
    for end in (True, False):
        store = created(provider.open(1), TIMES, LISTS, MAPS)
        found = [
            store.rows("times"),
            store.values(A, "lists"),
            store.rows("lists"),
            store.prefix_rows("a", family="maps"),
        ]
        assert before in (None, found)
        before = found
        if end:
            created(store, Family("new")).put(A, value(1), "new")
            store.delete_range((1, "x"), (4, "x"), "times")
            store.put((9, "x"), value(9), "times")
            store.merge(A, value(3), "lists")
            store.put_list(B, [value(4)] * 3, "lists")
            store.put(("a", 2), value(5), "maps")
            assert store.remove_family("maps")
        assert store.families() == (
            {"default", "times", "lists", "new"} if end else {"default", "times", "lists", "maps"}
        )
        store.abort()


def test_a_reader_describes_families_without_making_them(instance: Open) -> None:
    provider = instance()
    created(provider.open(0), MAPS).commit()
    fresh = instance()
    read = fresh.open_read(1)
    read.register(MAPS)
    read.register(LISTS)
    read.register(LISTS)
    read.release()
    # Another store of the same provider, and nobody says again what the families are.
    read = fresh.open_read(1)
    assert read.rows("maps") == read.rows("lists") == read.values(A, "lists") == []
    read.release()
    read.release()
    read = instance().open_read(1)
    assert read.families() == {"default", "maps"}
    read.release()


# Several values per key, iterators, threads


def test_keys_are_counted_and_internal_families_are_not(instance: Open) -> None:
    store = created(instance().open(0), LISTS, MAPS, Family("$hidden", internal=True))
    store.put(A, value(1))
    store.put_list(A, [value(1)] * 5, "lists")
    store.merge(A, value(2), "lists")
    store.merge(B, value(2), "lists")
    store.put(A, value(1), "$hidden")
    store.commit()
    assert store.metrics["numKeys"] == 3


def test_values_can_be_read_while_their_key_is_written_anew(store: Store) -> None:
    created(store, LISTS)
    store.put_list(A, [value(i) for i in range(6)], "lists")
    iterator = store.open_iterator("values", A, family="lists")
    kept = []
    store.remove(A, "lists")
    while (row := iterator.next()) is not None:
        if row[0] % 2:
            store.merge(A, row, "lists")
            kept.append(row)
    assert [row[0] for row in kept] == [1, 3, 5]
    assert store.values(A, "lists") == kept
    assert store.get(A, "lists") == value(1)


def test_a_scan_of_timers_does_not_see_those_that_it_sets(store: Store) -> None:
    created(store, TIMES)
    for i in range(10):
        store.put((i, "a"), value(i), "times")
    fired = []
    timers = store.open_iterator("range", (0, ""), (8, ""), family="times")
    for (at, who), row in timers:
        fired.append(row[0])
        store.remove((at, who), "times")
        store.put((at - 20, who), value(at), "times")
        store.put((7, f"again {at}"), value(at), "times")
    assert fired == list(range(8))
    assert len(store.rows("times")) == 18
    assert timers.next() is None
    timers.close()


@pytest.mark.parametrize(
    ("family", "scan"),
    [
        (LISTS, ("allValues",)),
        (MAPS, ("prefix", ("a",))),
        (TIMES, ("range", None, None)),
        (EXPIRIES, ("range", None, None)),
        (EVENTS, ("prefix", ("a",))),
    ],
    ids=lambda given: given.name if isinstance(given, Family) else given[0],
)
def test_rows_outlive_their_keys(store: Store, family: Family, scan: Any) -> None:
    created(store, family)
    keys = [(i, "a") if family is TIMES else ("a", i) for i in range(8)]
    for i, key in enumerate(keys):
        store.put(key, value(i, "x" * 50), family.name)
    iterator = store.open_iterator(*scan, family=family.name)
    found = [iterator.next_removed() for _ in keys]
    assert sorted(found) == [(key, value(i, "x" * 50)) for i, key in enumerate(keys)]
    assert store.rows(family.name) == []


def test_one_iterator_serves_a_whole_task(store: Store) -> None:
    created(store, TIMES)
    for i in (1, 2, 3):
        store.put((i, "a"), value(i), "times")
    iterator = store.open_iterator("reusable", family="times")
    assert numbers(iterator.take(1)) == [1]
    store.put((0, "a"), value(0), "times")
    store.put((5, "a"), value(5), "times")
    assert numbers(iterator.take(9)) == [2, 3]
    found = []
    for at in (0, 3, 9, -4, None):
        iterator.seek(at)
        found.append(numbers(iterator.take(9)))
    assert found == [[0, 1, 2, 3, 5], [3, 5], [], [0, 1, 2, 3, 5], []]
    iterator.seek(3)
    store.remove((3, "a"), "times")
    assert numbers(iterator.take(9)) == [3, 5]
    iterator.seek(3)
    assert numbers(iterator.take(9)) == [5]
    iterator.close()


def test_threads_see_each_others_writes(instance: Open) -> None:
    provider = instance()
    provider.begin_task()
    store = provider.open(0)
    seen: list[Any] = []

    def state_server() -> None:
        created(store, LISTS, TIMES)
        for i in range(50):
            store.merge(A, value(i), "lists")
            store.put((i, "a"), value(i), "times")
        seen.append(len(store.values(A, "lists")))

    def state_server_again() -> None:
        seen.append(numbers(store.rows("times")))
        store.merge(A, value(50), "lists")

    for work in (state_server, state_server_again):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for (at, who), _ in store.range_rows((0, ""), (49, ""), "times"):
            store.remove((at, who), "times")
    assert seen == [50, [49]]
    assert len(store.values(A, "lists")) == 51
    store.commit()
    provider.end_task()
    assert numbers(created(instance().open(1), LISTS, TIMES).rows("times")) == [49]


@ours_alone
def test_what_a_task_leaves_open_ends_with_it(instance: Open) -> None:
    provider = instance()
    created(provider.open(0), LISTS).commit()
    provider.begin_task()
    read, store = provider.open_read(1), provider.open(1)
    store.create(MAPS)
    provider.end_task()
    assert "released" in read.refusal("rows").message
    assert "aborted" in store.refusal("rows").message
    assert provider.open_read(1).families() == {"default", "lists"}


def test_keys_of_no_bytes_and_rows_of_nothing(store: Store) -> None:
    created(store, Family("total", key="", multiple=True), Family("limit", key="k void", value="n void"))
    store.merge((), value(1), "total")
    store.merge((), value(2), "total")
    store.put((None,), (None,), "limit")
    assert store.scan("allValues", family="total") == [((), value(1)), ((), value(2))]
    assert store.rows("limit") == [((None,), (None,))]
    assert store.multi_get([(None,)] * 2, "limit") == [(None,)] * 2
    store.remove((), "total")
    assert store.rows("total") == []


def test_a_prefix_may_be_empty_or_null(store: Store) -> None:
    created(store, MAPS)
    for i, text in enumerate(["", None, "a", ""]):
        store.put((text, i), value(i), "maps")
    assert sorted(numbers(store.prefix_rows("", family="maps"))) == [0, 3]
    assert numbers(store.prefix_rows(None, family="maps")) == [1]
    assert store.prefix_rows("b", family="maps") == []


@ours_alone
def test_all_columns_may_order_in_any_sequence(store: Store) -> None:
    """Spark gives such keys back with their columns mixed up."""
    created(store, Family("mixed", key="a tinyint, b smallint", spec=("range", 1, 0)))
    for i, key in enumerate([(1, 300), (None, -300), (2, 5), (1, 5)]):
        store.put(key, value(i), "mixed")
    assert [key for key, _ in store.rows("mixed")] == [(None, -300), (1, 5), (2, 5), (1, 300)]
    assert numbers(store.prefix_rows(5, 2, family="mixed")) == [2]


@ours_alone
def test_an_empty_list_is_no_list(store: Store) -> None:
    """Spark's JVM dies of reading one."""
    created(store, LISTS)
    store.merge_list(A, [], "lists")
    assert not store.exists(A, "lists")
    store.put_list(A, [value(1)], "lists")
    store.merge_list(A, [], "lists")
    assert store.values(A, "lists") == [value(1)]
    store.put_list(A, [], "lists")
    assert store.rows("lists") == []


@ours_alone
def test_a_range_that_ends_before_it_starts_deletes_nothing(store: Store) -> None:
    """RocksDB takes no writes any more after that."""
    created(store, TIMES)
    for i in range(3):
        store.put((i, "a"), value(i), "times")
    store.delete_range((2, "a"), (0, "a"), "times")
    store.delete_range((1, "a"), (1, "a"), "times")
    assert numbers(store.rows("times")) == [0, 1, 2]


@ours_alone
def test_appends_to_a_long_list_do_not_slow_down(instance: Open) -> None:
    store = created(instance().open(0), LISTS)

    def append(count: int) -> float:
        script = store.script()
        for i in range(count):
            script.merge(A, value(i), "lists")
        started = time.perf_counter()
        script.run()
        return time.perf_counter() - started

    append(10_000)
    short = append(10_000)
    append(70_000)
    # The same number of appends behind a list that is nine times as long.
    assert append(10_000) < 5 * short + 1
    started = time.perf_counter()
    store.commit()
    assert time.perf_counter() - started < 20
    assert store.metrics["numKeys"] == 1
    found = created(instance().open(1), LISTS).values(A, "lists")
    assert len(found) == 100_000
    assert [row[0] for row in found[90_000:]] == list(range(10_000))
