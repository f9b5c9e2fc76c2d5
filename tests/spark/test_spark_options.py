"""Spark's options of its own stores: the result is exact, whether they mean something here or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark import events
from tests.spark.queries import OURS, SPARKS, STATE_STORE, Query, run_with_restarts

OPTIONS = {
    "none": {},
    "row checksums": {STATE_STORE + "rowChecksum.enabled": "true"},
    "unloadOnCommit": {STATE_STORE + "unloadOnCommit": "true"},
    "one version in memory": {"spark.sql.streaming.maxBatchesToRetainInMemory": "1"},
    "no format validation": {STATE_STORE + "formatValidation.enabled": "false"},
}


def counts(stream: Any) -> Any:
    from pyspark.sql import functions as F

    return stream.groupBy("k").agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))


def life_of(query: Query) -> Any:
    made = events.batches(4)
    return run_with_restarts(query, [made[:3], made[3:]]), query.state()


@pytest.fixture(scope="module")
def expected(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("spark")
    return life_of(Query(spark, directory, counts, "update", events.SCHEMA, provider=SPARKS))


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_a_query_is_exact_under_sparks_option(spark: Any, tmp_path: Path, expected: Any, option: str) -> None:
    query = Query(spark, tmp_path, counts, "update", events.SCHEMA, provider=OURS, confs=OPTIONS[option])
    assert life_of(query) == expected
    # Of the last run, whose first batch loads in any case.
    loaded = [p["stateOperators"][0]["customMetrics"]["checkpointLoadBytes"] for p in query.progress]
    assert loaded[0] > 0
    query.feed(*events.batches(6)[4:])
    query.run()
    later = query.progress[1]["stateOperators"][0]["customMetrics"]["checkpointLoadBytes"]
    assert (later > 0) == (option == "unloadOnCommit")
