"""Compare the store with Spark's own: ``python -m tests.benchmarks``.

Prints tables and judges what the product promises; the exit code is 1 if it is not met.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks import contest, report
from tests.sessions import local_builder

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "results"
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
        spark = _session(Path(scratch))
        try:
            samples = contest.measure(spark, Path(scratch), plan, _say)
            about = report.environment(spark)
        finally:
            spark.stop()
    judged = report.criteria(samples)
    text = report.tables(samples, plan, about) + "\n\n" + "\n".join(f"- {c}" for c in judged)
    print(text)
    if arguments.save:
        name = f"{datetime.date.today().isoformat()}-{arguments.save}"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text(f"# {name}\n\n{text}\n")
        found = json.dumps(report.as_json(samples, plan, about, judged), indent=1)
        (RESULTS / f"{name}.json").write_text(found + "\n")
    return 0 if all(c.met for c in judged) else 1


def _session(scratch: Path) -> Any:
    build = [sys.executable, str(ROOT / "jvm-shim" / "build_shim.py"), "--tests"]
    subprocess.run(build, check=True, stdout=sys.stderr)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import spark_statestore

    builder = (
        local_builder("benchmarks", memory="6g")
        .config("spark.jars", str(ROOT / "jvm-shim" / "target" / "spark-statestore-tests.jar"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.local.dir", str(scratch / "local"))
    )
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
