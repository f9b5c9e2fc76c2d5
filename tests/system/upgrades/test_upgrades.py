"""Every query that one Spark wrote goes on under every later one; the way back works or has an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_statestore._version import SUPPORTED_SPARK
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.upgrades import obstacles_by_spark
from tests.system.upgrades.matrix import FORMATS, Cell, Matrix, Result, build_jar, site_of

# Twelve minutes, with each minor of Spark.
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3600)]

UP = [(writer, reader) for writer in SUPPORTED_SPARK for reader in SUPPORTED_SPARK if writer < reader]
BACK = list(zip(SUPPORTED_SPARK[1:], SUPPORTED_SPARK[:-1], strict=True))

OK = "ok"


@dataclass(frozen=True)
class Outcome:
    """Result of a query that was continued, and why it could not go on, as its checkpoint told before.

    The verdict is "ok" if it went on as one that was never stopped.
    """

    verdict: str
    obstacles: tuple[str, ...]
    original: Path
    continued: Path


Outcomes = Mapping[Cell, Outcome]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Write all queries with each Spark, and continue them with the others."""
    for minor in SUPPORTED_SPARK:
        site = site_of(minor)
        if site is not None and not (site / "pyspark").exists():
            pytest.skip(f"Spark {minor} is not installed in {site}: make test-spark SPARK={minor}")
        build_jar(minor)
    matrix = Matrix(tmp_path_factory.mktemp("upgrades"))
    for minor in SUPPORTED_SPARK:
        matrix.write(minor)
    matrix.feed_the_rest()
    results: dict[Cell, Result] = {}
    for minor in SUPPORTED_SPARK:
        results |= matrix.go_on(minor, [writer for writer, reader in UP + BACK if reader == minor])
    return {cell: outcome_of(matrix, cell, result) for cell, result in results.items()}


def outcome_of(matrix: Matrix, cell: Cell, result: Result) -> Outcome:
    """Compare a query with one that was not stopped."""
    first_half, whole = matrix.first_half(cell), matrix.whole(cell)
    assert first_half["error"] is None, f"{cell}: {first_half['error']}"
    if result["error"]:
        verdict = f"refused: {result['error']}"
    elif whole is None or whole["error"]:
        verdict = f"nothing to compare with: {whole and whole['error']}"
    elif first_half["output"] + result["output"] != whole["output"]:
        verdict = "another output"
    elif first_half["rows"] + result["rows"] != whole["rows"]:
        verdict = "other numbers of rows in the state"
    else:
        verdict = OK
    obstacles = obstacles_by_spark(QueryCheckpoint(first_half["checkpoint"]))[cell.reader]
    return Outcome(verdict, obstacles, Path(first_half["checkpoint"]), Path(result["checkpoint"]))


def drawn(outcomes: Outcomes) -> str:
    """Draw the matrix: a line for each query and format, a column for each pair, and the reasons below."""
    pairs = [*UP, *BACK]
    reasons: list[str] = []
    lines = []
    for case in dict.fromkeys(cell.case for cell in outcomes):
        for number in FORMATS:
            cells = []
            for writer, reader in pairs:
                outcome = outcomes.get(Cell(case, number, writer, reader))
                if outcome is None:
                    cells.append("-")
                    continue
                if outcome.verdict != OK and outcome.verdict not in reasons:
                    reasons.append(outcome.verdict)
                cells.append(OK if outcome.verdict == OK else f"({reasons.index(outcome.verdict) + 1})")
            lines.append(f"{case:50} v{number} " + " ".join(f"{cell:>8}" for cell in cells))
    heading = " " * 54 + " ".join(f"{writer}-{reader}".rjust(8) for writer, reader in pairs)
    return "\n".join([heading, *lines, *(f"({number}) {reason}" for number, reason in enumerate(reasons, 1))])


def test_later_spark_continues_what_an_earlier_one_wrote(
    outcomes: Outcomes, record_property: Callable[[str, object], None]
) -> None:
    record_property("figures", drawn(outcomes))
    up = {cell: outcome for cell, outcome in outcomes.items() if (cell.writer, cell.reader) in UP}
    assert len({(cell.writer, cell.reader) for cell in up}) == len(UP)
    assert {cell: outcome.verdict for cell, outcome in up.items() if outcome.verdict != OK} == {}


def test_checkpoint_tells_which_spark_continues_it(outcomes: Outcomes) -> None:
    wrong = {
        cell: (outcome.verdict, outcome.obstacles)
        for cell, outcome in outcomes.items()
        if (outcome.verdict == OK) != (not outcome.obstacles)
    }
    assert wrong == {}
    assert any(outcome.obstacles for outcome in outcomes.values())


def test_refused_checkpoint_is_unchanged(outcomes: Outcomes) -> None:
    refused = [outcome for outcome in outcomes.values() if outcome.verdict.startswith("refused")]
    assert refused
    for outcome in refused:
        for path in outcome.original.rglob("*"):
            # The copy's metadata names the files of the copy.
            if path.is_file() and "v2" not in path.parent.name:
                assert (
                    outcome.continued / path.relative_to(outcome.original)
                ).read_bytes() == path.read_bytes()
