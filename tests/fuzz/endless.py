"""Time-bounded fuzzing of the readers, guided by coverage if atheris is installed.

    python -m tests.fuzz.endless SECONDS [SEED]

Every reader of tests/fuzz/targets.py gets its share of the time, in its own process with a memory limit. The
last line of output is a JSON object: the number of inputs of each reader, and the engine that generated them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.paths import ROOT

MEMORY = 4 << 30


def with_atheris(name: str, seconds: int, seed: int) -> None:
    """Run one target under libFuzzer, and end the process."""
    import atheris

    with atheris.instrument_imports(include=["spark_statestore"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, data in enumerate(target.seeds):
            Path(corpus, str(number)).write_bytes(data)
        limits = [f"-max_total_time={seconds}", "-rss_limit_mb=2048", "-timeout=20", "-max_len=65536"]

        def take(data: bytes) -> None:
            target.takes(data)

        atheris.Setup([sys.argv[0], f"-seed={seed}", *limits, corpus], take)
        atheris.Fuzz()


def by_chance(name: str, seconds: int, seed: int) -> None:
    """Run one target on randomly damaged bytes."""
    from tests.fuzz.mutations import damaged
    from tests.fuzz.targets import TARGETS

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    target = TARGETS[name]
    chance = random.Random(seed)
    end = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < end:
        data = damaged(chance.choice(target.seeds), chance)
        try:
            target.takes(data)
        except BaseException:
            sys.stderr.write(f"{name}: {data.hex()}\n")
            raise
        runs += 1
    sys.stdout.write(f"Done {runs} runs\n")


def main() -> None:
    """Run all targets, or the named one."""
    seconds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(2**31)
    guided = importlib.util.find_spec("atheris") is not None
    if len(sys.argv) > 3:
        (with_atheris if guided else by_chance)(sys.argv[3], seconds, seed)
        return
    from tests.fuzz.targets import TARGETS

    figures: dict[str, object] = {"by": "atheris" if guided else "chance", "seed": seed, "seconds": seconds}
    share = max(1, seconds // len(TARGETS))
    for name in TARGETS:
        command = [sys.executable, "-m", "tests.fuzz.endless", str(share), str(seed), name]
        process = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=os.environ, check=False
        )
        if process.returncode:
            sys.stderr.write(process.stdout + process.stderr)
            raise SystemExit(f"{name}, seed {seed}: ended with {process.returncode}")
        runs = re.findall(r"Done (\d+)", process.stdout + process.stderr)
        figures[name] = int(runs[-1])
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
