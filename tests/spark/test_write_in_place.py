"""Queries that go on after a write in place, and what reads of their state return then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_statestore import diff_state, gc, read_state, verify, write_state
from spark_statestore.options import OPTION_PREFIX
from tests.spark.queries import Query
from tests.spark.test_write_state import changed, event, rows_of, started, sums
from tests.support.spark_versions import is_since

pytestmark = [pytest.mark.slow, pytest.mark.spark]

Changes = set[tuple[int, str, str, int | None]]


def feed_of(query: Query, first: int) -> Changes:
    """Return the changes of Spark's feed: batch, change type, key and sum."""
    options = {"readChangeFeed": "true", "changeStartBatchId": first}
    with query._readable():
        rows = query.spark.read.format("statestore").options(**options).load(str(query.checkpoint)).collect()
    return {
        (row.batch_id, row.change_type, row.key.k, None if row.value is None else row.value.sum)
        for row in rows
    }


@pytest.mark.parametrize(("form", "commit"), [(1, "task"), (1, "batch"), (2, "batch")])
def test_query_goes_on_after_a_write_in_place(spark: Any, tmp_path: Path, form: int, commit: str) -> None:
    confs = {OPTION_PREFIX + "commit": commit}
    query, untouched = (
        started(spark, tmp_path / name, sums, "update", form, **confs) for name in ("query", "untouched")
    )
    query.feed([event("a", 4), event("b", 4)])
    untouched.feed([event("a", 10), event("b", 4), event("z", 3)])
    query.run()
    untouched.run()
    is_readable = form == 1 or is_since("4.1")
    before = query.state() if is_readable else None
    expected = rows_of(read_state(str(untouched.checkpoint)))
    rows = changed(read_state(str(query.checkpoint)), {key: expected[key] for key in (("a",), ("z",))})
    # The executor still has the state of before in memory.
    result = write_state(str(query.checkpoint), None, rows, in_place=True, stopped=True)
    assert (result.batch, result.added, result.changed) == (1, 1, 1)
    assert not verify(str(query.checkpoint)).problems
    outputs = []
    for ran in (query, untouched):
        ran.feed([event("a", 1), event("z", 1)], [event("a", 1), event("c", 1)])
        outputs.append(ran.run())
    assert outputs[0] == outputs[1]
    assert rows_of(read_state(str(query.checkpoint))) == rows_of(read_state(str(untouched.checkpoint)))
    assert not gc(str(query.checkpoint), dry_run=True, older_than=0, stopped=True).skipped
    differences = diff_state(str(query.checkpoint), 0, 1).to_pylist()
    assert {(row["change"], row["key"]["k"]) for row in differences} == {
        ("changed", "a"),
        ("changed", "b"),
        ("added", "z"),
    }
    if is_readable:
        assert query.state() == untouched.state() != before
        # The feed of the batch has its changes and those of the write.
        assert feed_of(query, 1) == feed_of(untouched, 1)
        assert {row for row in feed_of(query, 0) if row[0] == 1} == {
            (1, "update", "a", 13),
            (1, "update", "b", 7),
            (1, "update", "z", 3),
        }
