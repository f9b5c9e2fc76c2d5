"""Format and provider of a query: its checkpoint's; for a new one the session's, and format v2 by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

import spark_statestore
from spark_statestore.errors import OptionError
from tests.spark import events
from tests.spark.queries import OURS, SPARKS, Output, Query, configured, unload_all
from tests.support.spark_versions import is_since

pytestmark = [pytest.mark.slow, pytest.mark.spark]

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
DEFAULT = 2 if is_since("4.3") else 1

IS_42 = is_since("4.2") and not is_since("4.3")
CAN_SET = is_since("4.1") and not IS_42
can_set = pytest.mark.skipif(
    not CAN_SET, reason="Spark 4.0 and 4.2 take the format from the session that starts the query"
)


def counts(stream: Any) -> Any:
    return stream.groupBy("id").agg(F.count("*").alias("n"))


def make(spark: Any, directory: Path, provider: str = OURS, **confs: str) -> Query:
    return Query(
        spark,
        directory,
        counts,
        "update",
        events.SCHEMA,
        provider=provider,
        checkpoint_format=None,
        confs=confs,
    )


def formats(query: Query) -> list[int]:
    """Return the format of each batch, by Spark's commit log and by the names of the versions on disk."""
    logged = [2 if "stateUniqueIds" in path.read_text() else 1 for path in query.commits]
    versions = [path.name for path in (query.checkpoint / "state" / "0" / "0").glob("chk-*")]
    stored = {int(name[4:].split("_")[0]): 2 if "_" in name else 1 for name in versions}
    assert all(stored[batch + 1] == logged[batch] for batch in range(len(logged)) if batch + 1 in stored)
    return logged


def counts_after(*batches: list[dict[str, Any]]) -> Output:
    """Return the output of a query of these counts for each batch."""
    totals: Counter[int] = Counter()
    outputs = []
    for number, batch in enumerate(batches):
        totals.update(row["id"] for row in batch)
        keys = {row["id"] for row in batch}
        outputs.append((number, Counter(f"Row(id={key}, n={totals[key]})" for key in keys)))
    return outputs


def run_in(query: Query, batches: list[list[dict[str, Any]]], version: int | None) -> Output:
    """Run batches in a session with a format, without one if `version` is None."""
    query.feed(*batches)
    unload_all(query.spark)
    with configured(query.spark, {} if version is None else {FORMAT: str(version)}):
        return query.run()


@pytest.mark.parametrize("session", [None, 1, 2])
def test_new_query_has_the_format_of_its_session(spark: Any, tmp_path: Path, session: int | None) -> None:
    query = make(spark, tmp_path)
    run_in(query, events.batches(1), session)
    assert formats(query) == [session or DEFAULT]


@pytest.mark.parametrize(
    ("own", "session"), [(1, None), pytest.param(1, 2, marks=can_set), pytest.param(2, 1, marks=can_set)]
)
def test_checkpoint_keeps_its_format(spark: Any, tmp_path: Path, own: int, session: int | None) -> None:
    query = make(spark, tmp_path)
    batches = events.batches(3)
    outputs = run_in(query, batches[:2], own) + run_in(query, batches[2:], session)
    assert outputs == counts_after(*batches)
    assert formats(query) == [own] * 3


@pytest.mark.skipif(CAN_SET, reason="a query keeps its format")
@pytest.mark.parametrize(("own", "session"), [(1, 2), pytest.param(2, 1, id="v2 in v1")])
def test_session_with_another_format_than_the_checkpoints_is_refused(
    spark: Any, tmp_path: Path, own: int, session: int
) -> None:
    query = make(spark, tmp_path)
    batches = events.batches(3)
    first = run_in(query, batches[:1], own)
    refusal = rf"set it to {own} before the query starts" if IS_42 else "INVALID_LOG_VERSION"
    with pytest.raises(StreamingQueryException, match=refusal):
        run_in(query, batches[1:], session)
    assert len(first + run_in(query, [], own)) == 3


@can_set
def test_queries_of_both_formats_run_in_one_session(spark: Any, tmp_path: Path) -> None:
    batches = events.batches(4)
    queries = {version: make(spark, tmp_path / str(version)) for version in (1, 2)}
    for version, query in queries.items():
        run_in(query, batches[:2], version)
        query.feed(*batches[2:])
    outputs: dict[int, Output] = {version: [] for version in queries}
    running = [query.start(outputs[version], availableNow=True) for version, query in queries.items()]
    for query in running:
        assert query.awaitTermination(120)
    assert {version: formats(query) for version, query in queries.items()} == {
        version: [version] * 4 for version in queries
    }
    assert len({repr(output) for output in outputs.values()}) == 1


@can_set
def test_clone_takes_a_query_to_format_2(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path / "query")
    batches = events.batches(3)
    output = run_in(query, batches[:2], 1)
    with pytest.raises(OptionError, match="the checkpoint format is 1, but it must be 2"):
        spark_statestore.clone(str(query.checkpoint), str(tmp_path / "clone"), checkpoint_format=1)
    assert spark_statestore.clone(str(query.checkpoint), str(tmp_path / "clone"), checkpoint_format=2) == 1
    query.checkpoint = tmp_path / "clone"
    output += run_in(query, batches[2:], None)
    assert formats(query) == [2] * 2, "the batch of the copy, and another one"
    assert output == counts_after(*batches)


@pytest.mark.parametrize(("first", "second"), [(SPARKS, OURS), (OURS, SPARKS)], ids=["sparks", "ours"])
def test_checkpoint_keeps_its_provider(spark: Any, tmp_path: Path, first: str, second: str) -> None:
    query = make(spark, tmp_path, first)
    batches = events.batches(2)
    output = run_in(query, batches[:1], None)
    query.session_provider = second
    assert output + run_in(query, batches[1:], None) == counts_after(*batches)
    assert formats(query) == [DEFAULT if first == OURS else 1] * 2


@pytest.mark.parametrize("provider", [OURS, SPARKS])
def test_query_whose_first_batch_is_not_committed_goes_on(spark: Any, tmp_path: Path, provider: str) -> None:
    query = make(spark, tmp_path, provider)
    (first,) = run_in(query, events.batches(1), None)
    query.forget_newest_commit()
    # The offset log has the store, whatever the session sets.
    query.session_provider = OURS
    assert run_in(query, [], None) == [first]
    assert formats(query) == [DEFAULT if provider == OURS else 1]


@pytest.mark.skipif(not is_since("4.1"), reason="Spark 4.0 names the damage itself")
def test_damaged_commit_log_is_named(spark: Any, tmp_path: Path) -> None:
    query = make(spark, tmp_path)
    batches = events.batches(2)
    run_in(query, batches[:1], None)
    newest = query.commits[-1]
    newest.write_text("not a log\n{}")
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException) as error:
        run_in(query, batches[1:], None)
    assert newest.name in str(error.value)
