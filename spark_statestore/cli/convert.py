"""The command ``convert``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from spark_statestore.cli import parameters
from spark_statestore.cli.output import Output, size, table, when, with_output
from spark_statestore.conversion import api
from spark_statestore.conversion.plan import Source
from spark_statestore.conversion.result import Conversion
from spark_statestore.errors import OptionError, SessionError
from spark_statestore.session import configure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@click.command("convert")
@click.argument("source")
@click.argument("target")
@click.option(
    "--to",
    type=click.Choice(["statestore", "rocksdb", "hdfs"]),
    default="statestore",
    show_default=True,
    help="The state store of the target; rocksdb and hdfs are Spark's.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the Spark session, such as spark.driver.memory=8g; may be repeated.",
)
@parameters.batch
@parameters.partitions
@click.option(
    "--checkpoint-format",
    type=click.IntRange(1, 2),
    metavar="1|2",
    help="Spark's checkpoint format of TARGET.  [default: that of SOURCE; 1 with --to hdfs]",
)
@parameters.stopped
@parameters.dry_run
@parameters.checkpoints_dir
@with_output
def convert(
    out: Output, source: str, target: str, to: str, master: str, conf: tuple[str, ...], **arguments: Any
) -> None:
    """Copy a stopped query's checkpoint SOURCE to TARGET, with its state in another state store.

    Runs in a Spark session of its own, and needs Java. All rows are read back and compared before TARGET
    becomes a checkpoint; SOURCE is only read.
    """
    # Raises before Spark starts.
    Source(source, arguments["batch"], arguments["checkpoints_dir"])
    spark = _session(master, conf)
    try:
        with out.progress("converting") as report:
            conversion = api.convert(
                spark,
                source,
                target,
                to,  # type: ignore[arg-type]
                progress=lambda phase, tasks, total, rows, count: report(
                    tasks, total, f"{phase}: {rows:,} rows, {size(count)}"
                ),
                **arguments,
            )
    finally:
        spark.stop()
    _print(out, conversion)


def _session(master: str, conf: tuple[str, ...]) -> SparkSession:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SessionError(
            "the conversion runs in Spark, and PySpark is not installed in this interpreter: pip install "
            "pyspark"
        ) from error

    builder = SparkSession.builder.master(master).appName("spark-statestore convert")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    for setting in conf:
        name, equals, value = setting.partition("=")
        if not equals:
            raise OptionError(f"--conf {setting} is not of the form KEY=VALUE.")
        settings[name] = value
    for name, value in settings.items():
        builder = builder.config(name, value)
    return configure(builder).getOrCreate()


def _print(out: Output, conversion: Conversion) -> None:
    node = {
        "source": conversion.source,
        "target": conversion.target,
        "source_provider": conversion.source_provider,
        "provider": conversion.provider,
        "batch": conversion.batch,
        "watermark_ms": conversion.watermark_ms,
        "checkpoint_format": conversion.checkpoint_format,
        "partitions": conversion.partitions,
        "states": conversion.states,
        "rows": conversion.rows,
        "bytes": conversion.bytes,
        "source_bytes": conversion.source_bytes,
        "seconds": round(conversion.seconds, 3),
        "dry_run": conversion.dry_run,
    }
    watermark = when(conversion.watermark_ms) if conversion.watermark_ms else "none"
    source_batch = (
        f"batch {conversion.batch}, watermark {watermark}, checkpoint format v{conversion.checkpoint_format}"
    )
    counts = sorted(set(conversion.partitions.values()))
    partitions = f"{', '.join(map(str, counts))} partitions"
    stored = "" if conversion.source_bytes is None else f", {size(conversion.source_bytes)} of state files"
    if conversion.dry_run:
        out.result(
            node,
            f"{conversion.source} can be converted from {conversion.source_provider} "
            f"to {conversion.provider}",
            source_batch,
            partitions + stored,
        )
        return
    rows = [
        (s.operator, s.operator_name, s.store, s.column_family, s.rows, s.values, size(s.bytes), s.checksum)
        for s in conversion.states
    ]
    headings = ["operator", "name", "store", "column family", "keys", "rows", "bytes", "checksum"]
    out.result(
        node,
        table(headings, rows),
        f"{conversion.target} is ready: its {conversion.rows} rows are equal to those of {conversion.source}",
        f"{source_batch}, {partitions}; {conversion.seconds:.1f} s",
        f"start the query there with {conversion.provider}",
    )
