"""Stateful queries to and from Delta Lake and Iceberg: kills, roll backs, clones, conversions, `MERGE`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import spark_statestore
from spark_statestore.options import PROVIDER_KEY
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.query_checkpoint import COMMITS, OFFSETS
from tests.spark.counting import Program
from tests.spark.queries import ROCKSDB, unload_all
from tests.support.services import ServiceUnavailableError
from tests.support.services.lake import delta, iceberg
from tests.support.sessions import local_builder
from tests.support.windows import FILES, answer, counted, run_windows, write_input

pytestmark = pytest.mark.lake

EXTENSIONS = "spark.sql.extensions"

DELTA = {
    EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Small tables otherwise have fifty tasks for their log.
    "spark.databricks.delta.snapshotPartitions": "1",
}


def iceberg_settings(warehouse: Path) -> dict[str, str]:
    return {
        EXTENSIONS: "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        # A catalog keeps a table for 30 s as it was. The session of a foreachBatch function has its own one.
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.warehouse": str(warehouse),
    }


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the settings of a session with those formats whose jars can be fetched."""
    combined: dict[str, str] = {}
    jars: list[str] = []
    iceberg_confs = iceberg_settings(tmp_path_factory.mktemp("warehouse"))
    for fetch, confs in ((delta, DELTA), (iceberg, iceberg_confs)):
        try:
            jars += map(str, sorted(fetch().glob("*.jar")))
        except ServiceUnavailableError as error:
            print(error)
            continue
        extensions = filter(None, [combined.get(EXTENSIONS), confs[EXTENSIONS]])
        combined |= confs | {EXTENSIONS: ",".join(extensions)}
    return combined | {"spark.jars": ",".join(jars)}


@pytest.fixture(scope="session")
def spark(built: Path, lake: dict[str, str]) -> Iterator[Any]:
    """Start a session with the formats, configured for this store."""
    # Delta Lake needs a file system of core-default.xml.
    builder = local_builder("lake-tests", memory="1g", with_hadoop_defaults=True)
    builder.config(map=lake)
    builder.config("spark.sql.session.timeZone", "UTC")
    session = spark_statestore.configure(builder).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(params=["delta", "iceberg"])
def sink(request: pytest.FixtureRequest, lake: dict[str, str]) -> str:
    if request.param not in lake[EXTENSIONS].lower():
        pytest.skip(f"the jars of {request.param} cannot be fetched for this Spark")
    return str(request.param)


@dataclass(frozen=True)
class Table:
    """A table of a format, by what ``start`` and SQL call it, and its directory."""

    spark: Any
    format: str
    target: str
    name: str
    directory: Path

    @classmethod
    def create(cls, spark: Any, format: str, directory: Path, columns: str) -> Table:  # noqa: A002
        if format == "delta":
            path = directory / "table"
            spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
            return cls(spark, format, str(path), f"delta.`{path}`", path)
        name = f"lake.db.{directory.parent.name}_{directory.name}".replace("-", "_")
        spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg")
        warehouse = Path(spark.conf.get("spark.sql.catalog.lake.warehouse"))
        return cls(spark, format, name, name, warehouse / "db" / name.rpartition(".")[2])

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in self.spark.table(self.name).collect())

    def log_file(self, commit: int) -> Path:
        """Return the file that exists once the table has a commit; the first one creates the table."""
        if self.format == "delta":
            return self.directory / "_delta_log" / f"{commit:020}.json"
        return self.directory / "metadata" / f"v{commit + 1}.metadata.json"


WINDOWS = "start long, n long, total long"


@pytest.fixture
def table(spark: Any, sink: str, tmp_path: Path) -> Table:
    """Return an empty table of windows, beside an input."""
    write_input(tmp_path)
    return Table.create(spark, sink, tmp_path, WINDOWS)


def second_table(table: Table, tmp_path: Path) -> Table:
    (tmp_path / "other").mkdir()
    return Table.create(table.spark, table.format, tmp_path / "other", WINDOWS)


