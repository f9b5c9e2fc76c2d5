"""transformWithState runs where the session extension permits it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.processors import DAY, OUTPUT, Interpreter
from tests.spark.processors_query import (
    NO_EMPTY_BATCHES,
    ROCKS,
    SCHEMA,
    Build,
    ProcessorQuery,
    batches,
    in_scala,
)
from tests.spark.queries import OURS, SPARKS, STATE_STORE, configured, unload_all
from tests.support.spark_versions import since

REFUSED = "STORE_BACKEND_NOT_SUPPORTED_FOR_TWS"

# The other tests enable both of these.
BARE = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}

scala = in_scala(["one,many,named"], [""], [0], "processingTime", "update")


def python(stream: Any, run: int) -> Any:
    return stream.groupBy("k").transformWithState(Interpreter("string"), OUTPUT, "update", "none")


def python_by_the_clock(stream: Any, run: int) -> Any:
    processor = Interpreter("string", ttl=DAY, timers="processing")
    return stream.groupBy("k").transformWithState(processor, OUTPUT, "update", "processingTime")


restricted = since("4.2", "check of the provider in transformWithState")


def make(session: Any, directory: Path, build: Build, provider: str = OURS, **confs: str) -> ProcessorQuery:
    return ProcessorQuery(
        session,
        directory,
        build,
        "update",
        SCHEMA,
        provider=provider,
        confs=NO_EMPTY_BATCHES | confs,
    )


def without_extensions(spark: Any) -> Any:
    """Return another session of the same application, for which no extension was loaded."""
    from pyspark.sql import SparkSession

    jvm = spark._jvm
    none = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({})
    jsession = jvm.org.apache.spark.sql.classic.SparkSession(
        spark.sparkContext._jsc.sc(),
        jvm.scala.Option.apply(spark._jsparkSession.sharedState()),
        jvm.scala.Option.empty(),
        jvm.org.apache.spark.sql.SparkSessionExtensions(),
        none,
        none,
    )
    return SparkSession(spark.sparkContext, jsession)


@pytest.mark.spark
@restricted
@pytest.mark.slow
def test_transform_with_state_needs_the_extension(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    query = make(without_extensions(spark), tmp_path, scala, **BARE)
    query.feed(*batches(1))
    with pytest.raises(StreamingQueryException, match=REFUSED):
        query.run()
    query.spark = spark
    assert [number for number, rows in query.run() if rows] == [0]


@pytest.mark.spark
@restricted
def test_extension_leaves_other_providers_to_spark(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    query = make(spark, tmp_path, scala, SPARKS)
    query.feed(*batches(1))
    with pytest.raises(StreamingQueryException, match=REFUSED):
        query.run()


@restricted
@pytest.mark.parametrize(("build", "confs"), [(python, {}), (scala, BARE)], ids=["python", "scala, bare"])
def test_explain_names_the_operator(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], build: Build, confs: dict[str, str]
) -> None:
    query = make(spark, tmp_path, build)
    query.feed(*batches(1))
    stream = spark.readStream.schema(spark.read.parquet(str(tmp_path / "input")).schema)
    stream = stream.parquet(str(tmp_path / "input"))
    printed = {}
    for provider in (OURS, ROCKS):
        with configured(spark, confs | {STATE_STORE + "providerClass": provider}):
            build(stream, 0).explain()
        printed[provider] = capsys.readouterr().out
    assert printed[OURS].count("CheckpointTransformWithState") == 1
    assert "TransformWithState" in printed[ROCKS]
    assert "CheckpointTransformWithState" not in printed[ROCKS]


@pytest.mark.spark
@since("4.1", "transformWithState by rows in Python")
@pytest.mark.slow
def test_failed_processor_leaves_no_changes(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    marker = tmp_path / "failed"
    first, second = batches(2, timers=[1, 2, DAY])
    # Its partition has other keys before it.
    second.append(second[0] | {"k": "größe", "seq": len(second), "op": "fail_once", "v": str(marker)})

    query = make(spark, tmp_path / "fails", python_by_the_clock)
    query.feed(first)
    outputs = query.run()
    query.feed(second)
    with pytest.raises(StreamingQueryException, match="this processor fails once"):
        query.run()
    assert marker.exists()
    outputs += query.run()

    never_fails = make(spark, tmp_path / "never-fails", python_by_the_clock)
    never_fails.feed(first, second)
    assert outputs == never_fails.run()
    query.keeps_clock = never_fails.keeps_clock = True
    state = query.state()
    assert state == never_fails.state()

    # A batch whose commit was lost is repeated from the same state, and at the same time.
    query.forget_newest_commit()
    unload_all(spark)
    assert query.run() == outputs[1:]
    assert query.state() == state
