"""Tests of `write_state` on checkpoints that were written without Spark."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_statestore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    OptionError,
    RescaleError,
    RowEncodingError,
    WrittenState,
    bootstrap,
    clone,
    encode_rows,
    read_state,
    verify,
    write_state,
)
from spark_statestore.query.operators import OperatorStore, StatefulOperator
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.rows.types import parse_schema
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.writing import rows as rows_of_changes
from spark_statestore.writing.changes import StateChanges
from spark_statestore.writing.rows import Mode, require_writable
from tests.support.effort import EFFORT
from tests.support.trees import files_below
from tests.unit.query.stored_query import StoredQuery, schema

WORDS = {f"word {number}": number for number in range(40)}


@pytest.fixture(params=[1, 2])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "query", request.param, partitions=3)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    return query


def table(counts: dict[str, int]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([{"word": word} for word in counts], pa.struct([("word", pa.string())])),
            "value": pa.array([{"count": n} for n in counts.values()], pa.struct([("count", pa.int64())])),
        }
    )


def counts(path: Any) -> dict[str, int]:
    rows = read_state(str(path)).to_pylist()
    words = {row["key"]["word"]: row["value"]["count"] for row in rows}
    assert len(words) == len(rows)
    return words


def placed(path: Any) -> dict[str, int]:
    """The partition of each word."""
    return {row["key"]["word"]: row["partition_id"] for row in read_state(str(path)).to_pylist()}


def test_write_state_upserts_keys(query: StoredQuery, tmp_path: Path) -> None:
    target = tmp_path / "target"
    before = query.files()
    new = {f"new {number}": -number for number in range(20)}
    result = write_state(query.url, str(target), table({"word 1": 7, "word 2": 2} | new))
    assert result == WrittenState(batch=1, added=20, changed=2, removed=0)
    assert counts(target) == WORDS | {"word 1": 7} | new
    # Beside the mark of the hold, nothing is added.
    assert {**query.files(), **before}.keys() - before.keys() == {"state/_holds/held"}
    assert before.items() <= query.files().items()
    report = verify(str(target))
    assert not report.problems
    # Spark would have put the new words there.
    query.run(**new)
    assert placed(target) == placed(query.url)


def test_write_state_deletes_keys(query: StoredQuery, tmp_path: Path) -> None:
    query.run(**{"of a user": 12_345})
    keys = table({"word 1": 0, "of a user": 0, "never": 0})
    for number, deleted in enumerate([keys, keys.select(["key"])]):
        target = tmp_path / str(number)
        result = write_state(query.url, str(target), deleted, mode="delete")
        assert result == WrittenState(batch=2, added=0, changed=0, removed=2)
        assert counts(target) == {word: n for word, n in WORDS.items() if word != "word 1"}
        contents = files_below(target).values()
        assert any(b"word 2" in data for data in contents)
        assert not any(b"of a user" in data for data in contents)


def test_write_state_takes_what_read_state_returns(query: StoredQuery, tmp_path: Path) -> None:
    state = read_state(query.url, batch=0)
    result = write_state(query.url, str(tmp_path / "target"), state, mode="replace", batch=0)
    assert result == WrittenState(batch=0, added=0, changed=40, removed=0)
    assert counts(tmp_path / "target") == WORDS
    assert read_state(str(tmp_path / "target")).sort_by("partition_id").schema == state.schema
    assert placed(tmp_path / "target") == placed(query.url)


def test_write_state_has_its_state_elsewhere(query: StoredQuery, tmp_path: Path) -> None:
    apart, target = tmp_path / "apart", str(tmp_path / "target")
    name = json.loads((query.directory / "metadata").read_text())["id"].replace("-", "")
    shutil.copytree(query.directory / "state", apart / name)
    for partition in range(3):
        shutil.rmtree(query.directory / "state" / "0" / str(partition))
    with pytest.raises(CheckpointNotFoundError):
        write_state(query.url, target, table({"new": 1}))
    write_state(query.url, target, table({"new": 1}), checkpoints_dir=str(apart))
    assert len(list(apart.iterdir())) == 2
    rows = read_state(target, checkpoints_dir=str(apart)).to_pylist()
    assert {row["key"]["word"]: row["value"]["count"] for row in rows} == WORDS | {"word 1": 100, "new": 1}


def test_write_state_between_remote_locations(query: StoredQuery, tmp_path: Path) -> None:
    base = f"memory://{tmp_path.name}-{uuid.uuid4()}"
    clone(query.url, f"{base}/source")
    assert write_state(f"{base}/source", f"{base}/target", table({"new": 1}), memory=400).added == 1
    assert counts(f"{base}/target") == WORDS | {"word 1": 100, "new": 1}
    assert counts(f"{base}/source") == WORDS | {"word 1": 100}
    bootstrap(f"{base}/target", f"{base}/new", {0: table({"b": 2})})
    assert counts(f"{base}/new") == {"b": 2}


def test_write_state_of_no_chunks_changes_nothing(query: StoredQuery, tmp_path: Path) -> None:
    nothing = pa.Table.from_batches([], table({}).schema)
    result = write_state(query.url, str(tmp_path / "target"), nothing)
    assert result == WrittenState(batch=1, added=0, changed=0, removed=0)
    assert counts(tmp_path / "target") == WORDS | {"word 1": 100}


CHANGES = st.dictionaries(st.text(max_size=2) | st.sampled_from(list(WORDS)), st.integers(0, 9), max_size=20)


@given(
    changes=st.lists(st.tuples(st.sampled_from(get_args(Mode)), CHANGES), min_size=1, max_size=4),
    memory=st.sampled_from([400, 1 << 29]),
)
@settings(max_examples=6 * EFFORT)
def test_write_state_in_turn_equals_changes_of_a_dict(
    changes: list[tuple[Mode, dict[str, int]]], memory: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        query = StoredQuery(Path(directory) / "0", partitions=2)
        query.run(**WORDS)
        expected = dict(WORDS)
        for number, (mode, rows) in enumerate(changes):
            target = f"{directory}/{number + 1}"
            result = write_state(f"{directory}/{number}", target, table(rows), mode=mode, memory=memory)
            before = dict(expected)
            match mode:
                case "upsert":
                    expected |= rows
                case "replace":
                    expected = dict(rows)
                case "delete":
                    expected = {word: n for word, n in expected.items() if word not in rows}
            assert counts(target) == expected
            assert result.added == len(expected.keys() - before.keys())
            assert result.removed == len(before.keys() - expected.keys())
            assert result.changed == (0 if mode == "delete" else len(before.keys() & rows.keys()))


def test_write_state_puts_rows_in_partitions_from_several_chunks(query: StoredQuery, tmp_path: Path) -> None:
    new = {f"new {number}": number for number in range(50)}
    parts = [dict(list(new.items())[start : start + 7]) for start in range(0, 50, 7)]
    chunked = pa.concat_tables([table(part) for part in parts] + [table({})])
    assert write_state(query.url, str(tmp_path / "target"), chunked).added == 50
    assert counts(tmp_path / "target") == WORDS | {"word 1": 100} | new
    query.run(**new)
    assert placed(tmp_path / "target") == placed(query.url)


def test_write_state_of_large_partitions_takes_bounded_memory(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "query", partitions=1)
    large = {f"{number:04} {'x' * 10_000}": number for number in range(3000)}
    query.run(**large)
    changed = {f"0007 {'x' * 10_000}": -1, "new": 1}

    def peak(target: str, memory: int) -> int:
        pool = pa.proxy_memory_pool(pa.default_memory_pool())
        pa.set_memory_pool(pool)
        try:
            result = write_state(query.url, str(tmp_path / target), table(changed), memory=memory)
        finally:
            pa.set_memory_pool(before)
        assert result == WrittenState(batch=0, added=1, changed=1, removed=0)
        return int(pool.max_memory())

    before = pa.default_memory_pool()
    whole = peak("whole", 1 << 29)
    parts = peak("parts", 1 << 21)
    # Beside the rows held, a message is decoded, which has a tenth of them.
    assert whole > 60 << 20
    assert parts < 30 << 20
    assert counts(tmp_path / "parts") == counts(tmp_path / "whole") == large | changed
    assert not verify(str(tmp_path / "parts")).problems


def test_write_state_refuses_wrong_changes_and_leaves_no_files(query: StoredQuery, tmp_path: Path) -> None:
    good = table({"a": 1, "b": 2})
    # As unsigned numbers, these are too large.
    large = pa.array([{"count": 1}, {"count": 2**63}], pa.struct([("count", pa.uint64())]))
    wrong = {
        r"the changes have the columns 'key', but the mode 'upsert' needs 'key' and 'value'": good.select(
            ["key"]
        ),
        r"the columns 'key', 'value', 'x', but": good.append_column("x", good["key"]),
        r"the columns 'key', 'value', 'key', but": good.append_column("key", good["key"]),
        r"rows 0 and 2 of the changes have the same key": pa.concat_tables([good, good.slice(0, 1)]),
        r"row 1 of the changes has no value": good.set_column(
            1, "value", pa.array([{"count": 1}, None], good["value"].type)
        ),
        r"the column 'value' of the changes: row 1: the column 'count' has the value .* No copy": (
            good.set_column(1, "value", large)
        ),
        r"the column 'key' of the changes: the table of rows has no fields of these names: 'word'": (
            good.set_column(0, "key", good["value"])
        ),
        r"row 1 of the changes has no 'count' in its value": good.set_column(
            1, "value", pa.array([{"count": 1}, {"count": None}], good["value"].type)
        ),
        r"row 1 of the changes has no key": good.set_column(
            0,
            "key",
            pa.DictionaryArray.from_arrays(
                pa.array([0, 1]), pa.array([{"word": "a"}, None], good["key"].type)
            ),
        ),
    }
    target = tmp_path / "target"
    for message, changed in wrong.items():
        with pytest.raises(RowEncodingError, match=message):
            write_state(query.url, str(target), changed)
        assert not target.exists()


def test_write_state_refuses_wrong_arguments(query: StoredQuery, tmp_path: Path) -> None:
    target = str(tmp_path / "target")
    with pytest.raises(
        OptionError, match="the mode is 'merge', but it must be one of upsert, replace, delete"
    ):
        write_state(query.url, target, table({}), mode="merge")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="the memory is 0, but it must be at least 1 byte"):
        write_state(query.url, target, table({}), memory=0)
    with pytest.raises(CheckpointNotFoundError, match="no column family 'other'"):
        write_state(query.url, target, table({}), column_family="other")
    with pytest.raises(CheckpointExistsError, match="not empty"):
        write_state(query.url, query.url, table({}))
    assert not Path(target).exists()


def renamed(query: StoredQuery, name: str) -> None:
    path = query.directory / "state/0/_metadata/metadata"
    query.put("state/0/_metadata/metadata", path.read_text().replace("stateStoreSave", name))


@pytest.mark.parametrize("name", ["transformWithStateExec", "globalLimit"])
def test_write_state_refuses_other_operators(query: StoredQuery, tmp_path: Path, name: str) -> None:
    renamed(query, name)
    # Also if it has no such store.
    for store in ("default", "left"):
        with pytest.raises(OptionError, match=rf"operator 0 \({name}\), .* cannot be written"):
            write_state(query.url, str(tmp_path / "target"), table({}), store=store)


@pytest.mark.parametrize(
    ("setting", "value", "error"),
    [
        ("spark.sql.streaming.statefulOperator.useStrictDistribution", "false", RescaleError),
        ("spark.sql.streaming.aggregation.stateFormatVersion", "1", OptionError),
    ],
)
def test_write_state_refuses_settings_that_change_the_layout(
    query: StoredQuery, tmp_path: Path, setting: str, value: str, error: type[Exception]
) -> None:
    lines = (query.directory / "offsets/1").read_text().splitlines()
    metadata = json.loads(lines[1])
    metadata["conf"][setting] = value
    query.put("offsets/1", "\n".join([lines[0], json.dumps(metadata), *lines[2:]]))
    with pytest.raises(error, match=f"{setting}={value}"):
        write_state(query.url, str(tmp_path / "target"), table({}))


def test_keys_of_an_aggregation_are_normalized() -> None:
    doubles = {"type": "array", "elementType": "double", "containsNull": True}
    kind = parse_schema(schema(a=doubles, b="float"))
    other_nan = np.array([0x7FF8 << 48 | 1], "<u8").view("<f8")[0]

    def require(double: float, single: float) -> None:
        keys = pa.StructArray.from_arrays(
            [pa.array([[None, double]], pa.list_(pa.float64())), pa.array([single], pa.float32())], ["a", "b"]
        )
        rows_of_changes._require_normalized(keys, kind)

    require(0.0, 1.5)
    require(float("nan"), float("nan"))
    for double, single in ((-0.0, 0.0), (other_nan, 0.0), (1.0, -0.0)):
        with pytest.raises(RowEncodingError, match=r"a key of the changes has -0\.0, or a NaN"):
            require(double, single)


@pytest.mark.parametrize(
    ("total", "is_empty", "is_refused"), [(None, True, True), (None, False, False), (0, True, False)]
)
def test_sum_of_no_decimals_is_zero(total: int | None, is_empty: bool, is_refused: bool) -> None:
    buffers = schema(sum="decimal(20,2)", isEmpty="boolean")
    row = {"sum": None if total is None else Decimal(total), "isEmpty": is_empty}
    values = encode_rows(pa.array([row], parse_schema(buffers).arrow), buffers)
    state = ColumnFamily("default", 0, buffers, buffers, "hash", 0)

    def require() -> None:
        rows_of_changes._require_filled_buffers(pa.chunked_array([values]), state, 0, 0)

    if is_refused:
        with pytest.raises(RowEncodingError, match="row 0 of the changes has no 'sum'"):
            require()
    else:
        require()


def test_keys_with_maps_are_refused() -> None:
    node = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    maps = {"type": "array", "elementType": node, "containsNull": True}
    with pytest.raises(OptionError, match="the key of the state has a map"):
        rows_of_changes._require_no_map(parse_schema(schema(a=maps)))


def described(kind: str, **properties: Any) -> tuple[StatefulOperator, ColumnFamily]:
    """An operator of transformWithState with one variable, and its column family."""
    state = ColumnFamily("count", 0, schema(n="long"), schema(n="long"), "hash", 0, created_at_version=1)
    variables = [{"stateName": "count", "stateVariableType": kind, **properties}]
    node = {"operatorPropertiesJson": json.dumps({"stateVariables": variables})}
    stores = (OperatorStore("default", 0, 1),)
    return StatefulOperator(0, "transformWithStateExec", stores, "v2", node), state


def test_variable_that_a_partition_lacks_is_added_to_it() -> None:
    operator, state = described("ValueState", ttlEnabled=False)
    rows = pa.array([{"n": 1}], pa.struct([("n", pa.int64())]))
    changes = StateChanges(
        [pa.table([rows, rows], ["key", "value"])], "upsert", operator, "default", state, 1
    )
    changed = changes.apply(StoreSnapshot(StoreId(0, 0, "default"), (), lambda: iter(())))
    assert changed.column_families == (state,)
    ((name, rows_of_family),) = changed.rows()
    assert (name, rows_of_family.num_rows) == ("count", 1)


@pytest.mark.parametrize(
    ("kind", "properties"),
    [("ValueState", {}), ("ListState", {"ttlEnabled": False}), ("OtherState", {"ttlEnabled": False})],
)
def test_variables_of_unknown_kinds_are_refused(kind: str, properties: dict[str, bool]) -> None:
    operator, state = described(kind, **properties)
    with pytest.raises(OptionError, match=r"'count' of operator 0 .* cannot be written"):
        require_writable(operator, "default", state)
