"""The groups of the benchmark.

Each has parts, which are modules with ``run(scratch: Path, quick: bool) -> Result``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.report import Result


@dataclass(frozen=True)
class Group:
    """A group: what it measures, minutes on two cores, its modules, and whether it runs if none is named."""

    about: str
    minutes: int
    parts: tuple[str, ...]
    by_default: bool = True


GROUPS: dict[str, Group] = {
    "guard": Group("the two ratios of batches that a change must keep", 1, ("guard",), by_default=False),
    "batches": Group("rows, batches and commits of one store", 20, ("rows", "store_batches", "commits")),
    "operations": Group(
        "Spark's own benchmark of single operations, with this store as one more case",
        5,
        ("basic_operations",),
    ),
    "loads": Group("loads of a state that an executor does not have", 5, ("cold_loads",)),
    "queries": Group(
        "whole queries beside Spark's stores and a store that keeps nothing",
        90,
        ("operators", "limit", "merges"),
    ),
    "nexmark": Group(
        "Nexmark's queries beside Spark's stores and Flink: processor time, memory, disk, restart",
        50,
        ("nexmark", "nexmark_flink"),
        by_default=False,
    ),
    "jobs": Group(
        "scheduled jobs: new processes that run a few batches", 75, ("first_minutes",), by_default=False
    ),
    "real_time": Group(
        "Spark's benchmarks of stateful queries in real-time mode, from Kafka to Kafka",
        30,
        ("real_time",),
        by_default=False,
    ),
    "state": Group(
        "operator state whose snapshot is written beside the sink", 1, ("operator_state",), by_default=False
    ),
    "s3": Group(
        "whole queries with their checkpoints on S3 (MinIO), and their requests",
        55,
        ("s3_queries", "s3_requests"),
        by_default=False,
    ),
    "scale": Group(
        "memory, bytes written and cleanups by the size of the state, and state written without Spark",
        65,
        ("memory", "amplification", "cleanups", "written_state"),
    ),
}
"""Groups by name, in the order of the summary."""

PARTS = tuple(part for group in GROUPS.values() for part in group.parts)


def parts_of(names: list[str]) -> Iterator[str]:
    """Yield the parts of groups; a part may be named by itself.

    Raises
    ------
    KeyError
        There is no such group or part.
    """
    for name in names:
        if name in GROUPS:
            yield from GROUPS[name].parts
        elif name in PARTS:
            yield name
        else:
            raise KeyError(name)


def run(part: str, scratch: Path, quick: bool) -> Result:
    """Run one part."""
    result = import_module(f"{__name__}.{part}").run(scratch, quick)
    assert isinstance(result, Result)
    return result
