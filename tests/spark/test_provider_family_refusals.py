"""Refusals of a provider with column families, this one and Spark's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.spark.families import (
    EVENTS,
    EXPIRIES,
    LISTS,
    MAPS,
    MISSING,
    TIMES,
    A,
    B,
    created,
    numbers,
    ours_alone,
    value,
)
from tests.spark.harness import Family, Open, Row, Store

INVALID = "STATE_STORE_CANNOT_USE_COLUMN_FAMILY_WITH_INVALID_NAME"
RESERVED = "STATE_STORE_CANNOT_CREATE_COLUMN_FAMILY_WITH_RESERVED_CHARS"
# Bare assertions of Spark are errors here, with the condition that Spark uses elsewhere.
UNSUPPORTED = {"IllegalStateException", "IllegalArgumentException", "STATE_STORE_UNSUPPORTED_OPERATION"}


# Names

REFUSED_NAMES = [
    ("", False, INVALID), ("", True, INVALID), (" a", False, INVALID), ("a ", True, INVALID),
    ("default", False, INVALID), ("$a", False, RESERVED), ("$a", True, None), ("_a", False, None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "internal", "kind"), REFUSED_NAMES)
def test_create_rejects_invalid_family_names(
    instance: Open, name: str, internal: bool, kind: str | None
) -> None:
    provider = instance()
    store = provider.open(0)
    refused = store.refusal("create", Family(name, internal=internal))
    assert (refused.kind if refused else None) == kind
    store.abort()
    read_store = provider.open_read(0)
    refused = read_store.refusal("register", Family(name, internal=internal))
    assert (refused.kind if refused else None) == kind
    read_store.release()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("default", INVALID), (" a", INVALID), ("", INVALID), ("$a", RESERVED), ("never seen", None)],
)
def test_remove_rejects_invalid_family_names(store: Store, name: str, kind: str | None) -> None:
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
    """Return the method and arguments that a test calls for an operation or for a kind of iterator."""
    if operation in USES:
        return operation, USES[operation]
    return "scan", (operation, *((None, None) if operation.startswith("range") else (("a",),)))


def test_missing_family_error_names_it(store: Store) -> None:
    for operation in (*USES, "prefix", "prefixValues", "rangeValues", "allValues", "reusable"):
        method, arguments = use(operation)
        refused = store.refusal(method, *arguments, family="unknown")
        assert refused is not None, operation
        assert refused.kind == MISSING
        assert "unknown" in refused.message


# Operations that a family's declaration does not allow

LIST_USES = ["put_list", "merge", "merge_list", "values", "allValues"]
REFUSED_USES = [
    *((family, operation) for family in (Family("plain"), TIMES, MAPS) for operation in LIST_USES),
    *((Family("plain"), operation) for operation in ("prefix", "range_rows", "delete_range")),
    *((LISTS, operation) for operation in ("prefixValues", "rangeValues", "delete_range")),
    *((MAPS, operation) for operation in ("range_rows", "delete_range")),
    *((EXPIRIES, operation) for operation in ("prefix", "delete_range", "merge")),
    *((EVENTS, operation) for operation in ("delete_range", "rangeValues", "prefixValues")),
]


def test_operation_unsupported_by_the_key_encoding_is_rejected(store: Store) -> None:
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
def test_unsupported_key_types_are_rejected(store: Store, key: str, spec: Row, kind: str) -> None:
    refused = store.refusal("create", Family("bad", key=key, spec=spec))
    assert refused is not None
    assert refused.kind == kind


@ours_alone
@pytest.mark.parametrize(
    "other_family",
    [
        Family("times", key=TIMES.key, spec=("prefix", 1)),
        Family("times", key=TIMES.key, spec=TIMES.spec, multiple=True),
        Family("times", key="t bigint, a string, c int", spec=TIMES.spec),
        Family("times", key=TIMES.key, spec=TIMES.spec, value="v string"),
    ],
    ids=["encoder", "values per key", "key", "value"],
)
def test_family_with_rows_rejects_another_schema(instance: Open, other_family: Family) -> None:
    provider = instance()
    store = created(provider.open(0), TIMES)
    store.put((1, "a"), value(1), "times")
    for opened in (store, None):
        if opened is None:
            store.commit()
            opened = instance().open(1)
        refused = opened.refusal("create", other_family)
        assert refused is not None
        assert "times has range keys" in refused.message
        assert numbers(created(opened, TIMES).rows("times")) == [1]


@ours_alone
def test_family_with_rows_rejects_keys_whose_columns_are_in_another_order(instance: Open) -> None:
    family = Family("pairs", key="a bigint, b bigint")
    store = created(instance().open(0), family)
    store.put((1, 2), value(1), "pairs")
    store.commit()
    opened = instance().open(1)
    refused = opened.refusal("create", Family("pairs", key="b bigint, a bigint"))
    assert refused is not None
    assert "the columns of the key are in another order" in refused.message
    # Other names are not another order.
    renamed = created(opened, Family("pairs", key="b bigint, c bigint"))
    assert numbers(renamed.rows("pairs")) == [1]


@ours_alone
def test_join_side_with_a_doubled_event_time_is_only_iterated(instance: Open) -> None:
    lists = Family("events", spec=("timestampPostfix",), multiple=True)
    # Spark's state data source declares the keys so for the option joinSide and state format 4.
    doubled = Family("events", key="a string, b bigint, t bigint", spec=lists.spec, multiple=True)
    store = created(instance().open(0), lists)
    store.put_list(A, [value(1), value(2)], "events")
    store.commit()
    provider = instance()
    read_store = provider.open_read(1)
    read_store.register(doubled)
    assert read_store.scan("allValues", family="events") == [(("a", 1, 1), value(n)) for n in (1, 2)]
    for operation, arguments in (("get", (("a", 1, 1),)), ("values", (("a", 1, 1),)), ("rows", ())):
        refused = read_store.refusal(operation, *arguments, family="events")
        assert refused is not None, operation
        assert "storeName=events" in refused.message
    upgraded = provider.upgrade(read_store, 1)
    refused = upgraded.refusal("create", doubled)
    assert refused is not None
    assert "events has timestampPostfix keys" in refused.message
