"""Measure the store beside Spark's own: ``python -m benchmarks``.

Every part prints its tables; at the end follows one table with every bound that the product promises. The
exit code is 1 if a part fails, or if a miss of a bound is not explained in docs/performance.md.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
import traceback
from pathlib import Path

from benchmarks import groups, report
from benchmarks.report import Criterion, Result
from benchmarks.sessions import log

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure, print and check the bounds."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=_groups(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = [name for name, group in groups.GROUPS.items() if group.by_default]
    parser.add_argument(
        "--only",
        metavar="A,B",
        type=_parts,
        default=list(groups.parts_of(default)),
        help=f"groups or their parts; by default {', '.join(default)}",
    )
    parser.add_argument("--quick", action="store_true", help="small and short, a smoke test without bounds")
    parser.add_argument("--save", metavar="NAME", help="keep the tables in results/<date>-NAME.md")
    parser.add_argument("--directory", help="directory of the measured stores")
    arguments = parser.parse_args()
    environment = report.environment()
    print(environment, flush=True)
    results: dict[str, Result] = {}
    failed: list[str] = []
    for part in arguments.only:
        start = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="statestore-bench-", dir=arguments.directory) as scratch:
                results[part] = groups.run(part, Path(scratch), arguments.quick)
        except Exception:  # noqa: BLE001 - the other parts run all the same
            traceback.print_exc()
            failed.append(part)
        else:
            log(f"{part}: {time.monotonic() - start:.0f} s")
            print(f"\n## {part}\n\n{results[part].tables}", flush=True)
        if arguments.save:
            # A run of hours may be interrupted.
            _save(f"{datetime.date.today().isoformat()}-{arguments.save}", environment, results, failed)
    criteria = _criteria(results)
    print(f"\n{report.summary(criteria, failed)}", flush=True)
    accepted = arguments.quick or all(criterion.accepted for criterion in criteria)
    return 0 if accepted and not failed else 1


def _criteria(results: dict[str, Result]) -> list[Criterion]:
    return [criterion for result in results.values() for criterion in result.criteria]


def _save(name: str, environment: str, results: dict[str, Result], failed: list[str]) -> None:
    summary = report.summary(_criteria(results), failed)
    tables = [f"## {part}\n\n{result.tables}" for part, result in results.items()]
    RESULTS.mkdir(exist_ok=True)
    text = "\n\n".join([f"# {name}", environment, summary, *tables])
    (RESULTS / f"{name}.md").write_text(f"{text}\n")


def _parts(text: str) -> list[str]:
    try:
        return list(dict.fromkeys(groups.parts_of(text.split(","))))
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"there is no group or part {error}") from None


def _groups() -> str:
    lines = ["groups, minutes on two cores, and parts:"]
    for name, group in groups.GROUPS.items():
        parts = f" ({', '.join(group.parts)})" if len(group.parts) > 1 else ""
        lines.append(f"  {name:8} {group.minutes:3}  {group.about}{parts}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
