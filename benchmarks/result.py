"""Results of a benchmark group: tables to print, bounds to check, samples to store."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

_AMPLIFIED = [
    f"{keys:,} keys, {updates:,} updates"
    for keys in (200_000, 1_000_000, 5_000_000, 10_000_000)
    for updates in (2_000, 10_000)
]

EXPLAINED: dict[str, str] = {
    **dict.fromkeys([f"time of a load, {work}" for work in _AMPLIFIED], "A load builds an index"),
    **dict.fromkeys(
        [f"p99 beside merges, {work}" for work in _AMPLIFIED],
        "The slowest batches of one store wait for a core",
    ),
    **dict.fromkeys(
        [f"bytes stored, {work}" for work in (*_AMPLIFIED[:4], _AMPLIFIED[5])],
        "Each retained version keeps its base",
    ),
    "batch of 10,000 rows at 1,000,000 keys": "A batch waits for memory",
    "batch of 10,000 rows, 100,000 to 5,000,000 keys": "A batch waits for memory",
    "empty batch of 200 stores, each store, by itself": "An empty commit creates two inodes",
    "commit of 10,000 rows": "A commit compresses, and sends to another process",
    "commit of 100,000 rows": "A commit compresses, and sends to another process",
    "cold load of 1,000,000 rows after 0 deltas": "A load builds an index",
    "cold load of 1,000,000 rows after 50 deltas": "A load builds an index",
    "memory for each of 1,000,000 rows": "The backend takes as much memory as 600,000 rows",
    "16 commits of 1 MB at once, synced": "Sixteen commits share two cores",
    **dict.fromkeys(
        [
            f"count by key, {work}: p50 to the limit"
            for work in (
                "8 partitions, 1,000 rows, 60,000 keys",
                "8 partitions, 1,000 rows, 60,000 keys, commit=task",
                "200 partitions, 10,000 rows, 340,000 keys, commit=task",
            )
        ],
        "A commit has a fixed cost for each partition",
    ),
    **dict.fromkeys(
        [
            f"S3, transformWithState in Python, {work}200 partitions, 30 ms: p50"
            for work in ("", "worker_daemon, Unix domain sockets, ")
        ],
        "Python's workers take most of a batch",
    ),
    **dict.fromkeys(
        [f"S3, dedup, 8 partitions, {delay} ms: bytes" for delay in (0, 30)], "Ten batches include a snapshot"
    ),
}
"""Measurements known to miss their bound, with the heading in docs/performance.md that explains each."""


@dataclass(frozen=True)
class Criterion:
    """A bound, and the measurement.

    Parameters
    ----------
    work
        Name of the measurement in the summary: one line, and the same in every run.
    measured
        In `unit`.
    bound
        Upper limit of `measured`; with `against`, as a share of that.
    unit
        Such as ``ms``, ``bytes`` or nothing.
    against
        Measurement to compare with, in the same unit.
    rival
        Name of the store whose measurement `against` is.
    at_least
        Whether the bound is the least rather than the most.
    """

    work: str
    measured: float
    bound: float
    unit: str = ""
    against: float | None = None
    rival: str = ""
    at_least: bool = False

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
        """Return the verdict in the summary."""
        sign = "≥" if self.at_least else "≤"
        bound = f"{sign} {self.bound:.3g}"
        if self.against is not None:
            bound += f" of {_number(self.against, self.unit)}"
            bound += f" ({self.rival})" if self.rival else ""
        else:
            bound += f" {self.unit}".rstrip()
        return [self.work, _number(self.measured, self.unit), bound, f"{self.ratio:.3f}", self.verdict]

    def __str__(self) -> str:
        return ": ".join([self.verdict, " | ".join(self.row()[:-1])])


@dataclass(frozen=True)
class Result:
    """Results of a group.

    Parameters
    ----------
    name
        The group's name, as in ``--only``.
    tables
        In Markdown, which also reads well in a terminal; headings from the third level.
    criteria
        The rows of the summary.
    samples
        All measurements, fit for JSON.
    """

    name: str
    tables: str
    criteria: list[Criterion] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return everything except the tables."""
        judged = [asdict(c) | {"ratio": c.ratio, "verdict": c.verdict} for c in self.criteria]
        return {"group": self.name, "criteria": judged, "samples": self.samples}


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
