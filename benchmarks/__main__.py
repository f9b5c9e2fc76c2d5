"""Measure the store beside Spark's own: ``python -m benchmarks``.

Every group runs in its own process and JVM, one after the other, and prints its tables; at the end follows
one table with every bound that the product promises. The exit code is 1 if a group fails, or if a miss of a
bound is not explained.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks import groups, report, session
from benchmarks.result import Result
from benchmarks.session import separately

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure, print and check the bounds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="A,B", type=_names, default=list(groups.GROUPS), help=_help())
    parser.add_argument(
        "--quick", action="store_true", help="small and short, as a smoke test without bounds"
    )
    parser.add_argument("--save", metavar="NAME", help="keep tables and samples in results/<date>-NAME")
    parser.add_argument("--directory", help="directory of the measured stores")
    arguments = parser.parse_args()
    about = report.environment()
    heading = ", ".join(f"{key} {value}" for key, value in about.items()) + "."
    print(heading, flush=True)
    found: list[Result] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="statestore-bench-", dir=arguments.directory) as directory:
        for name in arguments.only:
            start = time.monotonic()
            # A name may be given twice.
            scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=directory))
            call = separately(groups.run, name, scratch, arguments.quick)
            if error := call.exception():
                traceback.print_exception(error)
                failed.append(name)
                continue
            found.append(call.result())
            session.log(f"{name}: {time.monotonic() - start:.0f} s")
            print(f"\n## {name}\n\n{found[-1].tables}", flush=True)
    print(f"\n{summary(found, failed)}", flush=True)
    if arguments.save:
        save(arguments.save, heading, about, found, failed)
    short = [c for result in found for c in result.criteria if not c.accepted]
    return 1 if failed or (short and not arguments.quick) else 0


def summary(found: list[Result], failed: list[str]) -> str:
    """Return one table of all bounds."""
    rows = [criterion.row() for result in found for criterion in result.criteria]
    rows += [[f"group {name}", "", "", "", "failed"] for name in failed]
    return report.table("Summary", ["work", "measured", "bound", "ratio", ""], rows, level=2)


def save(name: str, heading: str, about: dict[str, Any], found: list[Result], failed: list[str]) -> None:
    """Store the tables and the samples of a run."""
    name = f"{datetime.date.today().isoformat()}-{name}"
    RESULTS.mkdir(exist_ok=True)
    parts = [f"# {name}", heading, summary(found, failed)]
    parts += [f"## {result.name}\n\n{result.tables}" for result in found]
    (RESULTS / f"{name}.md").write_text("\n\n".join(parts) + "\n")
    samples = {"environment": about, "groups": [result.as_json() for result in found], "failed": failed}
    (RESULTS / f"{name}.json").write_text(report.as_json(samples))


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in groups.GROUPS | groups.SEPARATE]
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no group {', '.join(unknown)}")
    return names


def _help() -> str:
    separate = f"; when asked for: {', '.join(groups.SEPARATE)}" if groups.SEPARATE else ""
    return f"of the groups {', '.join(groups.GROUPS)}{separate}"


if __name__ == "__main__":
    sys.exit(main())
