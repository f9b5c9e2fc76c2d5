"""Plans for runs: a short one, and any number of long ones, each with other settings of the queries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import spark_statestore
from tests.system.cluster.disks import SmallDisk
from tests.system.cluster.faults import CUT, FREEZES, FULL_DISK, FULL_LOCAL_DISK, KILLS
from tests.system.cluster.hosts import Loopback, Namespaces
from tests.system.cluster.queries import KINDS
from tests.system.cluster.run import Figures, Plan, run

# The faults of a short run, 8 kills, and of each of the long ones, 30.
_SHORT = {
    "kill a backend": 2,
    "kill a backend and the other executor": 1,
    "kill an executor": 1,
    "kill an executor whose backend resumes later": 1,
    "kill a worker": 1,
    "kill the driver": 1,
    "freeze a backend": 1,
    "freeze an executor": 1,
}
_LONG = {
    "kill a backend": 10,
    "kill a backend and the other executor": 2,
    "kill an executor": 7,
    "kill an executor whose backend resumes later": 3,
    "kill a worker": 3,
    "kill the driver": 3,
    "freeze a backend": 1,
    "freeze an executor": 2,
    "freeze a worker": 1,
    "freeze the driver": 1,
}


def short(seed: int) -> Plan:
    """Return a plan of 8 kills and two queries, one in each format."""
    chance = random.Random(seed)
    # Local copies are of streams in files.
    options = {"commit": "task", "file_state_threshold": chance.choice([600, "32m"])}
    return Plan(
        seed, _shuffled(_SHORT, chance), {"windows": ("windows", 1), "joined": ("joined", 2)}, options
    )


def long(seed: int, *, on_s3: bool = False, commit: str = "task") -> Plan:
    """Return a plan of thirty kills, queries of every kind in alternating formats, and settings by the seed.

    With ``commit=batch`` all are in format v2.
    """
    chance = random.Random(f"long {seed}")
    by_batch = commit == "batch"
    first = chance.choice([0, 1])
    formats = [2 if by_batch else 2 - (number + first) % 2 for number in range(len(KINDS))]
    queries = {f"{kind}-v{version}": (kind, version) for kind, version in zip(KINDS, formats, strict=True)}
    happens = dict(_LONG)
    if SmallDisk.missing() is None:
        happens |= {FULL_DISK: 2, FULL_LOCAL_DISK: 1}
    if Namespaces.missing() is None:
        happens[CUT] = 3
    options: dict[str, Any] = {
        "file_state_threshold": chance.choice([0, 600, "32m"]),
        "max_heap_bytes": chance.choice([0, "64m"]),
        "compression": chance.choice(["none", "zstd"]),
        "fsync": chance.random() < 0.3,
        "commit": commit,
    }
    confs = {
        # Speculative attempts at one task run concurrently.
        "spark.speculation": str(chance.random() < 0.5).lower(),
        "spark.speculation.interval": "50ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "0ms",
    }
    if chance.random() < 0.5 or by_batch:
        confs["spark.plugins"] = spark_statestore.PLUGIN_CLASS
    return Plan(seed, _shuffled(happens, chance), queries, options, confs, outlast_timeouts=True, on_s3=on_s3)


def run_until(
    kills: int, seed: int, report: Callable[[str], None], *, on_s3: bool = False, commit: str = "task"
) -> Figures:
    """Run long plans until a number of processes was killed, and report each plan."""
    total = Figures()
    while sum(total.killed.values()) < kills:
        plan = long(seed, on_s3=on_s3, commit=commit)
        figures = run(plan, Namespaces() if CUT in plan.faults else Loopback())
        total.add(figures)
        report(f"\nseed {seed}: {plan.options} {plan.confs}\n{figures}")
        seed += 1
    return total


def _shuffled(happens: dict[str, int], chance: random.Random) -> list[str]:
    faults = list(Counter(happens).elements())
    chance.shuffle(faults)
    return faults


def kills_of(plan: Plan) -> int:
    return sum(KILLS.get(name, 0) for name in plan.faults)


assert set(_SHORT) | set(_LONG) <= {*KILLS, *FREEZES}
