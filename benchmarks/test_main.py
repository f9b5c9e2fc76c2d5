"""The command runs groups and parts, and fails if one of them does."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import groups
from benchmarks.groups import first_minutes, limit
from benchmarks.stores import PROVIDERS
from tests.support.commands import run
from tests.support.paths import ROOT

COMMAND = [sys.executable, "-m", "benchmarks"]


def test_every_part_has_a_module() -> None:
    assert all(callable(import_module(f"benchmarks.groups.{part}").run) for part in groups.PARTS)
    assert len(set(groups.PARTS)) == len(groups.PARTS)


def test_groups_and_parts_can_be_named() -> None:
    assert list(groups.parts_of(["guard", "limit", "s3"])) == ["guard", "limit", "s3_queries", "s3_requests"]
    unknown = run([*COMMAND, "--only", "guard,gone"], cwd=ROOT, may_fail=True)
    assert unknown.returncode == 2
    assert "there is no group or part 'gone'" in unknown.stderr


def test_help_describes_every_group() -> None:
    lines = run([*COMMAND, "--help"], cwd=ROOT).stdout.splitlines()
    for name, group in groups.GROUPS.items():
        assert any(line.split()[:2] == [name, str(group.minutes)] and group.about in line for line in lines)


def test_run_fails_if_a_part_fails(tmp_path: Path) -> None:
    program = "from benchmarks import __main__, groups; import sys; groups.PARTS = ('gone',)\n"
    program += "sys.exit(__main__.main())"
    command = [sys.executable, "-c", program, "--only", "gone", "--directory", str(tmp_path)]
    failed = run(command, cwd=ROOT, may_fail=True)
    assert failed.returncode == 1
    assert "| gone " in failed.stdout.partition("## Summary")[2]


@pytest.mark.soak
@pytest.mark.parametrize(
    ("part", "stores", "tables", "criteria"),
    [
        ("store_batches", tuple(PROVIDERS), 2, 2),
        ("limit", limit.STORES, 1, 8),
        ("first_minutes", first_minutes.STORES, 1, 4),
    ],
)
def test_quick_run_measures_every_store(
    built: Path, tmp_path: Path, part: str, stores: tuple[str, ...], tables: int, criteria: int
) -> None:
    quick = run([*COMMAND, "--quick", "--only", part, "--directory", tmp_path], cwd=ROOT, timeout=580)
    printed, _, summary = quick.stdout.partition("## Summary")
    for name in stores:
        assert sum(line.startswith(f"| {name} ") for line in printed.splitlines()) >= tables
    assert sum(line.startswith("| ") for line in summary.splitlines()) == 1 + criteria
    assert list(tmp_path.iterdir()) == []
