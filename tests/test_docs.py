"""What the documentation lists is what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_statestore import options
from spark_statestore.checkpoint.metadata.format import METADATA_FORMAT_VERSION
from spark_statestore.server.protocol import PROTOCOL_VERSION
from spark_statestore.state.changes import CHANGE_FORMAT_VERSION, CHANGE_SCHEMA
from spark_statestore.state.handles.codec import HANDLE_FORMAT_VERSION, HANDLE_SCHEMA
from spark_statestore.state.operator.format import OPERATOR_STATE_FORMAT_VERSION

ROOT = Path(__file__).resolve().parent.parent
SHIM = ROOT / "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"
README = (ROOT / "README.md").read_text()
FORMAT = (ROOT / "docs/format.md").read_text()
MODEL = (ROOT / "docs/storage-model.md").read_text()
OPERATORS = (ROOT / "docs/operators.md").read_text()
SAVEPOINTS = (ROOT / "docs/savepoints.md").read_text()
READING = (ROOT / "docs/reading.md").read_text()


def test_the_readme_has_the_table_of_options() -> None:
    assert options.as_markdown() in README


def test_the_readme_names_every_metric() -> None:
    source = (SHIM / "StoreMetrics.scala").read_text()
    named = re.findall(r'Metric\(\s*"(\w+)"', source)
    section = README.partition("## Metrics")[2].partition("\n## ")[0]
    listed = re.findall(r"`(\w+)`", section.replace("…", "checkpointCommit"))
    assert len(named) == 15
    assert set(named) <= set(listed)


def test_the_readme_names_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "docs/format.md",
        "docs/storage-model.md",
        "docs/operators.md",
        "docs/cli.md",
        "docs/rescaling.md",
        "docs/reading.md",
        "docs/savepoints.md",
        "docs/security.md",
        "examples/README.md",
        "conf/README.md",
    ],
)
def test_links_lead_somewhere(path: str) -> None:
    document = ROOT / path
    for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("metadata object", METADATA_FORMAT_VERSION),
        ("change stream", CHANGE_FORMAT_VERSION),
        ("operator state stream", OPERATOR_STATE_FORMAT_VERSION),
        ("handle", HANDLE_FORMAT_VERSION),
        ("wire protocol", PROTOCOL_VERSION),
    ],
)
def test_the_formats_are_described_in_their_present_versions(name: str, version: int) -> None:
    assert f"| {name} | {version} |" in FORMAT


def test_every_column_of_a_stored_schema_is_described() -> None:
    for column in [*CHANGE_SCHEMA.names, *HANDLE_SCHEMA.names]:
        assert f"| `{column}` |" in FORMAT, column


def test_both_halves_speak_the_same_protocol() -> None:
    frames = (SHIM / "io/Frames.scala").read_text()
    assert f"ProtocolVersion = {PROTOCOL_VERSION}\n" in frames


def test_the_storage_model_names_classes_and_tests_that_are_there() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "spark_statestore").rglob("*.py"))
    rows = [line.split("|") for line in MODEL.splitlines() if line.startswith("| `")]
    assert len(rows) > 25
    for _, names, tests, *_ in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(class|def) {name}\b", sources, re.MULTILINE), name
        paths = re.findall(r"`([\w/.]+)`", tests)
        assert paths, names
        for path in paths:
            base = ROOT / "spark_statestore" if path.startswith("testing/") else ROOT
            assert (base / path).exists(), path


def named_tests(page: str) -> dict[str, tuple[Path, str]]:
    """The tests that a page names: file and function by the name that it has there."""
    rows = re.findall(r"^\| ([\w-]+) \| `([\w/.]+)::(\w+)` \|$", page, re.MULTILINE)
    return {name: (ROOT / path, function) for name, path, function in rows}


def cells(page: str, section: str) -> list[list[str]]:
    """The rows of the tables of a page below a heading, without the tables' heads."""
    lines = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    rows = [line for number, line in enumerate(lines[:-1]) if not lines[number + 1].startswith("|--")]
    rows = [line for line in [*rows, lines[-1]] if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in rows]


pages = pytest.mark.parametrize("page", [OPERATORS, SAVEPOINTS], ids=["operators", "savepoints"])


@pages
def test_a_page_names_tests_that_are_there(page: str) -> None:
    tests = named_tests(page)
    assert len(tests) == len(cells(page, "Tests")) > 10
    for path, function in tests.values():
        assert f"\ndef {function}(" in path.read_text(), f"{path}::{function}"


def test_every_operator_names_a_test_and_a_case_that_it_has() -> None:
    tests = named_tests(OPERATORS)
    rows = cells(OPERATORS, "Operators")
    assert len(rows) > 20
    named = [cell for operator, _, first, *others in rows for cell in (first, *filter(None, others))]
    named += [cell for *_, cell in cells(OPERATORS, "Features of Spark") if re.search(r": \S+", cell)]
    for cell in named:
        found = re.search(rf"(?:^|: )({'|'.join(tests)})(?:: (.+))?$", cell)
        assert found, cell
        source = tests[found[1]][0].read_text()
        for case in (found[2] or "").split("; "):
            assert not case or f'"{re.sub(r" .v[12].$", "", case)}"' in source, cell


def test_what_savepoints_can_do_names_a_test_wherever_it_is_promised() -> None:
    rows = cells(SAVEPOINTS, "What one can go on from, and how")
    assert [row[0].partition(" ")[0] for row in rows] == ["relocate", *["change"] * 4]
    for _, *kinds in rows:
        assert len(kinds) == 3
        for cell in kinds:
            if cell.startswith("yes"):
                assert cell.rpartition(": ")[2] in named_tests(SAVEPOINTS), cell
            else:
                assert re.match(r"(no|works)\b", cell), cell


def test_the_page_on_security_names_tests_that_are_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/security.md").read_text())
    assert len(named) > 20
    for path, function in named:
        assert f"\ndef {function}(" in (ROOT / path).read_text(), f"{path}::{function}"


@pages
def test_every_test_of_a_page_is_mentioned(page: str) -> None:
    text = page.partition("\n## Tests\n")[0]
    for name in named_tests(page):
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name


def test_the_page_on_reading_has_every_type_with_what_it_becomes() -> None:
    from spark_statestore.rows.types import KNOWN

    listed = dict(
        re.findall(r"^\| `([\w -]+)` \| `(.+?)` \|", READING.partition("| Spark | Arrow |")[2], re.MULTILINE)
    )
    assert {name: str(kind) for name, kind in KNOWN.items()}.items() <= listed.items()
    assert listed.keys() - KNOWN.keys() == {"decimal", "array", "map", "struct"}
