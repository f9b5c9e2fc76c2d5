"""Results of the benchmark: bounds with their measurements, Markdown tables, and the environment of a run."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

_AMPLIFIED = [
    f"{keys:,} keys, {updates:,} updates"
    for keys in (200_000, 1_000_000, 5_000_000, 10_000_000)
    for updates in (2_000, 10_000)
]

_EXPLANATIONS: dict[str, list[str]] = {
    "A batch waits for memory": [
        "batch of 10,000 rows at 1,000,000 keys",
        "batch of 10,000 rows, 100,000 to 5,000,000 keys",
    ],
    "A commit compresses, and sends to another process": ["commit of 10,000 rows", "commit of 100,000 rows"],
    "A removal of an absent key looks it up": ["Spark's benchmark: delete, 0 %"],
    "A load builds an index": [
        *(f"cold load of 1,000,000 rows after {deltas} deltas" for deltas in (0, 50)),
        *(f"time of a load, {work}" for work in _AMPLIFIED),
    ],
    "The backend takes as much memory as 600,000 rows": ["memory for each of 1,000,000 rows"],
    "The slowest batches of one store wait for a core": [f"p99 beside merges, {work}" for work in _AMPLIFIED],
    "Each retained version keeps its base": [
        f"bytes stored, {work}" for work in (*_AMPLIFIED[:4], _AMPLIFIED[5])
    ],
    "A commit has a fixed cost for each partition": [
        "count by key, 8 partitions, 1,000 rows, 60,000 keys: p50 to the limit",
        "count by key, 8 partitions, 1,000 rows, 60,000 keys, commit=task: p50 to the limit",
        "count by key, 200 partitions, 10,000 rows, 340,000 keys, commit=task: p50 to the limit",
    ],
    "Python's workers take most of a batch": [
        f"S3, transformWithState in Python, {work}200 partitions, 30 ms: p50"
        for work in ("", "worker_daemon, Unix domain sockets, ")
    ],
    "Ten batches include a snapshot": [f"S3, dedup, 8 partitions, {delay} ms: bytes" for delay in (0, 30)],
}

EXPLAINED = {work: heading for heading, works in _EXPLANATIONS.items() for work in works}
"""Measurements known to miss their bound, with the heading in docs/performance.md that explains each."""


@dataclass(frozen=True)
class Criterion:
    """A bound, and the measurement."""

    work: str
    """Name of the measurement in the summary: one line, and the same in every run."""
    measured: float
    bound: float
    """Upper limit of `measured`; with `against`, as a share of that."""
    unit: str = ""
    against: float | None = None
    """Measurement to compare with, in the same unit."""
    rival: str = ""
    """Name of the store whose measurement `against` is."""
    at_least: bool = False
    """Whether the bound is the least rather than the most."""

    @property
    def ratio(self) -> float:
        """Return the measurement over its rival; without one, over the bound if that is not 0."""
        return self.measured / ((self.bound if self.against is None else self.against) or 1)

    @property
    def met(self) -> bool:
        judged = self.measured if self.against is None else self.ratio
        return judged >= self.bound if self.at_least else judged <= self.bound

    @property
    def accepted(self) -> bool:
        """Return whether the bound is met, or its miss is explained."""
        return self.met or self.work in EXPLAINED

    @property
    def verdict(self) -> str:
        if self.met:
            return "ok"
        return "short, explained" if self.work in EXPLAINED else "short"

    def row(self) -> list[str]:
        """Return the row of the summary."""
        sign = "≥" if self.at_least else "≤"
        bound = f"{sign} {self.bound:.3g}"
        if self.against is not None:
            bound += f" of {_number(self.against, self.unit)}"
            bound += f" ({self.rival})" if self.rival else ""
        else:
            bound += f" {self.unit}".rstrip()
        return [self.work, _number(self.measured, self.unit), bound, f"{self.ratio:.3f}", self.verdict]


@dataclass(frozen=True)
class Result:
    """Results of a part of a group: Markdown with headings from the third level, and rows of the summary."""

    tables: str
    criteria: list[Criterion]


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile: the least value that a given share does not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1] if values else float("nan")


def environment() -> str:
    """Describe the environment in a line, without identifying the machine."""
    import pyarrow
    import pyspark

    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    settings = subprocess.run(
        [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True
    ).stderr
    properties = dict(
        re.findall(r"^ +(java\.vm\.name|java\.runtime\.version) = (.*)$", settings, re.MULTILINE)
    )
    described = {
        "cores": os.cpu_count(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "java": f"{properties['java.vm.name']} {properties['java.runtime.version']}",
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "load average over the last 15 minutes": round(os.getloadavg()[2], 1),
    }
    return ", ".join(f"{key} {value}" for key, value in described.items()) + "."


def figures(*values: float) -> list[str]:
    """Format numbers for a table."""
    return [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in values]


def table(title: str, header: list[str], rows: list[list[str]], level: int = 3) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Iterable[str]) -> str:
        padded = [
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([f"{'#' * level} {title}", "", line(header), rule, *(line(row) for row in rows)])


def summary(criteria: Iterable[Criterion], failed: Iterable[str]) -> str:
    """Return one table of all bounds, and of the parts that failed."""
    rows = [criterion.row() for criterion in criteria] + [[name, "", "", "", "failed"] for name in failed]
    return table("Summary", ["work", "measured", "bound", "ratio", ""], rows, level=2)


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
