"""Compare the store with Spark's own: ``python -m tests.benchmarks``.

Prints tables and judges what the product promises; the exit code is 1 if it is not met.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.benchmarks import contest, report, session

FULL = contest.Plan(sizes=(100_000, 1_000_000), warmup=10, batches=40)
QUICK = contest.Plan(
    sizes=(100_000,), warmup=5, batches=5, small_batches=5, maintenance_every=5, cold_loads=1
)


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short, to see that it works")
    parser.add_argument("--save", metavar="NAME", help="keep tables and samples in results/<date>-NAME")
    parser.add_argument("--directory", help="where the stores lie while they are measured")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    with tempfile.TemporaryDirectory(prefix="statestore-bench-", dir=arguments.directory) as scratch:
        spark = session.start(Path(scratch))
        try:
            samples = contest.measure(spark, Path(scratch), plan, session.say)
            about = report.environment(spark)
        finally:
            spark.stop()
    judged = report.criteria(samples)
    text = report.tables(samples, plan, about) + "\n\n" + "\n".join(f"- {c}" for c in judged)
    print(text)
    if arguments.save:
        report.save(arguments.save, text, report.as_json(samples, plan, about, judged))
    return 0 if all(c.met for c in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
