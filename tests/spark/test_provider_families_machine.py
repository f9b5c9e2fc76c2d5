"""Column families of every kind against sorted dicts, on this provider and on Spark's own."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import Bundle, consumes, initialize, multiple, precondition, rule

from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from tests.spark.families_model import (
    FamilyModel,
    column_types,
    families_of,
    order_key,
    prefix_of,
)
from tests.spark.harness import ROCKSDB, Family, Row, RowIterator, Script, Store
from tests.spark.versions_machine import VersionsMachine, run_machine


def double(value: float) -> int:
    return struct.unpack("<q", struct.pack("<d", value))[0]


def single(value: float) -> int:
    return struct.unpack("<i", struct.pack("<f", value))[0]


# Few of each, so that operations meet earlier ones on the same key.
COLUMNS: dict[str, list[Any]] = {
    "void": [None],
    "string": [None, "", "größe"],
    "binary": [None, "", "00ff"],
    "tinyint": [None, -1, 5],
    "smallint": [None, -300, 300],
    "bigint": [None, -(2**63), -1, 0, 1, 2**63 - 1],
    "float": [None, *(single(v) for v in (float("-inf"), -0.0, 0.0, 1.5))],
    "double": [None, *(double(v) for v in (float("-inf"), -1.5, -0.0, 0.0, float("nan"))), -1],
}
DECLARATIONS = [
    ("", ("none",)),
    ("k void", ("none",)),
    ("a string, b bigint", ("none",)),
    ("a string, b bigint", ("prefix", 1)),
    ("a tinyint, b binary, c string", ("prefix", 2)),
    ("t bigint, a string", ("range", 0)),
    ("a string, d double, s smallint", ("range", 1, 2)),
    ("f float, a binary, b tinyint", ("range", 2, 0)),
    ("a tinyint, b smallint", ("range", 0, 1)),
    ("a string, t bigint", ("timestampPrefix",)),
    ("a string, b binary, t bigint", ("timestampPostfix",)),
]
# With a $ in front a family is internal.
NAMES = ["one", "two", "$three"]
# Some are larger than the limit inside metadata, and a few so large that the rows of a removed family
# stay in the chain.
values = st.tuples(st.integers(0, 9), st.sampled_from([None, "", "x", 1_500, 120_000]))

# A second thread besides the task's, like that of Spark's Python state server.
_second_thread = ThreadPoolExecutor(1)


def keys(family: Family) -> st.SearchStrategy[Row]:
    pools = [COLUMNS[kind] for kind in column_types(family.key)]
    if family.spec[0].startswith("timestamp"):
        pools[-1] = [value for value in pools[-1] if value is not None]
    return st.tuples(*map(st.sampled_from, pools))


@st.composite
def families(draw: st.DrawFn, name: str) -> Family:
    key, spec = draw(st.sampled_from(DECLARATIONS))
    internal = name.startswith("$") or draw(st.booleans())
    return Family(name, key=key, spec=spec, multiple=draw(st.booleans()), internal=internal)


@st.composite
def scans(draw: st.DrawFn, model: FamilyModel) -> Row:
    """Generate a kind of iterator that the family supports, and its arguments."""
    kinds = ["all"]
    kinds += ["prefix"] if model.scans_prefixes else []
    kinds += ["range", "range"] if model.scans_ranges else []
    if model.family.multiple:
        kinds += [kind + "Values" for kind in kinds] + ["values"]
    kind = draw(st.sampled_from(kinds))
    key = keys(model.family)
    if kind.startswith("range"):
        start, end = draw(st.none() | key), draw(st.none() | key)
        if model.family.spec[0] == "timestampPostfix":
            # Between timestamps of one key; ranges across keys are undefined.
            bound = draw(key)
            start, end = (*bound[:-1], start[-1] if start else -(2**63)), (*bound[:-1], end[-1] if end else 0)
        return (kind, start, end)
    if kind.startswith("prefix"):
        return (kind, prefix_of(model.family, draw(key)))
    return (kind, draw(key)) if kind == "values" else (kind,)


@dataclass
class Opened:
    """An open iterator, and its expected remaining rows."""

    store: Store
    iterator: RowIterator
    model: FamilyModel
    kind: str
    expected: list[Any]

    def check(self, rows: list[Any], limit: int) -> None:
        assert len(rows) == min(limit, len(self.expected))
        for row in rows:
            assert row == self.expected.pop(self.position(row))

    def position(self, row: Any) -> int:
        """Return the position of a valid next row in its group."""
        if self.kind == "values":
            return 0
        return [self.model.group(key) for key, _ in self.expected].index(self.model.group(row[0]))


Check = Callable[[Any], None]


def wants(expected: Any) -> Check:
    def check(result: Any) -> None:
        assert result == expected

    return check


def wants_scan(model: FamilyModel, *scan: Any) -> Check:
    then = FamilyModel(model.family, dict(model.lists))

    def check(result: Any) -> None:
        assert then.gives(result, *scan)

    return check


class FamiliesMachine(VersionsMachine):
    """Creates, fills, reads and removes column families in every version of a store."""

    iterators = Bundle("iterators")

    def __init__(self) -> None:
        super().__init__()
        # RocksDB keeps a name's first encoder, also when the family is removed and created again.
        self.declared: dict[str, Family] = {}
        # Nor does it count rows deleted by a range.
        self.uncounted = False

    def number_of_keys(self) -> int | None:
        if self.uncounted and not self.is_statestore:
            return None
        return sum(len(model.lists) for model in self.content.values() if not model.family.internal)

    def check_all(self, store: Store, content: dict[str, FamilyModel], *, writing: bool) -> None:
        script = store.script()
        for name, model in content.items():
            if name != "default" and writing:
                script.create(model.family)
            elif name != "default":
                script.register(model.family)
        declared = len(content) - 1
        script.families()
        scans = [(model, scan) for model in content.values() for scan in self.whole_scans(model)]
        for model, scan in scans:
            script.scan(*scan, family=model.family.name)
        names, *results = script.run()[declared:]
        assert names == set(content)
        for (model, scan), rows in zip(scans, results, strict=True):
            assert model.gives(rows, *scan)

    def whole_scans(self, model: FamilyModel) -> list[Row]:
        end = "Values" if model.family.multiple else ""
        if model.scans_ranges and model.family.spec[0] != "timestampPostfix":
            return [("all",), ("range" + end, None, None)]
        return [("all" + end,)]

    # Families

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def create(self, data: st.DataObject, name: str) -> None:
        if name in self.content:
            family = self.content[name].family
        else:
            family = data.draw(families(name))
            if not self.is_statestore:
                family = self.declared.setdefault(name, family)
            self.content |= families_of(family)
        self.store.create(family)

    @precondition(lambda self: self.store is not None)
    @rule(name=st.sampled_from([name for name in NAMES if not name.startswith("$")]))
    def remove_family(self, name: str) -> None:
        assert self.store.remove_family(name) == (self.content.pop(name, None) is not None)

    # Rows

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), elsewhere=st.booleans())
    def work(self, data: st.DataObject, elsewhere: bool) -> None:
        """Run some operations on one family in one call, on the task's thread or on another."""
        self.work_on(self.draw_family(data), data, elsewhere=elsewhere)

    def draw_family(self, data: st.DataObject) -> FamilyModel:
        return self.content[data.draw(st.sampled_from(sorted(self.content)))]

    def work_on(self, model: FamilyModel, data: st.DataObject, *, elsewhere: bool = False) -> None:
        script = self.store.script()
        checks = [self.operate(data, model, script) for _ in range(data.draw(st.integers(1, 8)))]
        results = _second_thread.submit(script.run).result() if elsewhere else script.run()
        for check, result in zip(checks, results, strict=True):
            check(result)

    def operate(self, data: st.DataObject, model: FamilyModel, script: Script) -> Check:
        """Add one operation to the model and the script; return the check of its result."""
        name = model.family.name
        kinds = ["put", "put", "put", "remove", "get", "exists", "multi_get", "scan", "scan"]
        kinds += ["merge", "merge", "merge_list", "put_list"] if model.family.multiple else []
        kinds += ["delete_range"] if model.family.spec[0] == "range" else []
        kind = data.draw(st.sampled_from(kinds))
        key = data.draw(keys(model.family))
        if kind in ("put", "merge"):
            value = data.draw(values)
            getattr(script, kind)(key, value, name)
            (model.put if kind == "put" else model.append)(key, value)
        elif kind in ("put_list", "merge_list"):
            several = data.draw(st.lists(values, min_size=1, max_size=4))
            getattr(script, kind)(key, several, name)
            (model.put if kind == "put_list" else model.append)(key, *several)
        elif kind == "remove":
            script.remove(key, name)
            model.remove(key)
        elif kind == "delete_range":
            # RocksDB is permanently broken by an end before the start.
            bounds = sorted((key, data.draw(keys(model.family))), key=lambda k: order_key(model.family, k))
            script.delete_range(*bounds, name)
            model.delete_range(*bounds)
            self.uncounted = True
        elif kind == "get":
            script.get(key, name)
            return wants(model.get(key))
        elif kind == "exists":
            script.exists(key, name)
            return wants(key in model.lists)
        elif kind == "multi_get":
            several = [key, *data.draw(st.lists(keys(model.family), max_size=3))]
            script.multi_get(several, name)
            return wants([model.get(k) for k in several])
        else:
            scan = data.draw(scans(model))
            script.scan(*scan, family=name)
            return wants_scan(model, *scan)
        return wants(None)

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data())
    def churn(self, data: st.DataObject) -> None:
        # Enough dead bytes for a compaction when the store is opened next.
        model = self.draw_family(data)
        key = data.draw(keys(model.family))
        script = self.store.script()
        for i in range(12):
            script.put(key, (i, 60_000), model.family.name)
        script.put(key, (0, "small"), model.family.name)
        script.run()
        model.put(key, (0, "small"))

    @precondition(lambda self: self.store is None)
    @rule(data=st.data(), name=st.sampled_from(NAMES), checks=st.booleans(), recreate=st.booleans())
    def batch(self, data: st.DataObject, name: str, checks: bool, recreate: bool) -> None:
        # The usual batch of a query in one step, so that runs reach many versions.
        self.open_newest()
        if recreate and not name.startswith("$"):
            self.remove_family(name)
        self.create(data, name)
        self.work_on(self.draw_family(data), data)
        self.work_on(self.draw_family(data), data)
        if checks:
            self.check_all(self.store, self.content, writing=True)
        self.commit()

    # Iterators that stay open while the store is written to

    @precondition(lambda self: self.store is not None)
    @rule(target=iterators, data=st.data())
    def open_iterator(self, data: st.DataObject) -> Opened:
        return self.opened(self.draw_family(data), data)

    def opened(self, model: FamilyModel, data: st.DataObject) -> Opened:
        kind, *arguments = data.draw(scans(model))
        iterator = self.store.open_iterator(kind, *arguments, family=model.family.name)
        return Opened(self.store, iterator, model, kind, model.scan(kind, *arguments))

    @rule(
        target=iterators,
        opened=consumes(iterators),
        limit=st.sampled_from([1, 2, 99]),
        remove=st.booleans(),
        overwrite=st.booleans(),
    )
    def step(self, opened: Opened, limit: int, remove: bool, overwrite: bool) -> Any:
        if opened.store is not self.store:
            # Its store was committed or aborted: it is no longer used.
            opened.iterator.close()
            return multiple()
        self.advance(opened, limit, remove=remove, overwrite=overwrite)
        return opened

    def advance(self, opened: Opened, limit: int, *, remove: bool, overwrite: bool = False) -> None:
        # A removed family has no keys to remove.
        if remove and opened.kind != "values" and self.content.get(opened.model.family.name) is opened.model:
            rows = opened.iterator.take_removed(limit)
            for key, _ in rows:
                opened.model.remove(key)
        elif overwrite and opened.kind != "values":
            rows = opened.iterator.take_overwritten(limit)
        else:
            rows = opened.iterator.take(limit)
        opened.check(rows, limit)

    @precondition(lambda self: self.store is not None)
    @rule(data=st.data(), remove=st.booleans())
    def write_while_iterating(self, data: st.DataObject, remove: bool) -> None:
        model = self.draw_family(data)
        opened = self.opened(model, data)
        self.work_on(model, data)
        self.advance(opened, 1, remove=remove)
        later = self.opened(model, data)
        self.work_on(model, data)
        self.advance(opened, 99, remove=remove)
        self.advance(later, 99, remove=False)
        for used in (opened, later):
            used.iterator.close()