@pytest.mark.parametrize(
    ("sink", "writer"),
    [("delta", "delta"), ("delta", "transactions"), ("iceberg", "iceberg")],
    indirect=["sink"],
)
def test_query_killed_after_the_tables_commit_equals_the_batch_answer(
    spark: Any, table: Table, writer: str, lake: dict[str, str], tmp_path: Path
) -> None:
    with Program(
        "until_sink_has",
        directory=str(tmp_path),
        format=writer,
        target=table.target,
        file=str(table.log_file(3)),
        confs=lake,
    ) as program:
        program.next("killed")
    checkpoint = QueryCheckpoint(str(tmp_path / "checkpoint"))
    assert max(checkpoint.logged(COMMITS)) < max(checkpoint.logged(OFFSETS))
    run_windows(spark, tmp_path, writer, table.target)
    assert table.rows() == answer(spark, tmp_path)


def test_rolled_back_query_writes_no_batch_twice_and_its_clone_writes_all(
    spark: Any, table: Table, tmp_path: Path
) -> None:
    run_windows(spark, tmp_path, table.format, table.target)
    expected = answer(spark, tmp_path)
    assert table.rows() == expected
    checkpoint, second = str(tmp_path / "checkpoint"), second_table(table, tmp_path)
    unload_all(spark)
    savepoint = spark_statestore.savepoint(checkpoint, str(tmp_path / "savepoints"), batch=2)
    spark_statestore.restore(savepoint.path, str(tmp_path / "copy"))
    spark_statestore.rollback(checkpoint, 2, stopped=True)
    run_windows(spark, tmp_path, table.format, table.target)
    assert table.rows() == expected
    run_windows(spark, tmp_path, second.format, second.target, checkpoint="copy")
    # The copy writes what followed its savepoint.
    assert 3 < len(second.rows()) < len(expected)
    assert second.rows() == expected[-len(second.rows()) :]


def test_query_converted_from_rocksdb_goes_on_into_the_same_table(
    spark: Any, table: Table, tmp_path: Path
) -> None:
    own = spark.newSession()
    own.conf.set(PROVIDER_KEY, ROCKSDB)
    files = sorted((tmp_path / "input").iterdir())
    for path in files[FILES // 2 :]:
        path.rename(tmp_path / path.name)
    run_windows(own, tmp_path, table.format, table.target)
    spark_statestore.convert(spark, str(tmp_path / "checkpoint"), str(tmp_path / "ours"), stopped=True)
    for path in files[FILES // 2 :]:
        (tmp_path / path.name).rename(path)
    run_windows(spark, tmp_path, table.format, table.target, checkpoint="ours")
    assert table.rows() == answer(spark, tmp_path)


def start_from(table: Table, build: Callable[[DataFrame], DataFrame], mode: str, checkpoint: Path) -> Any:
    rows = table.spark.readStream.format(table.format)
    if table.format == "delta":
        rows = rows.option("maxFilesPerTrigger", 1)
    stream = build(rows.load(table.target).withWatermark("time", "0 seconds")).writeStream
    return stream.outputMode(mode).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def test_table_is_source_and_sink_in_complete_mode_and_of_a_merge(
    spark: Any, sink: str, tmp_path: Path
) -> None:
    write_input(tmp_path)
    for name in ("source", "complete", "merged"):
        (tmp_path / name).mkdir()
    source = Table.create(spark, sink, tmp_path / "source", "id long, time timestamp")
    complete, merged = (
        Table.create(spark, sink, tmp_path / name, WINDOWS) for name in ("complete", "merged")
    )

    def merge(batch: DataFrame, number: int) -> None:
        batch.createOrReplaceTempView("changes")
        batch.sparkSession.sql(
            f"MERGE INTO {merged.name} t USING changes c ON t.start = c.start "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    for number in range(3):
        spark.read.parquet(str(tmp_path / "input" / f"{number:02}.parquet")).writeTo(source.name).append()
        query = start_from(source, counted, "complete", tmp_path / "checkpoint-c").format(sink)
        query.start(complete.target).awaitTermination()
        query = start_from(source, counted, "update", tmp_path / "checkpoint-m").foreachBatch(merge)
        query.start().awaitTermination()
    # The batch runs again, and its MERGE changes nothing.
    unload_all(spark)
    spark_statestore.rollback(str(tmp_path / "checkpoint-m"), 0, stopped=True)
    start_from(source, counted, "update", tmp_path / "checkpoint-m").foreachBatch(
        merge
    ).start().awaitTermination()
    rows = sorted(
        tuple(row) for row in counted(spark.table(source.name)).select("start", f.col("n"), "total").collect()
    )
    assert complete.rows() == rows
    assert merged.rows() == rows
