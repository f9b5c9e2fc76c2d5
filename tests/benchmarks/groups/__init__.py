"""The groups of the benchmark: each a module with ``run(scratch: Path, quick: bool) -> Result``."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.benchmarks.result import Result

GROUPS: dict[str, str] = {
    "rows": "tests.benchmarks.groups.rows",
    "batches": "tests.benchmarks.groups.batches",
    "empty": "tests.benchmarks.groups.empty",
    "commits": "tests.benchmarks.groups.commits",
    "loads": "tests.benchmarks.groups.loads",
    "memory": "tests.benchmarks.groups.memory",
    "spill": "tests.benchmarks.groups.spill",
    "threads": "tests.benchmarks.groups.threads",
    "requests": "tests.benchmarks.groups.requests",
    "queries": "tests.benchmarks.groups.queries",
    "operators": "tests.benchmarks.groups.operators",
    "read_state": "tests.benchmarks.groups.read_state",
    "savepoints": "tests.benchmarks.groups.savepoints",
}
"""Names and modules, in the order of the summary."""

SEPARATE: dict[str, str] = {
    "guard": "tests.benchmarks.groups.guard",
    "scale": "tests.benchmarks.groups.scale",
    "codecs": "tests.benchmarks.groups.codecs",
}
"""Groups that run only when they are asked for by name."""


def run(name: str, scratch: Path, quick: bool) -> Result:
    """Run one group in this process; its JVM, if it starts one, is this process's."""
    result = import_module((GROUPS | SEPARATE)[name]).run(scratch, quick)
    assert result.name == name, f"the group {name} calls itself {result.name}"
    return result
