"""Stream a year of real flights, kill the driver halfway, and compare the result with the batch answer.

Three stateful queries read the 336,776 flights out of New York in 2013 in the order of their
schedule. Halfway their driver is killed with SIGKILL, with its JVM. A new driver resumes from the
checkpoints. At the end every result must equal the batch answer on the same files, row for row.

    pip install 'spark-statestore[demo]'
    python examples/flights_demo.py
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from _flights import driver, report
from _flights.data import write_weeks
from _flights.queries import QUERIES
from rich.console import Console

LAST_LINE = "demo: result equals the batch answer"


class DemoError(Exception):
    """The demo did not produce the expected result."""


def demo(work: Path, console: Console) -> None:
    """Write the input, run the queries with a kill halfway, and report.

    Raises
    ------
    DemoError
        If a driver failed, a query did not resume where it was, or a result is wrong.
    """
    rows, files = write_weeks(work / "flights")
    console.print(f"{rows:,} flights in {files} files, one for each week and one that ends the stream")
    with report.BatchBars(console, list(QUERIES), files) as bars:
        with running_driver(work) as process:
            watch(process, work, bars, lambda batches: sum(batches.values()) >= files * len(QUERIES) / 2)
            if process.poll() is not None or (work / "result.json").exists():
                raise DemoError("the queries had ended before they could be killed")
            kill(process)
        killed = committed(work)
        describe_kill(work, console, killed)
        with running_driver(work) as process:
            watch(process, work, bars, lambda batches: False)

    progress, resumed = report.read_progress(work)
    results = json.loads((work / "result.json").read_text())
    for table in (
        report.batches_table(progress, resumed),
        report.spread_table(progress),
        report.state_table(work, progress),
        report.results_table(results),
    ):
        console.print(table)
    check(killed, resumed, results, console)


@contextmanager
def running_driver(work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a driver in its own process group, and kill what is left of the group afterwards."""
    # Files that a killed process leaves in the temporary directory are removed with the work directory.
    environment = os.environ | {"TMPDIR": str(work / "tmp"), "PYTHONUNBUFFERED": "1"}
    with (work / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "--driver", str(work)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the driver, its JVM and the backend with SIGKILL, as far as they still run."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def watch(
    process: subprocess.Popen[bytes],
    work: Path,
    bars: report.BatchBars,
    enough: Callable[[dict[str, int]], bool],
) -> None:
    """Show the progress until enough batches are committed, or until the driver has ended successfully.

    Raises
    ------
    DemoError
        If the driver failed.
    """
    while (code := process.poll()) is None:
        batches = committed(work)
        bars.show(batches)
        if enough(batches):
            return
        time.sleep(0.1)
    bars.show(committed(work))
    if code != 0:
        log = (work / "driver.log").read_text(errors="replace").splitlines()
        raise DemoError("\n".join([f"the driver ended with {code}. The end of its log:", *log[-30:]]))


def committed(work: Path, kind: str = "commits") -> dict[str, int]:
    """Return the number of batches that each query has committed, or planned, by its checkpoint."""
    counts = {}
    for query in QUERIES:
        files = (work / "checkpoints" / query / kind).glob("[0-9]*")
        counts[query] = 1 + max((int(file.name) for file in files if file.name.isdigit()), default=-1)
    return counts


def describe_kill(work: Path, console: Console, killed: dict[str, int]) -> None:
    planned = committed(work, "offsets")
    parts = []
    for query, count in killed.items():
        after = f"in batch {count}" if planned[query] > count else f"after batch {count - 1}"
        parts.append(f"{query} {after}")
    console.print("killed the driver and its JVM with SIGKILL:", ", ".join(parts), soft_wrap=True)


def check(killed: dict[str, int], resumed: dict[str, int], results: dict[str, Any], console: Console) -> None:
    """Fail unless the queries resumed where they were killed, and every result is right."""
    if resumed != killed:
        raise DemoError(f"the queries should have resumed at the batches {killed}, but did at {resumed}")
    for name, result in results.items():
        for side in ("only_stream", "only_batch"):
            for row in result[side]:
                console.print(f"{name}, {side.replace('_', ' in the ')}: {row}", soft_wrap=True, markup=False)
    wrong = [name for name, result in results.items() if not report.is_equal(result)]
    if wrong:
        raise DemoError(f"the stream's result is not the batch answer: {', '.join(wrong)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, help="keep all files there; must be new or empty")
    parser.add_argument("--driver", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.driver:
        driver.run(arguments.driver)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that it cleans up, too

    work = (arguments.directory or Path(tempfile.mkdtemp(prefix="flights-demo-"))).resolve()
    if work.exists() and any(work.iterdir()):
        parser.error(f"{work} is not empty: name a new directory")
    (work / "tmp").mkdir(parents=True)
    console = Console()
    try:
        demo(work, console)
    except DemoError as error:
        console.print(f"{error}\nThe files are in {work}", soft_wrap=True, markup=False, highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        code = 130
    else:
        code = 0
    if arguments.directory is None:
        shutil.rmtree(work)
    if code == 0:
        print(LAST_LINE)
    return code


if __name__ == "__main__":
    sys.exit(main())