class LargeStateMachine(FamiliesMachine):
    """A state that is so large that its changes are merged into runs in the background."""

    keeps_copies = True
    runs = 0

    @initialize()
    def start(self) -> None:
        super().start()
        self.open_newest()
        # More keys than the other rules know, so that they stay.
        self.change([((f"filling {number}", number), (number, 120_000)) for number in range(8)])
        self.commit()
        # The fourth small batch after a base is merged with those before.
        for number in range(5):
            self.open_newest()
            self.change([(("filling 0", 0), (number, ""))])
            self.commit()
            self.provider.snapshot()

    def change(self, rows: list[tuple[Row, Row | None]]) -> None:
        """Put rows into the default family, or remove those without a value."""
        model, script = self.content["default"], self.store.script()
        for key, value in rows:
            if value is None:
                script.remove(key)
                model.remove(key)
            else:
                script.put(key, value)
                model.put(key, value)
        script.run()

    @precondition(lambda self: self.store is None)
    @rule(data=st.data(), numbers=st.lists(st.none() | st.integers(0, 9), min_size=3, max_size=8))
    def batches(self, data: st.DataObject, numbers: list[int | None]) -> None:
        """Commit several small batches, of which the last ones may be merged."""
        for place, number in enumerate(numbers):
            self.open_newest()
            key = data.draw(keys(self.default))
            if number is not None and place % 4 == number % 4:
                # After two of them a batch begins with a compaction, which moves all records.
                self.change([(key, (i, 60_000)) for i in range(12)])
            self.change([(key, None if number is None else (number, ""))])
            self.commit()
        self.provider.snapshot()

    @precondition(lambda self: self.store is not None)
    @rule()
    def commit(self) -> None:
        super().commit()
        version = max(self.committed)
        store = StoreDirectory(StoreId(0, 0), f"file:{self.location}/state/0/0", StorageOptions())
        handle = store.load(CheckpointName(version, self.ids[version])).handle
        LargeStateMachine.runs += any(entry.since is not None for entry in handle)


