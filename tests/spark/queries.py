"""A streaming query over files, with restarts, whose output is collected batch by batch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import spark_statestore
from tests.support.sessions import STARTS, UNCONNECTED
from tests.support.spark_versions import is_since

OURS = spark_statestore.PROVIDER_CLASS
SPARKS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# A metric that only this provider reports.
METRICS = {
    OURS: "checkpointBytesWritten",
    SPARKS: "loadedMapCacheHitCount",
    ROCKSDB: "rocksdbPutCount",
}

STATE_STORE = "spark.sql.streaming.stateStore."
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"

# By the format of a join's state; in the later two they are column families of one store.
_JOIN_STORES = {
    "2": ("keyToNumValues", "keyWithIndexToValue"),
    "3": ("keyToNumValues", "keyWithIndexToValue"),
    "4": ("keyWithTsToValues", "tsWithKey"),
}

Rows = list[dict[str, Any]]
Output = list[tuple[int, Counter[str]]]
Collect = Callable[[Any], list[Any]]


# Schemas that Spark has inferred from files: inference takes a job.
_schemas: dict[pa.Schema, Any] = {}


class Query:
    """One query with its input files and its checkpoint.

    Parameters
    ----------
    spark
        The session that runs it.
    directory
        Directory of its input and its checkpoint.
    build
        Builds the query from the stream of the input.
    mode
        Its output mode.
    schema
        Schema of the input.
    provider
        Class of its state store provider; `session_provider` may be set to another setting of the session.
        So may `session_confs`, to settings of the next start, and `name`, to the query's name.
    checkpoint_format
        Spark's format of state checkpoints, 1 or 2; None leaves it to the store.
    confs
        Further settings while it starts.
    collect
        Function by which the sink collects the rows of a batch.
    """

    def __init__(
        self,
        spark: Any,
        directory: Path,
        build: Callable[..., Any],
        mode: str,
        schema: pa.Schema,
        *,
        provider: str = OURS,
        checkpoint_format: int | None = 1,
        confs: Mapping[str, str] | None = None,
        collect: Collect = lambda batch: batch.collect(),
    ) -> None:
        self.spark = spark
        self.checkpoint = directory / "checkpoint"
        self.progress: list[dict[str, Any]] = []
        self._input = directory / "input"
        self._input.mkdir(parents=True)
        self._files = 0
        self.build = build
        self._mode = mode
        self._schema = schema
        self._confs = {
            # Snapshots are written too, and some state is too large to be inside the metadata.
            STATE_STORE + "minDeltasForSnapshot": "2",
            STATE_STORE + "backend.fileStateThreshold": "600",
            "spark.sql.shuffle.partitions": "2",
        } | dict(confs or {})
        if checkpoint_format is not None:
            self._confs.setdefault(STATE_STORE + "checkpointFormatVersion", str(checkpoint_format))
        self.session_confs: Mapping[str, str] = {}
        self.name: str | None = None
        self._collect = collect
        self._provider = self.session_provider = provider

    def feed(self, *batches: Rows | pa.Table) -> None:
        """Add input: one file, and so one micro-batch, for each list or table of rows."""
        for rows in batches:
            path = self._input / f"{self._files:03}.parquet"
            hidden = path.with_name(f".{path.name}")
            is_table = isinstance(rows, pa.Table)
            pq.write_table(rows if is_table else pa.Table.from_pylist(rows, self._schema), hidden)
            # Files are read in the order of their modification times.
            os.utime(hidden, (1_700_000_000 + self._files, 1_700_000_000 + self._files))
            hidden.rename(path)
            self._files += 1

    def go_on(self, before: Query, checkpoint: Path) -> None:
        """Have this query read the input of another one, from a checkpoint on."""
        self.checkpoint = checkpoint
        self._input, self._files = before._input, before._files

    def start(self, out: Output, **trigger: Any) -> Any:
        """Start the query, which adds its output to a list batch by batch."""

        def sink(batch: Any, number: int) -> None:
            # A row as text distinguishes 1 from 1.0 and NaN from null, and is hashable for all types.
            out.append((number, Counter(map(repr, self._collect(batch)))))

        provider = {STATE_STORE + "providerClass": self.session_provider}
        with configured(self.spark, self._confs | provider | dict(self.session_confs)):
            if self._schema not in _schemas:
                _schemas[self._schema] = self.spark.read.parquet(str(self._input)).schema
            events = (
                self.spark.readStream.schema(_schemas[self._schema])
                .option("maxFilesPerTrigger", 1)
                .parquet(str(self._input))
            )
            writer = self._built(events).writeStream
            return (
                (writer if self.name is None else writer.queryName(self.name))
                .outputMode(self._mode)
                .option("checkpointLocation", str(self.checkpoint))
                .foreachBatch(sink)
                .trigger(**trigger)
                .start()
            )

    def _built(self, events: Any) -> Any:
        return self.build(events)

    def run(self) -> Output:
        """Run the query on all available input, and return its output batch by batch."""
        from pyspark.errors import StreamingQueryException

        out: Output = []
        for attempt in range(1, STARTS + 1):
            query = self.start(out, availableNow=True)
            try:
                assert query.awaitTermination(120), "the query does not end"
                break
            except StreamingQueryException as error:
                if UNCONNECTED not in str(error) or attempt == STARTS:
                    raise
            finally:
                query.stop()
        self.progress = [dict(progress) for progress in query.recentProgress]
        self._check_provider()
        return out

    def state(self, only: int | None = None, **options: Any) -> Counter[str]:
        """Return the rows of all stateful operators, or of one, in the newest version without a batchId."""
        counts: Counter[str] = Counter()
        with self._readable():
            for operator, store in self._stores():
                if only not in (None, operator):
                    continue
                reader = self.spark.read.format("statestore").options(operatorId=operator, **options)
                # A side of a join is named instead of one of its stores.
                reader = reader.option("joinSide" if store in ("left", "right") else "storeName", store)
                frame = reader.load(str(self.checkpoint))
                if store in ("left", "right") and self._join_format == "4":
                    # Spark reads the event times of its own store wrong there.
                    frame = frame.withColumn("key", frame.key.dropFields("__event_time"))
                rows = frame.collect()
                counts.update(f"{operator} {store} {row!r}" for row in rows)
        return counts

    def metadata(self) -> list[str]:
        """Return Spark's metadata of the query's stateful operators."""
        with self._readable():
            rows = self.spark.read.format("state-metadata").load(str(self.checkpoint)).collect()
        return sorted(map(repr, rows))

    def _readable(self) -> AbstractContextManager[None]:
        # RocksDB state of format 2 can be read only by a session with that format; before 4.2 any state.
        by_its_format = self._provider == ROCKSDB or not is_since("4.2")
        return configured(self.spark, self._confs if by_its_format else {})

    def _stores(self) -> Iterator[tuple[int, str]]:
        """Yield operators with the names of their rows: stores, column families, sides of the first join."""
        if not (self.checkpoint / "state").exists():
            return
        sides = ["left", "right"]
        for row in self.spark.read.format("state-metadata").load(str(self.checkpoint)).collect():
            if row.operatorName != "symmetricHashJoin":
                yield row.operatorId, row.stateStoreName
            elif row.stateStoreName in ("default", "left-keyToNumValues"):
                for side in sides:
                    yield row.operatorId, side
                sides = []
                for store in _JOIN_STORES[self._join_format]:
                    yield row.operatorId, f"left-{store}"
                    yield row.operatorId, f"right-{store}"

    @property
    def _join_format(self) -> str:
        return self._confs.get(JOIN_FORMAT, "2")

    def forget_newest_commit(self) -> None:
        """Remove the newest entry of the commit log, as if the driver had died just before it wrote it."""
        newest = self.commits[-1]
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)

    def _check_provider(self) -> None:
        operators = [operator for progress in self.progress for operator in progress["stateOperators"]]
        for operator in operators:
            assert METRICS[self._provider] in operator["customMetrics"], "not the wanted provider"
            # SkippedBatchesRule takes a batch without it for one that did not run.
            assert operator["numStateStoreInstances"] > 0, operator

    @property
    def commits(self) -> list[Path]:
        """Return the entries of the commit log, oldest first."""
        entries = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        return sorted(entries, key=lambda path: int(path.name))


def side_by_side(frames: Mapping[str, Any]) -> Any:
    """Combine data frames: a column with the rows of each, null in the rows of others."""
    from pyspark.sql import functions as F

    columns = [frame.select(F.struct("*").alias(name)) for name, frame in frames.items()]
    return reduce(lambda first, second: first.unionByName(second, allowMissingColumns=True), columns)


@contextmanager
def configured(spark: Any, confs: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session for the duration of the block."""
    before = spark.conf.getAll
    for key, value in confs.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in confs:
            if key in before:
                spark.conf.set(key, before[key])
            else:
                spark.conf.unset(key)


def unload_all(spark: Any) -> None:
    """Unload every state store of the executor, so that it is reopened."""
    column_families = spark._jvm.org.apache.spark.sql.execution.streaming.state
    getattr(getattr(column_families, "StateStore$"), "MODULE$").stop()


def run_with_restarts(query: Query, parts: Sequence[Sequence[Rows]]) -> list[Output]:
    """Run a query once for each part of the input, the last time with no store left in memory."""
    outputs = []
    for number, part in enumerate(parts, 1):
        query.feed(*part)
        if number == len(parts):
            unload_all(query.spark)
        outputs.append(query.run())
    return outputs
