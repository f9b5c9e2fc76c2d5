"""``python -m tests.cluster``: kill a cluster's processes by the hundred and print what came of it."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.cluster import plans
from tests.cluster.run import run
from tests.conftest import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="how many processes to kill at least (300)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="where the runs' seeds begin")
    parser.add_argument(
        "--short", action="store_true", help="the run of make test instead, with its 20 kills"
    )
    parser.add_argument("--s3", action="store_true", help="keep state on an S3 service of this machine")
    asked = parser.parse_args()
    subprocess.run([sys.executable, str(ROOT / "jvm-shim" / "build_shim.py")], check=True)
    print(f"seed {asked.seed}", flush=True)
    if asked.short:
        figures = run(plans.short(asked.seed))
    else:
        figures = plans.run_until(
            asked.kills, asked.seed, lambda text: print(text, flush=True), on_s3=asked.s3
        )
    print(f"\nall\n{figures}")


main()
