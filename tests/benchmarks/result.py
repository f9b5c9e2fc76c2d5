"""What a group of the benchmark hands back: tables to read, bounds to be judged by, samples to keep."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

EXPLAINED: dict[str, str] = {
    "batch of 10,000 rows at 1,000,000 keys": "A batch waits for memory",
    "batch of 10,000 rows, 100,000 to 5,000,000 keys": "A batch waits for memory",
    "empty batch of 200 stores, each store, by itself": "An empty commit makes two inodes",
    "commit of 10,000 rows": "A commit compresses, and crosses to another process",
    "commit of 100,000 rows": "A commit compresses, and crosses to another process",
    "cold load of 1,000,000 rows after 0 deltas": "A load makes an index",
    "cold load of 1,000,000 rows after 50 deltas": "A load makes an index",
    "memory for each of 1,000,000 rows": "The backend weighs as much as 600,000 rows",
    "16 commits of 1 MB at once, synced": "Sixteen commits have two cores",
}
"""Work that is known to be short, and the heading in docs/performance.md that shows by a profile why."""


@dataclass(frozen=True)
class Criterion:
    """A bound, and what was measured.

    Parameters
    ----------
    work
        What was done, as the summary calls it: one line, and the same in every run.
    measured
        In `unit`.
    bound
        The most that `measured` may be; with `against`, the most that it may be as a share of that.
    unit
        Such as ``ms``, ``bytes`` or nothing.
    against
        What it is compared with, in the same unit.
    rival
        Whose measurement `against` is.
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
        """What was measured, over what it is compared with; without that, over the bound if it is not 0."""
        return self.measured / ((self.bound if self.against is None else self.against) or 1)

    @property
    def met(self) -> bool:
        judged = self.measured if self.against is None else self.ratio
        return judged >= self.bound if self.at_least else judged <= self.bound

    @property
    def accepted(self) -> bool:
        """Whether it is met, or it is explained why not."""
        return self.met or self.work in EXPLAINED

    @property
    def verdict(self) -> str:
        if self.met:
            return "ok"
        return "short, explained" if self.work in EXPLAINED else "short"

    def row(self) -> list[str]:
        """As the summary has it."""
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
    """What a group measured.

    Parameters
    ----------
    name
        The group's name, as in ``--only``.
    tables
        In Markdown, which also reads well in a terminal; headings from the third level.
    criteria
        The rows of the summary.
    samples
        All that was measured, fit for JSON.
    """

    name: str
    tables: str
    criteria: list[Criterion] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All but the tables."""
        judged = [asdict(c) | {"ratio": c.ratio, "verdict": c.verdict} for c in self.criteria]
        return {"group": self.name, "criteria": judged, "samples": self.samples}


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".rstrip()
