"""Test program: queries whose whole checkpoint is at a URL, over files of input.

    python -m tests.system.object_stores.whole_checkpoint CHECKPOINTS INPUT OUTPUT FORMAT TOGETHER QUERY...

The queries run one after another, or together if TOGETHER is 1. Each batch's output is appended to the file
OUTPUT, as a line of JSON: the query, the batch, its rows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spark_statestore
from tests.spark.processors_query import NO_EMPTY_BATCHES
from tests.spark.queries import STATE_STORE
from tests.support.sessions import local_builder
from tests.system.upgrades.cases import CASES, start

CONNECTORS = (
    "org/apache/hadoop/fs/s3a/S3AFileSystem",
    "org/apache/hadoop/fs/azurebfs/AzureBlobFileSystem",
    "com/google/cloud/hadoop/fs/gcs/GoogleHadoopFileSystem",
)


def main(
    checkpoints: str, inputs: Path, output: Path, checkpoint_format: str, together: bool, queries: list[str]
) -> None:
    """Run the queries to the end of their input."""
    builder = local_builder("whole-checkpoint", memory="1g").config("spark.jars", os.environ["TEST_JAR"])
    settings = {
        **NO_EMPTY_BATCHES,
        STATE_STORE + "checkpointFormatVersion": checkpoint_format,
        "spark.sql.shuffle.partitions": "2",
    }
    builder.config(map=settings)
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    assert not any(loader.getResource(f"{name}.class") for name in CONNECTORS)
    print(json.dumps({"jvm": spark._jvm.java.lang.ProcessHandle.current().pid()}), flush=True)
    started = []
    for number, name in enumerate(queries):
        case, checkpoint = CASES[name], f"{checkpoints}/{number}"
        started.append(start(spark, case, str(inputs / case.reads), checkpoint, append_to(output, name)))
        if not together:
            started.pop().awaitTermination()
    for query in started:
        query.awaitTermination()
    spark.stop()


def append_to(output: Path, query: str) -> Callable[[Any, int], None]:
    """Return a sink that appends each batch of a query to a file."""

    def sink(batch: Any, number: int) -> None:
        rows = sorted(map(repr, batch.collect()))
        # In one call of the system: other queries append, too.
        with output.open("ab", buffering=0) as file:
            file.write(json.dumps([query, number, rows]).encode() + b"\n")

    return sink


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5] == "1", sys.argv[6:])