HASH, PREFIX, RANGE, POSTFIX = (DECLARATIONS[number] for number in (2, 3, 5, 10))
MEMORY = {"backend__storage": "memory"}
ROCKSDB_SETTINGS = {
    "rocksdb__changelogCheckpointing__enabled": "true",
    "rocksdb__lockAcquireTimeoutMs": "1000",
    "minDeltasForSnapshot": "2",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("default", "multiple", "checkpoint_format", "storage"),
    [
        pytest.param(HASH, False, 1, {}, id="hash-v1", marks=pytest.mark.first),
        pytest.param(RANGE, True, 2, {}, id="range-v2"),
        pytest.param(POSTFIX, True, 2, {}, id="postfix-v2"),
        pytest.param(RANGE, False, 1, MEMORY, id="memory-v1", marks=pytest.mark.soak),
        pytest.param(HASH, False, 2, MEMORY, id="memory-v2", marks=pytest.mark.soak),
    ],
)
def test_families_equal_sorted_dicts(
    spark: Any, default: Any, multiple: bool, checkpoint_format: int, storage: dict[str, str]
) -> None:
    key, spec = default
    run_machine(
        FamiliesMachine,
        5,
        spark=spark,
        checkpoint_format=checkpoint_format,
        default=Family(key=key, spec=spec, multiple=multiple),
        settings=storage,
    )


# Spark's version is pinned.
@pytest.mark.soak
@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_rocksdb_families_equal_sorted_dicts(spark: Any, checkpoint_format: int) -> None:
    """Check the model against Spark's own provider, whose behaviour is the contract."""
    run_machine(
        FamiliesMachine,
        3,
        spark=spark,
        provider_class=ROCKSDB,
        checkpoint_format=checkpoint_format,
        default=Family(key=RANGE[0], spec=RANGE[1]),
        settings=ROCKSDB_SETTINGS,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("default", "checkpoint_format"), [(PREFIX, 1), (HASH, 2)], ids=["prefix-v1", "hash-v2"]
)
def test_families_with_runs_equal_sorted_dicts(spark: Any, default: Any, checkpoint_format: int) -> None:
    LargeStateMachine.runs = 0
    run_machine(
        LargeStateMachine,
        4,
        spark=spark,
        checkpoint_format=checkpoint_format,
        default=Family(key=default[0], spec=default[1]),
        # Without compression the base stays larger than the changes.
        settings={"backend__compression": "none"},
    )
    assert LargeStateMachine.runs > 5
