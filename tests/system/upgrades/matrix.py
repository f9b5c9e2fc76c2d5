"""The matrix of upgrades: queries written under one Spark and continued under another."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_statestore._version import SUPPORTED_SPARK
from spark_statestore.query.operators import StatefulOperator
from tests.support import commands
from tests.support.class_archive import SHORT_LIVED
from tests.support.paths import ROOT, SPARK_MINOR
from tests.system.upgrades.cases import CASES, CONTINUED, SCHEMAS, WRITTEN, cases_of, write_input

FORMATS = (1, 2)

_SECONDS = 1800


@dataclass(frozen=True)
class Cell:
    """One query, written under one Spark in a checkpoint format, and continued under another."""

    case: str
    format: int
    writer: str
    reader: str


Result = dict[str, Any]


class Matrix:
    """All queries, with inputs and checkpoints in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._first_halves: dict[tuple[str, str, int], Result] = {}
        self._whole: dict[tuple[str, str], Result] = {}
        for name in SCHEMAS:
            write_input(directory / "input", name, range(len(WRITTEN)))

    def write(self, minor: str) -> None:
        """Run the first half of all queries under a Spark."""
        jobs = [self._job(name, number, f"written-{minor}") for name in cases_of(minor) for number in FORMATS]
        for result in run(minor, jobs, self._directory):
            self._first_halves[minor, result["case"], result["format"]] = result

    def feed_the_rest(self) -> None:
        for name in SCHEMAS:
            write_input(self._directory / "input", name, range(len(WRITTEN), len(WRITTEN + CONTINUED)))

    def go_on(self, reader: str, writers: Sequence[str]) -> dict[Cell, Result]:
        """Continue copies of what other Sparks wrote under a Spark.

        All queries also run there without a restart. On the way back to an older Spark, format v2 is enough:
        v1 has the same files but for the ids.
        """
        whole = [self._job(name, 1, f"whole-{reader}") for name in cases_of(reader)]
        cells, jobs = [], []
        for (writer, name, number), first_half in self._first_halves.items():
            if writer in writers and (writer < reader or number == FORMATS[-1]):
                cells.append(Cell(name, number, writer, reader))
                jobs.append(self._job(name, number, f"from-{writer}-to-{reader}"))
                copy(Path(first_half["checkpoint"]), Path(jobs[-1]["checkpoint"]))
        results = run(reader, whole + jobs, self._directory)
        for result in results[: len(whole)]:
            self._whole[reader, result["case"]] = result
        return dict(zip(cells, results[len(whole) :], strict=True))

    def first_half(self, cell: Cell) -> Result:
        return self._first_halves[cell.writer, cell.case, cell.format]

    def whole(self, cell: Cell) -> Result | None:
        return self._whole.get((cell.reader, cell.case))

    def _job(self, name: str, number: int, below: str) -> dict[str, Any]:
        directory = re.sub(r"\W+", "-", name)
        return {
            "case": name,
            "format": number,
            "checkpoint": str(self._directory / below / f"{directory}-v{number}"),
            "input": str(self._directory / "input" / CASES[name].reads),
        }


def run(minor: str, jobs: Sequence[Mapping[str, Any]], directory: Path) -> list[Result]:
    stem = directory / f"{len(list(directory.glob('*.json')))}-{minor}"
    jobs_file, results_file = Path(f"{stem}-jobs.json"), Path(f"{stem}-results.json")
    jobs_file.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "tests.system.upgrades.program", jobs_file, results_file]
    commands.run(command, cwd=ROOT, env=environment(minor), timeout=_SECONDS)
    results: list[Result] = json.loads(results_file.read_text())
    return results


def build_jar(minor: str) -> None:
    """Build the jar of the test harness for that Spark."""
    command = [sys.executable, ROOT / "jvm-shim" / "build_shim.py", "--tests"]
    commands.run(command, env=environment(minor), timeout=_SECONDS)


def environment(minor: str) -> dict[str, str]:
    """Return the environment of a process with that Spark."""
    site = site_of(minor)
    path = [str(ROOT)] if site is None else [str(site), str(ROOT)]
    target = ROOT / "jvm-shim" / "target"
    return os.environ | {
        "JDK_JAVA_OPTIONS": SHORT_LIVED.replace(f"spark-{SPARK_MINOR}.jsa", f"spark-{minor}.jsa"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path),
        "TEST_JAR": str(target / f"spark-statestore-tests-spark-{minor}.jar"),
    }


def copy(source: Path, target: Path) -> None:
    """Copy a checkpoint location. Its metadata of transformWithState names files by their full paths."""
    shutil.copytree(source, target)
    for path in target.glob("state/*/_metadata/v2/[0-9]*"):
        operator = StatefulOperator.decode(path.read_bytes(), str(path))
        path.write_bytes(operator.relocated((target / "state").as_uri()).encode())
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def site_of(minor: str) -> Path | None:
    """Return the directory of an older PySpark; None for the one of this environment."""
    return None if minor == SUPPORTED_SPARK[-1] else ROOT / ".spark" / minor
