"""``python -m tests.system.cluster``: kill hundreds of a cluster's processes and print the results."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.support.paths import ROOT
from tests.system.cluster import plans


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.cluster", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="least number of processes to kill (300)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="seed of the first run")
    parser.add_argument("--s3", action="store_true", help="keep state on an S3 service of this machine")
    parser.add_argument(
        "--commit", choices=["task", "batch"], default="task", help="the option commit of the queries (task)"
    )
    arguments = parser.parse_args()
    subprocess.run([sys.executable, str(ROOT / "jvm-shim" / "build_shim.py")], check=True)
    print(f"seed {arguments.seed}", flush=True)
    figures = plans.run_until(
        arguments.kills,
        arguments.seed,
        lambda text: print(text, flush=True),
        on_s3=arguments.s3,
        commit=arguments.commit,
    )
    print(f"\nall\n{figures}")


main()
