"""Memory of one store by class and mapping: ``python -m benchmarks.footprint``.

Of the JVM it counts objects by class (needs a JDK's ``jcmd``), of the backend it adds mappings up by what
they map.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil

from benchmarks import contest, session
from benchmarks.contest import OURS
from benchmarks.report import table
from tests.spark.counting import backends_of, jvm_of

KEYS = 1_000_000
MIB = 2**20


def main() -> int:
    """Fill a store, and print both tables."""
    directory = tempfile.TemporaryDirectory(prefix="statestore-footprint-")
    with directory as scratch, session.running(Path(scratch)) as spark:
        empty = classes_of(jvm_of(spark))
        store = contest.open_store(spark, Path(scratch) / "state", OURS)
        store.fill(KEYS)
        contest.bench(spark).StoreBenchmark.settle()
        grown = classes_of(jvm_of(spark))
        grown.subtract(empty)
        (backend,) = backends_of(jvm_of(spark))
        mapped = mappings_of(backend)
        store.close()
    rows = [[name, f"{size / MIB:.2f}", f"{size / KEYS:.2f}"] for name, size in grown.most_common(8)]
    print(table(f"Heap of a store of {KEYS:,} rows, more than before", ["class", "MiB", "bytes a row"], rows))
    rows = [[name, f"{size / MIB:.2f}"] for name, size in mapped.most_common(8)]
    rows.append(["all", f"{mapped.total() / MIB:.2f}"])
    print("\n" + table("Resident memory of its backend", ["mapping", "MiB"], rows))
    return 0


def classes_of(jvm: int) -> Counter[str]:
    """Return the bytes of reachable objects by class."""
    command = ["jcmd", str(jvm), "GC.class_histogram"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = re.findall(r"^\s*\d+:\s+\d+\s+(\d+)\s+(\S+)", printed, re.MULTILINE)
    return Counter({name: int(size) for size, name in lines})


def mappings_of(process: psutil.Process) -> Counter[str]:
    """Return resident bytes by mapped file; anonymous memory is the process's own."""
    found: Counter[str] = Counter()
    for mapping in process.memory_maps():
        name = Path(mapping.path).name if mapping.path.startswith("/") else "no file: its own data"
        found[re.sub(r"\.(cpython|so)\b.*", "", name)] += mapping.rss
    return found


if __name__ == "__main__":
    sys.exit(main())
