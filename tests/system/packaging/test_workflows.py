"""GitHub's workflows: they call existing targets, cover each Spark, pin their actions and have few rights."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from spark_statestore._version import SUPPORTED_SPARK
from tests.support.paths import ROOT

PATHS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

every_workflow = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


def jobs(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text())["jobs"]


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job.get("steps", [])


def test_workflows_are_checks_and_the_release() -> None:
    assert [path.stem for path in PATHS] == ["ci", "release"]


@every_workflow
def test_commands_name_existing_targets(path: Path) -> None:
    named = [
        target for step in steps(path) for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))
    ]
    for job in jobs(path).values():
        named += job.get("strategy", {}).get("matrix", {}).get("target", [])
    assert named
    assert set(named) - TARGETS == set()


def test_checks_have_each_minor_of_python() -> None:
    matrix = jobs(ROOT / ".github/workflows/ci.yml")["check"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    more = [entry["python"] for entry in matrix["include"] if entry["target"] == "test"]
    assert [*matrix["python"], *more] == promised


def test_checks_have_each_minor_of_spark() -> None:
    matrix = jobs(ROOT / ".github/workflows/ci.yml")["spark"]["strategy"]["matrix"]
    assert tuple(matrix["spark"]) == SUPPORTED_SPARK


@every_workflow
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action)] == []


@every_workflow
def test_jobs_have_only_the_rights_that_they_name(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {}
    assert all("permissions" in job for job in jobs(path).values())
    writing = {
        (name, right)
        for name, job in jobs(path).items()
        for right, access in job["permissions"].items()
        if access != "read"
    }
    expected = {
        "ci": set(),
        "release": {
            ("build", "attestations"),
            ("build", "id-token"),
            ("publish", "id-token"),
            ("announce", "contents"),
        },
    }
    assert writing == expected[path.stem]
