"""Where the time of one store goes: ``python -m tests.benchmarks.profile batch``.

Draws flame graphs of both halves: of the JVM by its flight recorder (needs a JDK's ``jfr`` and ``jcmd``),
of the backend by py-spy, which must be installed (``pip install py-spy``).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import spark_statestore
from tests.benchmarks import flame, session


def main() -> int:
    """Run one kind of work for a while and draw where its time went."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.profile", description=__doc__)
    parser.add_argument("work", choices=sorted(WORK))
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the store")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to look")
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the graphs go")
    arguments = parser.parse_args()
    missing = [tool for tool in ("jfr", "jcmd", "py-spy") if shutil.which(tool) is None]
    if missing:
        parser.error(f"{', '.join(missing)} cannot be found: install a JDK 17, and py-spy by pip")
    with tempfile.TemporaryDirectory(prefix="statestore-profile-") as scratch:
        spark = session.start(Path(scratch))
        try:
            store = spark._jvm.org.apache.spark.sql.statestore.StoreBenchmark(
                spark_statestore.PROVIDER_CLASS, f"file:{scratch}/state", spark.conf.getAll
            )
            store.fill(arguments.keys)
            work, frame = WORK[arguments.work](store)
            _warm_up(work)
            java, python = _look(spark, work, arguments.seconds, Path(scratch))
            store.close()
        finally:
            spark.stop()
    name = f"{arguments.work}-{arguments.keys // 1000}k"
    java = flame.below(java, frame)
    for stacks, half in ((java, "jvm"), (python, "backend")):
        path = arguments.out / f"flame-{name}-{half}.svg"
        flame.draw(stacks, f"{arguments.work}, {arguments.keys:,} keys, {half}", path)
        print(f"\n{path}\n")
        for leaf, share in flame.shares(stacks):
            print(f"{share:6.1%}  {leaf}")
    return 0


Work = Callable[[int], None]


def _batches(operations: int) -> Callable[[Any], tuple[Work, str]]:
    def make(store: Any) -> tuple[Work, str]:
        return (lambda seed: store.batch(operations, seed)), "StoreBenchmark.batch"

    return make


def _loads(store: Any) -> tuple[Work, str]:
    return (lambda _: store.coldLoad()), "StoreBenchmark.coldLoad"


WORK: dict[str, Callable[[Any], tuple[Work, str]]] = {
    "batch": _batches(10_000),
    "small": _batches(100),
    "empty": _batches(0),
    "load": _loads,
}
"""What can be looked at: what a round does, and the frame in which it does it."""


def _warm_up(work: Work, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    seed = 0
    while time.monotonic() < until:
        work(seed)
        seed += 1


def _look(spark: Any, work: Work, seconds: float, scratch: Path) -> tuple[flame.Stacks, flame.Stacks]:
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    backend = next(
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdigit() and _parent(pid) == jvm and "spark_statestore.server" in _command(pid)
    )
    recording, folded, settings = scratch / "java.jfr", scratch / "python.txt", scratch / "settings.jfc"
    settings.write_text(_SETTINGS)
    subprocess.run(
        ["jcmd", str(jvm), "JFR.start", "name=profile", f"settings={settings}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    spy = subprocess.Popen(
        [
            "py-spy",
            "record",
            "--pid",
            str(backend),
            "--rate",
            "500",
            "--format",
            "raw",
            "--duration",
            str(int(seconds)),
            "--output",
            str(folded),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _warm_up(work, seconds)
    subprocess.run(
        ["jcmd", str(jvm), "JFR.stop", "name=profile", f"filename={recording}"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    spy.wait()
    printed = subprocess.run(
        [
            "jfr",
            "print",
            "--json",
            "--stack-depth",
            "64",
            "--events",
            "jdk.ExecutionSample,jdk.NativeMethodSample",
            str(recording),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    python = flame.from_folded(folded.read_text().splitlines()) if folded.exists() else flame.Stacks()
    return flame.from_jfr(printed), python


def _parent(pid: str) -> int:
    try:
        return int(Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _command(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_text()
    except OSError:
        return ""


_SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<configuration version="2.0">
  <event name="jdk.ExecutionSample"><setting name="enabled">true</setting><setting name="period">1 ms</setting></event>
  <event name="jdk.NativeMethodSample"><setting name="enabled">true</setting><setting name="period">1 ms</setting></event>
</configuration>
"""


if __name__ == "__main__":
    sys.exit(main())
