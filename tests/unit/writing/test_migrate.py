"""Tests of `migrate` on checkpoints that were written without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_statestore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    OptionError,
    RowEncodingError,
    migrate,
    verify,
)
from spark_statestore.query.operators import OperatorStore, StatefulOperator
from spark_statestore.store.metadata import ColumnFamily
from spark_statestore.writing.operator_matches import KeyedState, is_same_state, matched_operators
from tests.unit.query.stored_query import StoredQuery, schema
from tests.unit.writing.test_write import WORDS, counts, placed

WATERMARK = 1_714_564_800_000


in_both_formats = pytest.mark.parametrize("old", [1, 2], indirect=True)


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    """A query of three batches, with a watermark."""
    query = StoredQuery(tmp_path / "old", getattr(request, "param", 2), partitions=3)
    query.run(**WORDS)
    query.run(**{"word 1": 100})
    query.run(**{"word 2": 200})
    commit = query.directory / "commits/2"
    query.put("commits/2", commit.read_text().replace(": 0", f": {WATERMARK}", 1))
    return query


@pytest.fixture
def new(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    return begun(tmp_path / "new", getattr(request, "param", 2), 3)


def begun(directory: Path, form: int, partitions: int) -> StoredQuery:
    """The changed query after a run of its own."""
    query = StoredQuery(directory, form, partitions)
    query.run(sample=1)
    return query


def entry(location: Any, log: str, batch: int) -> list[str]:
    return Path(location, log, str(batch)).read_text().splitlines()


@in_both_formats
@pytest.mark.parametrize("partitions", [3, 2])
def test_state_logs_and_sources_are_the_old_ones(old: StoredQuery, tmp_path: Path, partitions: int) -> None:
    started = begun(tmp_path / "new", 2, partitions)
    target = tmp_path / "target"
    before = old.files()
    migration = migrate(old.url, started.url, str(target))
    assert (migration.batch, migration.states[0].keys, migration.dropped) == (2, 40, ())
    # Rows of other partitions are not taken as they are.
    assert bool(migration.states[0].columns) == (partitions != 3)
    assert counts(target) == old.state()
    # Spark would have put the words there.
    words = StoredQuery(tmp_path / "words", 2, partitions)
    words.run(**old.state())
    assert placed(target) == placed(words.url)
    assert not verify(str(target)).problems
    assert json.loads(entry(target, "commits", 2)[1])["nextBatchWatermarkMs"] == WATERMARK
    offsets = entry(target, "offsets", 2)
    assert offsets[2] == entry(old.url, "offsets", 2)[2]
    assert json.loads(offsets[1])["conf"] == {"spark.sql.shuffle.partitions": str(partitions)}
    assert sorted(path.name for path in (target / "sources/0").iterdir()) == ["0", "1", "2"]
    assert before.items() <= old.files().items()


@in_both_formats
@pytest.mark.parametrize("new", [1, 2], indirect=True)
def test_format_of_checkpoints_is_the_new_query_s(old: StoredQuery, new: StoredQuery, tmp_path: Path) -> None:
    migrate(old.url, new.url, str(tmp_path / "target"))
    commit = json.loads(entry(tmp_path / "target", "commits", 2)[1])
    assert ("stateUniqueIds" in commit) == (new.format == 2)
    assert counts(tmp_path / "target") == old.state()


def test_batch_is_chosen(old: StoredQuery, new: StoredQuery, tmp_path: Path) -> None:
    assert migrate(old.url, new.url, str(tmp_path / "target"), batch=1).batch == 1
    assert counts(tmp_path / "target") == WORDS | {"word 1": 100}
    assert not (tmp_path / "target/offsets/2").exists()


def double(rows: pa.RecordBatch) -> Any:
    return pc.multiply(rows["value"].field("count"), 2)


@pytest.mark.parametrize(
    ("values", "word_1"),
    [
        (pc.field("value", "count") * 2, 200),
        ("value.count * 2", 200),
        (double, 200),
        (7, 7),
        (None, None),
        (pa.scalar(7, pa.int8()), 7),
    ],
)
def test_columns_have_the_values_that_are_given(
    old: StoredQuery, new: StoredQuery, tmp_path: Path, values: Any, word_1: int | None
) -> None:
    if word_1 is None:
        with pytest.raises(RowEncodingError, match="has no 'count' in its value"):
            migrate(old.url, new.url, str(tmp_path / "target"), columns={0: {"value.count": values}})
        return
    migration = migrate(old.url, new.url, str(tmp_path / "target"), columns={0: {"value.count": values}})
    assert counts(tmp_path / "target")["word 1"] == word_1
    assert str(migration).startswith(
        "batch 2\noperator 0, default: 40 keys of operator 0, default\n    key.word"
    )


def short(rows: pa.RecordBatch) -> Any:
    return [1] * (rows.num_rows // 2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": {0: {"value.count": "value.total"}}}, OptionError, "cannot be evaluated"),
        ({"columns": {0: {"value.count": "1), (2"}}}, OptionError, "single expression"),
        ({"columns": {0: {"value.count": pc.field("total")}}}, OptionError, "cannot be evaluated"),
        ({"columns": {0: {"value.count": pc.field("key", "word")}}}, RowEncodingError, "its type int64"),
        ({"columns": {0: {"value.count": 1.5}}}, RowEncodingError, "its type int64"),
        ({"columns": {0: {"value.count": short}}}, RowEncodingError, "short.* has returned"),
        ({"columns": {0: {"value.count": [1]}}}, OptionError, "are a list"),
        ({"columns": {0: {"value.total": 1}}}, OptionError, "it has key.word, value.count"),
        ({"columns": {0: {"key.word": pa.scalar("a")}}}, RowEncodingError, "40 keys .* are 1"),
        ({"columns": {1: {"value.count": 1}}}, OptionError, "no stateful operator 1, it has 0"),
        ({"columns": {(0, "sum"): {"value.count": 1}}}, OptionError, "has no state 'sum', it has default"),
        ({"columns": {0: {"value.count": 1}, (0, "default"): {}}}, OptionError, "twice"),
        ({"columns": {0: {"value.count": "sum(value.count) over ()"}}}, OptionError, "cannot be evaluated"),
        ({"columns": {0: {"value.count": 10**30}}}, RowEncodingError, "its type int64"),
        ({"columns": {0: {"value.count": pa.scalar([1])}}}, RowEncodingError, "its type int64"),
        ({"columns": {0: 5}}, OptionError, "the columns is a int"),
        ({"drop": None}, OptionError, "must be a list"),
        ({"drop": "0"}, OptionError, "must be a list"),
        ({"states": {0: "default"}}, OptionError, "the name of a variable"),
        ({"states": {(0, "a", 1): "default"}}, OptionError, "must be for an operator"),
        ({"memory": 0}, OptionError, "at least 1 byte"),
        (
            {"operators": {0: None}, "drop": [0], "columns": {0: {"value.count": 1}}},
            OptionError,
            "starts without state",
        ),
        ({"columns": {"0": {}}}, OptionError, "must be for an operator"),
        ({"columns": [1]}, OptionError, "the columns is a list"),
        ({"states": {(0, "default"): "other"}}, OptionError, "has no state 'other'"),
        ({"states": {(0, "other"): None}}, OptionError, "has no state 'other'"),
        ({"states": {(0, "default"): None}}, OptionError, "40 keys, and operator 0 .* no such state"),
        ({"operators": {1: 0}}, OptionError, "the new query has no stateful operator 1"),
        ({"operators": {0: 3}}, OptionError, "the old query has no stateful operator 3"),
        ({"operators": {0: None}}, OptionError, "no operator of the new query takes .* 40 keys"),
        ({"drop": [0]}, OptionError, "operators={0: None}, too"),
        ({"drop": [4]}, OptionError, "no state 4 to drop"),
        ({"drop": [(0, "sum")]}, OptionError, "no state .* to drop"),
        ({"batch": 7}, CheckpointNotFoundError, "batch 7"),
    ],
)
def test_wrong_arguments_leave_nothing(
    old: StoredQuery, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    new = begun(tmp_path / "new", 2, 3)
    before = [query.files() for query in (old, new)]
    with pytest.raises(error, match=message):
        migrate(old.url, new.url, str(tmp_path / "target"), **arguments)
    assert not (tmp_path / "target").exists()
    for query, files in zip((old, new), before, strict=True):
        assert files.items() <= query.files().items()


def test_errors_of_functions_name_the_column(old: StoredQuery, new: StoredQuery, tmp_path: Path) -> None:
    def broken(rows: pa.RecordBatch) -> Any:
        return rows["val"]

    with pytest.raises(KeyError) as error:
        migrate(old.url, new.url, str(tmp_path / "target"), columns={0: {"value.count": broken}})
    assert "computes the new column 'value.count'" in error.value.__notes__[0]


@pytest.mark.parametrize("query", ["old", "new"])
def test_target_is_in_neither_checkpoint(tmp_path: Path, query: str) -> None:
    old, new = (begun(tmp_path / name, 2, 3) for name in ("old", "new"))
    with pytest.raises(CheckpointExistsError, match="is inside its source"):
        migrate(old.url, new.url, str(tmp_path / query / "target"))


def test_state_is_dropped_if_that_is_said(old: StoredQuery, new: StoredQuery, tmp_path: Path) -> None:
    migration = migrate(old.url, new.url, str(tmp_path / "target"), operators={0: None}, drop=[0])
    assert migration.dropped == (("operator 0 (stateStoreSave)", 40),)
    assert migration.states[0].taken_from is None
    assert "operator 0, default: starts empty\ndropped: operator 0 (stateStoreSave), 40 keys" in str(
        migration
    )
    assert counts(tmp_path / "target") == {}


@pytest.mark.parametrize("dry_run", [True, False])
def test_target_must_be_empty(old: StoredQuery, new: StoredQuery, tmp_path: Path, dry_run: bool) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target/file").touch()
    with pytest.raises(CheckpointExistsError):
        migrate(old.url, new.url, str(tmp_path / "target"), dry_run=dry_run)


def test_dry_run_reads_all_and_writes_nothing(old: StoredQuery, new: StoredQuery, tmp_path: Path) -> None:
    before = [query.files() for query in (old, new)]
    target = str(tmp_path / "target")
    migration = migrate(old.url, new.url, target, columns={0: {"value.count": double}}, dry_run=True)
    assert migration.states[0].columns == (("key.word", "key.word"), ("value.count", "double(...)"))
    with pytest.raises(RowEncodingError, match=r"short.* has returned"):
        migrate(old.url, new.url, target, columns={0: {"value.count": short}}, dry_run=True)
    assert [query.files() for query in (old, new)] == before
    assert not Path(target).exists()


class Latin1Query(StoredQuery):
    """A query of one partition whose words are not UTF-8."""

    def partition_rows(self, partition: int, counts: Any) -> dict[bytes, bytes]:
        rows = super().partition_rows(0, counts)
        return {key.replace(b"word", b"w\xf6rd"): value for key, value in rows.items()}


@pytest.mark.parametrize(
    ("version", "before", "after", "message"),
    [
        ("v1", ['{"orders":{"0":1}}'], ['{"orders":{"0":9,"1":2}}'], None),
        ("v1", ['{"orders":{"0":1}}'], ['{"clicks":{"0":9}}'], "another kind or topic"),
        ("v1", ["-"], ['{"clicks":{"0":9}}'], None),
        ("v1", ['{"logOffset":0}'], 2 * ['{"logOffset":0}'], "reads the sources 0, and the new one 0, 1"),
        ("v1", ['{"logOffset":0}'], ['{"orders":{"0":1}}'], "the source 0 of the new query has the offset"),
        ("v1", ['{"logOffset":0}'], ["5"], "the source 0 of the new query has the offset 5"),
        ("v1", ["7", '{"a":{"0":1}}'], ['{"a":{"0":1}}', "7"], "another kind or topic"),
        ("v2", ['b:{"o":{"0":1}}', "a:7"], ["a:9", 'b:{"o":{"0":1}}'], None),
        ("v2", ["a:7"], ["b:7"], "reads the sources a, and the new one b"),
        ("v2", ["a:7"], ['a:{"o":{"0":1}}'], "another kind or topic"),
    ],
)
def test_sources_go_on_where_they_are_alike(
    tmp_path: Path, version: str, before: list[str], after: list[str], message: str | None
) -> None:
    old, new = (begun(tmp_path / name, 2, 3) for name in ("old", "new"))
    for query, lines in ((old, before), (new, after)):
        query.put("offsets/0", "\n".join([version, entry(query.url, "offsets", 0)[1], *lines]))
    if message is not None:
        with pytest.raises(OptionError, match=message):
            migrate(old.url, new.url, str(tmp_path / "target"))
        return
    migrate(old.url, new.url, str(tmp_path / "target"))
    assert entry(tmp_path / "target", "offsets", 0)[2:] == before


def test_strings_that_are_not_utf_8_are_not_changed(tmp_path: Path) -> None:
    old = Latin1Query(tmp_path / "old", 2, 1)
    old.run(word=1, other=2)
    # As they are, strings stay what they are.
    migrate(old.url, begun(tmp_path / "same", 2, 1).url, str(tmp_path / "target"))
    assert counts(tmp_path / "target") == {"w\ufffdrd": 1, "other": 2}
    new = begun(tmp_path / "new", 2, 2)
    with pytest.raises(
        RowEncodingError, match="1 of 2 rows have a key that Arrow does not represent exactly"
    ):
        migrate(old.url, new.url, str(tmp_path / "other target"))
    assert not (tmp_path / "other target").exists()


class Described(KeyedState):
    """An operator of a name and key columns, without a checkpoint."""

    def __init__(self, number: int, name: str, *keys: str, value: str = "long") -> None:
        operator = StatefulOperator(number, name, (OperatorStore("default", 0, 1),), "v2", {})
        super().__init__(None, 0, operator)  # type: ignore[arg-type]
        key = schema(**dict.fromkeys(keys, "string"))
        family = ColumnFamily("default", 1, key, schema(v=value), "hash", 0)
        self.__dict__["families"] = {("default", "default"): family}


def matched(old: list[Described], new: list[Described], operators: Any = None) -> dict[int, int | None]:
    matches = matched_operators(old, new, operators or {})
    return {number: None if state is None else state.operator.id for number, state in matches.items()}


def test_operators_are_matched_by_kind_and_key() -> None:
    counted, distinct = Described(0, "stateStoreSave", "k"), Described(1, "dedupe", "k")
    assert matched([counted], [distinct, Described(2, "stateStoreSave", "k", "c")]) == {1: None, 2: 0}
    by_a, by_b = Described(0, "dedupe", "a"), Described(1, "dedupe", "b")
    assert matched([by_a, by_b], [Described(0, "dedupe", "b"), Described(1, "dedupe", "a")]) == {0: 1, 1: 0}
    assert matched([by_a, by_b], [Described(0, "dedupe", "c"), Described(1, "dedupe", "a")]) == {0: 1, 1: 0}
    assert matched([by_a], [Described(0, "dedupe", "c"), Described(1, "dedupe", "a")]) == {0: None, 1: 0}
    twins = [Described(0, "dedupe", "a"), Described(1, "dedupe", "a")]
    assert matched(twins, twins) == {0: 0, 1: 1}
    assert matched(twins, [by_a], {0: 1}) == {0: 1}
    # Schemas that are alike tell those apart whose keys do not.
    first, second = Described(0, "dedupe", "a", value="long"), Described(1, "dedupe", "a", value="double")
    assert matched([first, second], [second, first]) == {1: 1, 0: 0}
    turned = [Described(0, "dedupe", "a", value="double"), Described(1, "dedupe", "a", value="long")]
    assert matched([first, second], turned) == {0: 1, 1: 0}
    unlike = Described(1, "dedupe", "a", value="binary")
    assert matched([first, second], [Described(0, "dedupe", "a", value="double"), unlike]) == {0: 1, 1: 0}
    with pytest.raises(OptionError, match="not clear"):
        matched(twins, [Described(0, "dedupe", "a", value="binary"), unlike])
    in_rows, in_frames = (
        Described(0, f"transformWithStateIn{kind}Exec", "a") for kind in ("PySpark", "Pandas")
    )
    assert matched([in_rows], [in_frames]) == {0: 0}
    with pytest.raises(OptionError, match=r"not clear which operators .* such as \{0: 0\}"):
        matched(twins, [by_a])
    with pytest.raises(OptionError, match="another kind"):
        matched([counted], [distinct], {1: 0})
    with pytest.raises(OptionError, match="two operators of the new query"):
        matched(twins, twins, {0: 1, 1: 1})


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({}, True),
        ({"value_schema": schema(count="integer")}, False),
        ({"value_schema": schema(total="long")}, False),
        ({"key_encoder": "prefix"}, False),
        ({"prefix_columns": 1}, False),
        ({"ordering_columns": (0,)}, False),
        ({"values": 3}, False),
        ({"value_schema": schema(count="long").replace("true", "false")}, False),
        ({"rows": 5, "name": "other"}, True),
    ],
)
def test_rows_are_taken_as_they_are_by_states_alike(change: dict[str, Any], is_same: bool) -> None:
    old: dict[str, Any] = {"name": "default", "rows": 0, "key_schema": schema(k="string")}
    old |= {"value_schema": schema(count="long"), "key_encoder": "hash", "prefix_columns": 0}
    assert is_same_state(ColumnFamily(**old), ColumnFamily(**old | change)) == is_same
