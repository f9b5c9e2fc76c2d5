"""The command group ``spark-statestore``."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from spark_statestore._version import __version__
from spark_statestore.cli.assess import assess
from spark_statestore.cli.convert import convert
from spark_statestore.cli.doctor import doctor, jar
from spark_statestore.cli.inspect import ls, show
from spark_statestore.cli.maintenance import gc, repair, verify
from spark_statestore.cli.migrate import migrate
from spark_statestore.cli.output import Output, with_output
from spark_statestore.cli.plan import plan
from spark_statestore.cli.plot import plot
from spark_statestore.cli.rows import diff, get
from spark_statestore.cli.savepoints import begin_output, clone, holds, rescale, rollback, savepoint
from spark_statestore.cli.state import state
from spark_statestore.cli.watch import watch

_SHELLS: Final = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.group(
    "spark-statestore", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Inspect and maintain checkpoints and savepoints of spark-statestore.

    Checkpoints, savepoints and targets are directories: local paths, or fsspec URLs (s3://, gs://, abfss://,
    hdfs:// and others). Neither Spark nor Java is needed, except by convert.

    Exit codes: 0 success, 1 failure or finding, 2 wrong usage.
    """


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@with_output
def completion(out: Output, shell: str) -> None:
    """Print the script that completes commands and options in a SHELL."""
    script = _SHELLS[shell](app, {}, "spark-statestore", "_SPARK_STATESTORE_COMPLETE").source()
    out.result({"shell": shell, "script": script}, script)


for command in (
    ls,
    show,
    get,
    diff,
    verify,
    repair,
    savepoint,
    holds,
    rollback,
    clone,
    rescale,
    begin_output,
    convert,
    state,
    migrate,
    gc,
    plot,
    watch,
    assess,
    plan,
    doctor,
    jar,
    completion,
):
    app.add_command(command)
