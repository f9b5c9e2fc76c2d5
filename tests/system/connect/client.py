"""Test program: a Spark Connect client that sets nothing, and runs every stateful operator of PySpark.

Arguments: the server's address, and a directory with files of input in ``staged``. The queries run to the end
of the first file, and resume with each of the others. Prints a line of JSON for each query: its name, its
results, the custom metrics of its operators, and what else was asked.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery

import spark_statestore
from spark_statestore.errors import SavepointError, SessionError

COUNTED = "k string, n long"


def count_in_pandas(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    count = (state.get[0] if state.exists else 0) + sum(map(len, frames))
    state.update((count,))
    yield pd.DataFrame({"k": [key[0]], "n": [count]})


class CountInPandas(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        count = (self.count.get()[0] if self.count.exists() else 0) + sum(map(len, rows))
        self.count.update((count,))
        yield pd.DataFrame({"k": [key[0]], "n": [count]})

    def close(self) -> None:
        pass


class CountRows(CountInPandas):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # type: ignore[override]
        count = (self.count.get()[0] if self.count.exists() else 0) + sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(k=key[0], n=count)


def _period(frame: DataFrame) -> DataFrame:
    return frame.select(f.col("period.start").cast("long").alias("start"), "k", "count")


def joined(events: DataFrame) -> DataFrame:
    right = events.select(f.col("id").alias("other"), f.col("time").alias("then")).where("other % 2 = 0")
    return events.join(right, f.expr("id = other and time = then")).select("id")


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "windows": lambda events: _period(
        events.groupBy(f.window("time", "10 seconds").alias("period"), "k").count()
    ),
    "sessions": lambda events: _period(
        events.groupBy(f.session_window("time", "2500 milliseconds").alias("period"), "k").count()
    ),
    "dropDuplicates": lambda events: events.select("k").dropDuplicates(),
    "dropDuplicatesWithinWatermark": lambda events: events.dropDuplicatesWithinWatermark(["k"]).select("k"),
    "join": joined,
    "applyInPandasWithState": lambda events: events.groupBy("k").applyInPandasWithState(
        count_in_pandas, COUNTED, "n long", "append", "NoTimeout"
    ),
    "transformWithStateInPandas": lambda events: events.groupBy("k").transformWithStateInPandas(
        CountInPandas(), COUNTED, "append", "none"
    ),
    "transformWithState": lambda events: events.groupBy("k").transformWithState(
        CountRows(), COUNTED, "append", "none"
    ),
}


def error_of(call: Callable[[], Any], kind: type[Exception]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return "none"


# Spark starts a Python process for each batch of these, so they run one after another.
IN_PYTHON = ("applyInPandasWithState", "transformWithStateInPandas", "transformWithState")


def start(spark: SparkSession, name: str, work: Path) -> StreamingQuery:
    # The delay is longer than the input, but for the event that closes it.
    events = (
        spark.readStream.schema("id long, k string, second long").parquet(str(work / "input"))
        .select("id", "k", f.timestamp_seconds("second").alias("time")).withWatermark("time", "1 hour")
    )  # fmt: skip
    return (
        QUERIES[name](events)
        .writeStream.format("json")
        .queryName(name)
        .option("checkpointLocation", str(work / name / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(work / name / "results"))
    )


def run_to_the_end(spark: SparkSession, work: Path) -> dict[str, StreamingQuery]:
    """Run every query to the end of the input, and return them."""
    queries = {name: start(spark, name, work) for name in QUERIES if name not in IN_PYTHON}
    for query in queries.values():
        query.awaitTermination()
    for name in IN_PYTHON:
        queries[name] = start(spark, name, work)
        queries[name].awaitTermination()
    return queries


def main() -> None:
    server, work = sys.argv[1], Path(sys.argv[2])
    spark = SparkSession.builder.remote(server).getOrCreate()
    (work / "input").mkdir()
    for path in sorted((work / "staged").iterdir()):
        path.rename(work / "input" / path.name)
        queries = run_to_the_end(spark, work)
    for name, query in queries.items():
        frame = spark_statestore.progress(query)
        results = spark.read.json(str(work / name / "results"))
        print(
            json.dumps(
                {
                    "name": name,
                    "results": [row.asDict() for row in results.collect()],
                    "metrics": sorted(column for column in frame if column.startswith("checkpoint")),
                    "rows": int(frame["stateTableMaxRows"].max()),
                    "view": spark_statestore.StateView(query)._repr_html_()[:200],
                    "savepoint": error_of(
                        lambda query=query: spark_statestore.trigger_savepoint(query).result(), SavepointError
                    ),
                }
            )
        )
    attached = error_of(lambda: spark_statestore.attach(spark), SessionError)
    converted = error_of(
        lambda: spark_statestore.convert(
            spark, str(work / "windows/checkpoint"), str(work / "converted"), "rocksdb"
        ),
        SessionError,
    )
    print(json.dumps({"name": "", "attach": attached, "convert": converted}))
    with contextlib.suppress(Exception):
        spark.stop()


main()
