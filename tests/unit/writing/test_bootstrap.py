"""Tests of `bootstrap` on checkpoints that were written without Spark."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_statestore import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    OptionError,
    RowEncodingError,
    WrittenState,
    bootstrap,
    verify,
)
from spark_statestore.files import open_file_system
from spark_statestore.operator_state import MapStateDescriptor, QueryOperatorState
from tests.unit.query.stored_query import StoredQuery
from tests.unit.writing.test_write import WORDS, counts, placed, table

LIMITS = MapStateDescriptor("limits", pa.string(), pa.int64())
MAY = datetime(2024, 5, 1, 12, 0, 0, 1999, tzinfo=UTC)
MAY_MS = 1_714_564_800_001


@pytest.fixture(params=[1, 2])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> StoredQuery:
    """A query that has run two batches, whose source is not one of files."""
    query = StoredQuery(tmp_path / "started", request.param, partitions=3)
    query.run(**WORDS)
    query.run(other=1)
    with_sources(query, '{"t":{"0":7}}', "3")
    return query


def entry(location: Any, batch: int = 1) -> list[str]:
    return Path(location, "offsets", str(batch)).read_text().splitlines()


def with_sources(query: StoredQuery, *lines: str, version: str = "v1") -> None:
    query.put("offsets/1", "\n".join([version, entry(query.url)[1], *lines]))


def test_bootstrap_has_the_state_that_is_given(started: StoredQuery, tmp_path: Path) -> None:
    before = started.files()
    words = {f"word {number}": -number for number in range(50)} | {"new": 1}
    result = bootstrap(started.url, str(tmp_path / "target"), {0: table(words)})
    assert result == WrittenState(batch=1, added=51, changed=0, removed=0)
    assert counts(tmp_path / "target") == words
    assert [json.loads(line) for line in entry(tmp_path / "target")[1:]] == [
        json.loads(line) for line in entry(started.url)[1:]
    ]
    assert not verify(str(tmp_path / "target")).problems
    assert before.items() <= started.files().items()
    # Spark would have put the words there.
    started.run(**words)
    assert placed(tmp_path / "target").items() <= placed(started.url).items()


def test_state_that_is_not_given_is_empty(started: StoredQuery, tmp_path: Path) -> None:
    assert bootstrap(started.url, str(tmp_path / "target"), {}, batch=0) == WrittenState(0, 0, 0, 0)
    assert counts(tmp_path / "target") == {}


def test_bootstrap_sets_offsets_and_watermark(started: StoredQuery, tmp_path: Path) -> None:
    offsets = {"0": {"t": {"0": 100, "1": 2}}}
    bootstrap(started.url, str(tmp_path / "target"), {}, offsets=offsets, watermark=MAY)
    version, metadata, *sources = entry(tmp_path / "target")
    assert (version, sources) == ("v1", ['{"t":{"0":100,"1":2}}', "3"])
    assert json.loads(metadata) == json.loads(entry(started.url)[1]) | {"batchWatermarkMs": MAY_MS}
    commit = (tmp_path / "target/commits/1").read_text().splitlines()[1]
    assert json.loads(commit)["nextBatchWatermarkMs"] == MAY_MS
    bootstrap(started.url, str(tmp_path / "again"), {}, offsets={"1": "40", "0": '{"t":{"0":8}}'})
    assert entry(tmp_path / "again")[2:] == ['{"t":{"0":8}}', "40"]
    # The watermark is unchanged.
    assert json.loads(entry(tmp_path / "again")[1]) == json.loads(entry(started.url)[1])


def test_sources_may_have_names(started: StoredQuery, tmp_path: Path) -> None:
    with_sources(started, "orders:5", 'clicks:{"p:0":1}', version="v2")
    bootstrap(started.url, str(tmp_path / "target"), {}, offsets={"clicks": {"p:0": 9}})
    assert entry(tmp_path / "target")[2:] == ["orders:5", 'clicks:{"p:0":9}']


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"offsets": {"2": "1"}}, OptionError, "has no source '2': it has '0', '1'"),
        ({"offsets": {"0": "1"}}, OptionError, "is 1, but the source has written {.*differ in kind. Give"),
        ({"offsets": {"0": {"t": {"1": 7}}}}, OptionError, "differ in kind at t.0"),
        ({"offsets": {"0": {"t": {"0": "7"}}}}, OptionError, "differ in kind at t.0"),
        ({"offsets": {"0": {}}}, OptionError, "differ in kind at t[.]"),
        ({"offsets": {"0": {"t": {"0": np.int64(7)}}}}, OptionError, "must be JSON .* not JSON serializable"),
        ({"offsets": {"1": "no JSON"}}, OptionError, "'no JSON', but it must be JSON"),
        ({"offsets": {"1": ""}}, OptionError, "but it must be JSON"),
        ({"offsets": {"1": "[4,\n5]"}}, OptionError, "must be one line"),
        ({"offsets": [1]}, OptionError, "the offsets is a list"),
        ({"offsets": {"0": ["/in"]}}, OptionError, "files are given for the source '0', but its offset is {"),
        ({"watermark": datetime(2024, 5, 1)}, OptionError, "is no datetime with a time zone"),
        ({"watermark": MAY.date()}, OptionError, "is no datetime with a time zone"),
        ({"state": [table({})]}, OptionError, "the state is a list"),
        ({"state": {"0": table({})}}, OptionError, "for '0', but it must be for an operator"),
        ({"state": {(0, "a", "b"): table({})}}, OptionError, "but it must be for an operator"),
        ({"watermark": datetime(1969, 12, 31, tzinfo=UTC)}, OptionError, "before 1970"),
        ({"batch": 7}, CheckpointNotFoundError, "has no batch 7"),
        ({"state": {1: table({})}}, CheckpointNotFoundError, "no stateful operator 1"),
        ({"state": {(0, "x"): table({})}}, CheckpointNotFoundError, "no column family 'x'"),
        ({"state": {0: table({}), (0, "default"): table({})}}, OptionError, "twice"),
        ({"state": {0: "value.count < 1"}}, OptionError, "the changes are a str"),
        ({"state": {0: table({"a": 1}).select(["key"])}}, RowEncodingError, "the mode 'replace' needs"),
        ({"state": {0: pa.concat_tables([table({"a": 1})] * 2)}}, RowEncodingError, "have the same key"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_and_leave_no_files(
    started: StoredQuery, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bootstrap(started.url, str(tmp_path / "target"), **{"state": {}} | arguments)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(
    ("sources", "offsets", "message"),
    [
        (['{"t":{"0":7}}', "-"], {"1": "4"}, "the source '1' has no offset yet"),
        (['{"t":{"0":7}}', "next: 5"], {"1": "4"}, "the source has written next: 5, and they differ in kind"),
        (2 * ['{"t":{"0":3}}'], {"0": {"t": {"0": 4}}}, "the sources '0' and '1' have the same offset"),
        (2 * ['{"logOffset":1}'], {"0": {"logOffset": 4}}, "reads a source several times"),
        (['{"logOffset":1}'], {"0": {"logOffset": 4}}, "reads files, .* Give a list of the files and dir"),
    ],
    ids=str,
)
def test_offsets_that_do_not_fit_the_sources_are_refused(
    started: StoredQuery, tmp_path: Path, sources: list[str], offsets: dict[str, Any], message: str
) -> None:
    with_sources(started, *sources)
    with pytest.raises(OptionError, match=message):
        bootstrap(started.url, str(tmp_path / "target"), {}, offsets=offsets)


@pytest.fixture
def reads_files(tmp_path: Path) -> StoredQuery:
    query = StoredQuery(tmp_path / "query")
    query.run(a=1)
    query.run(b=1)
    return query


@pytest.mark.parametrize("log", ["0", "0.compact"])
def test_files_that_are_done_are_in_the_log(reads_files: StoredQuery, tmp_path: Path, log: str) -> None:
    incoming = tmp_path / "in"
    for number, name in enumerate(["z", "a", "day=1/b", "_temporary/c", ".d", "e._COPYING_"]):
        path = incoming / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (0, 5 + number))
    if log == "0.compact":
        # Spark's interval of compactions is 1.
        sources = Path(reads_files.url, "sources/0")
        sources.joinpath("0").rename(sources / log)
    target = tmp_path / "target"
    bootstrap(reads_files.url, str(target), {}, offsets={"0": [f"file:{incoming}/z", str(incoming)]})
    assert [entry(target, batch)[2:] for batch in (0, 1)] == [['{"logOffset":0}']] * 2
    assert [path.name for path in target.glob("sources/0/[0-9]*")] == [log]
    version, *lines = (target / "sources/0" / log).read_text().splitlines()
    assert (version, [json.loads(line) for line in lines]) == (
        "v1",
        [
            {"path": f"file://{incoming}/{name}", "timestamp": 5000 + 1000 * number, "batchId": 0}
            for number, name in enumerate(["z", "a", "day=1/b"])
        ],
    )
    assert not verify(str(target)).problems


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["missing"], "there is no file missing"),
        ([7], "have 7 among them"),
        (["memory://bucket/in"], "the file memory://bucket/in is not where the source '0' reads.* file://"),
    ],
    ids=str,
)
def test_wrong_files_are_refused(
    reads_files: StoredQuery, tmp_path: Path, files: list[Any], message: str
) -> None:
    open_file_system("memory://bucket")[0].replace("/bucket/in", b"")
    with pytest.raises(OptionError, match=message):
        bootstrap(reads_files.url, str(tmp_path / "target"), {}, offsets={"0": files})
    assert not (tmp_path / "target").exists()


def test_equal_offsets_are_set_together(started: StoredQuery, tmp_path: Path) -> None:
    same = '{"t":{"0":3}}'
    with_sources(started, same, same)
    new = '{"t":{"0":4}}'
    bootstrap(started.url, str(tmp_path / "target"), {}, offsets={"0": new, "1": new})
    assert entry(tmp_path / "target")[2:] == [new, new]
    # Spark asks some sources at the start for what is between the two entries.
    assert entry(tmp_path / "target", 0)[2:] == [new, new]


def test_operator_state_of_the_run_is_not_taken(started: StoredQuery, tmp_path: Path) -> None:
    state = QueryOperatorState(started.url, "limits")
    for batch in (0, 1):
        with state.batch(batch) as store:
            store.get_broadcast_state(LIMITS).put("trial", 1)
    bootstrap(started.url, str(tmp_path / "target"), {})
    assert not (tmp_path / "target" / "operator-state").exists()
    assert QueryOperatorState(str(tmp_path / "target"), "limits").batches() == []


def test_target_must_be_empty(started: StoredQuery, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").write_text("of the user")
    with pytest.raises(CheckpointExistsError, match="not empty"):
        bootstrap(started.url, str(tmp_path / "target"), {})
    assert (tmp_path / "target" / "file").read_text() == "of the user"
