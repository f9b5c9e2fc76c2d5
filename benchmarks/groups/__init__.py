"""The groups of the benchmark: each a module with ``run(scratch: Path, quick: bool) -> Result``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from benchmarks.result import Result

GROUPS: dict[str, str] = {
    "rows": "benchmarks.groups.rows",
    "batches": "benchmarks.groups.batches",
    "empty": "benchmarks.groups.empty",
    "commits": "benchmarks.groups.commits",
    "loads": "benchmarks.groups.loads",
    "memory": "benchmarks.groups.memory",
    "spill": "benchmarks.groups.spill",
    "threads": "benchmarks.groups.threads",
    "requests": "benchmarks.groups.requests",
    "queries": "benchmarks.groups.queries",
    "limit": "benchmarks.groups.limit",
    "merges": "benchmarks.groups.merges",
    "cleanups": "benchmarks.groups.cleanups",
    "amplification": "benchmarks.groups.amplification",
    "driver_files": "benchmarks.groups.driver_files",
    "operators": "benchmarks.groups.operators",
    "read_state": "benchmarks.groups.read_state",
    "savepoints": "benchmarks.groups.savepoints",
}
"""Names and modules, in the order of the summary."""

SEPARATE: dict[str, str] = {
    "guard": "benchmarks.groups.guard",
    "scale": "benchmarks.groups.scale",
    "s3": "benchmarks.groups.s3",
    "s3_requests": "benchmarks.groups.s3_requests",
    "observation": "benchmarks.groups.observation",
    "real_time": "benchmarks.groups.real_time",
    "codecs": "benchmarks.groups.codecs",
    "python_workers": "benchmarks.groups.python_workers",
}
"""Groups that run only when they are asked for by name."""


def run(name: str, scratch: Path, quick: bool) -> Result:
    """Run one group in this process, with its JVM if it starts one."""
    result = import_module((GROUPS | SEPARATE)[name]).run(scratch, quick)
    assert result.name == name, f"the group {name} calls itself {result.name}"
    return result
