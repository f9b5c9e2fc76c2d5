"""Tests that README and docs agree with the code: options, metrics, formats, classes, tests and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import spark_statestore
from spark_statestore import errors, options
from spark_statestore._version import SUPPORTED_SPARK
from spark_statestore.backend.protocol import PROTOCOL_VERSION
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.formats.metadata import METADATA_FORMAT_VERSION
from spark_statestore.operator_state.stream_format import OPERATOR_STATE_FORMAT_VERSION
from spark_statestore.rows.types import KNOWN
from spark_statestore.storage.handle_codec import HANDLE_SCHEMA
from spark_statestore.store.changelog import CHANGE_FORMAT_VERSION
from tests.support.paths import ROOT

SCALA = ROOT / "jvm-shim/src/main"
SHIM = SCALA / "scala/org/apache/spark/sql/statestore"
README = (ROOT / "README.md").read_text()
METRICS = (ROOT / "docs/metrics.md").read_text()
FORMAT = (ROOT / "docs/format.md").read_text()
MODEL = (ROOT / "docs/storage-model.md").read_text()
OPERATORS = (ROOT / "docs/operators.md").read_text()
SAVEPOINTS = (ROOT / "docs/savepoints.md").read_text()
READING = (ROOT / "docs/reading.md").read_text()
OPTION_NAMES = {option.name for option in options.OPTIONS}


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_options_page_has_the_table() -> None:
    assert options.as_markdown() in (ROOT / "docs/options.md").read_text()


def test_metrics_page_lists_every_metric() -> None:
    source = (SHIM / "provider/StoreMetrics.scala").read_text()
    declared = dict(re.findall(r'val (\w+) = \w+Metric\(\s*"(\w+)"', source))
    supported = re.search(r"supported: Seq\[StateStoreCustomMetric\] = Seq\(([^)]+)\)", source)
    assert supported
    assert set(re.findall(r"\w+", supported[1])) == declared.keys()
    assert len(declared) >= 15
    assert {*declared.values()} <= {*re.findall(r"`(\w+)`", METRICS)}


def test_compatibility_page_has_each_spark_and_public_name() -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    for minor in SUPPORTED_SPARK:
        assert re.search(
            rf"^\| {re.escape(minor)}\b.*\| (beta|maintained|deprecated) \|", page, re.MULTILINE
        ), minor
    public = {*spark_statestore.__all__} - {"__version__", *errors.__all__}
    assert [name for name in sorted(public) if not re.search(rf"`{name}\b", page)] == []


def test_readme_names_existing_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_links_have_targets() -> None:
    pages = [page for folder in (".", "docs", "examples", "conf") for page in (ROOT / folder).glob("*.md")]
    assert len(pages) > 30
    for page in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_format_page_has_current_versions_and_columns() -> None:
    for name, version in {
        "metadata object": METADATA_FORMAT_VERSION,
        "changelog stream": CHANGE_FORMAT_VERSION,
        "operator state stream": OPERATOR_STATE_FORMAT_VERSION,
        "wire protocol": PROTOCOL_VERSION,
    }.items():
        assert f"| {name} | {version} |" in FORMAT, name
    for column in [*CHANGE_SCHEMA.names, *HANDLE_SCHEMA.names]:
        assert f"| `{column}` |" in FORMAT, column


def test_protocol_version_is_the_same_in_python_and_scala() -> None:
    frames = (SHIM / "backend/Frames.scala").read_text()
    assert f"ProtocolVersion = {PROTOCOL_VERSION}\n" in frames


def test_storage_model_names_existing_classes_and_tests() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "spark_statestore").rglob("*.py"))
    rows = [line.split("|") for line in MODEL.splitlines() if line.startswith("| `")]
    assert len(rows) > 25
    for _, names, features, tests, *_ in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert re.search(rf"^(class|def) {name}\b", sources, re.MULTILINE), name
        paths = re.findall(r"`([\w/.]+)`", tests)
        assert paths or features.strip() == "constants", names
        for path in paths:
            base = ROOT / "spark_statestore" if path.startswith("testing/") else ROOT
            assert (base / path).exists(), path


def named_tests(page: str) -> dict[str, tuple[Path, str]]:
    """Return the tests listed by a page: file and function by short name."""
    rows = re.findall(r"^\| ([\w-]+) \| `([\w/.]+)::(\w+)` \|$", page, re.MULTILINE)
    return {name: (ROOT / path, function) for name, path, function in rows}


def cells(page: str, section: str) -> list[list[str]]:
    """Return the rows of the tables below a heading, without the header rows."""
    lines = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    rows = [line for number, line in enumerate(lines[:-1]) if not lines[number + 1].startswith("|--")]
    rows = [line for line in [*rows, lines[-1]] if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in rows]


@pytest.mark.parametrize("page", [OPERATORS, SAVEPOINTS], ids=["operators", "savepoints"])
def test_page_lists_existing_tests_and_refers_to_each(page: str) -> None:
    tests = named_tests(page)
    assert len(tests) == len(cells(page, "Tests")) > 10
    text = page.partition("\n## Tests\n")[0]
    for name in tests:
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name


def test_every_operator_refers_to_an_existing_test_case() -> None:
    tests = named_tests(OPERATORS)
    rows = cells(OPERATORS, "Operators")
    assert len(rows) > 20
    assert {len(row) for row in rows} == {9}
    assert all(cell == "yes" or cell.startswith("no: ") for row in rows for cell in row[2:6])
    named = [cell for first, *rest in (row[6:] for row in rows) for cell in (first, *filter(None, rest))]
    named += [cell for *_, cell in cells(OPERATORS, "Features of Spark") if re.search(r": \S+", cell)]
    for cell in named:
        match = re.search(rf"(?:^|: )({'|'.join(tests)})(?:: (.+))?$", cell)
        assert match, cell
        source = tests[match[1]][0].read_text()
        for case in (match[2] or "").split("; "):
            assert not case or f'"{re.sub(r" .v[12].$", "", case)}"' in source, cell


def test_every_promise_of_savepoints_refers_to_a_test() -> None:
    rows = cells(SAVEPOINTS, "Where a query can resume, and how")
    assert [row[0].partition(" ")[0] for row in rows] == ["relocate", *["change"] * 4]
    for _, *kinds in rows:
        assert len(kinds) == 3
        for cell in kinds:
            if cell.startswith("yes"):
                assert cell.rpartition(": ")[2] in named_tests(SAVEPOINTS), cell
            else:
                assert re.match(r"(no|works)\b", cell), cell


def functions_on(*pages: Path) -> set[tuple[str, str]]:
    """Return the tests that pages name, by file and function."""
    text = "\n".join(page.read_text() for page in pages)
    return set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text))


def test_pages_name_existing_tests() -> None:
    named = functions_on(*(ROOT / "docs").glob("*.md"))
    assert len(named) > 100
    for path, function in named:
        assert f"\ndef {function}(" in (ROOT / path).read_text(), f"{path}::{function}"


def test_writing_page_names_the_test_of_each_operator() -> None:
    path = "tests/spark/test_write_state.py"
    tests = re.findall(r"^def (test_\w+_goes_on_from_written_state)", (ROOT / path).read_text(), re.MULTILINE)
    # An aggregation has one with keys and one without.
    derived = ("tests/spark/test_write_derived_state.py", "test_written_state_is_that_of_spark")
    generated = (
        "tests/spark/test_write_generated_state.py",
        "test_generated_state_goes_on_as_if_untouched",
    )
    without_keys = (path, "test_aggregation_without_keys_goes_on_from_written_state")
    assert functions_on(ROOT / "docs/writing.md") | {without_keys} == {
        derived,
        generated,
        *((path, function) for function in tests),
    }


def test_page_of_changes_names_the_test_of_each() -> None:
    tests = re.findall(r"^def (test_\w+)", (ROOT / "tests/spark/test_migrate.py").read_text(), re.MULTILINE)
    assert set(tests) <= {function for _, function in functions_on(ROOT / "docs/change-a-query.md")}


def test_reading_page_has_every_type() -> None:
    listed = dict(
        re.findall(r"^\| `([\w -]+)` \| `(.+?)` \|", READING.partition("| Spark | Arrow |")[2], re.MULTILINE)
    )
    assert {name: str(kind) for name, kind in KNOWN.items()}.items() <= listed.items()
    assert listed.keys() - KNOWN.keys() == {"decimal", "array", "map", "struct"}


def test_architecture_page_names_existing_files_classes_and_functions() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    assert len(page.splitlines()) <= 190
    package = ROOT / "spark_statestore"
    code = "\n".join(path.read_text() for path in [*package.rglob("*.py"), *SCALA.rglob("*.scala")])
    quoted = re.findall(r"`([^`\n]+)`", page)

    paths = [name for name in quoted if re.fullmatch(r"[\w./-]+(\.py|\.scala|/)", name)]
    assert len(paths) > 50
    rooms = [ROOT, package, *(folder / SHIM.relative_to(SCALA / "scala") for folder in SCALA.iterdir())]
    for path in paths:
        # Directories of a checkpoint are the only other names that end so.
        assert path == "shared/" or any((room / path).exists() for room in rooms), path

    classes = [name for name in quoted if re.fullmatch(r"[A-Z][a-z]\w+(\.[a-z]\w+)?", name)]
    assert len(classes) > 30
    functions = [name for name in quoted if re.fullmatch(r"[a-z]+(_[a-z]+)*|[a-z]+([A-Z][a-z]+)+", name)]
    functions = [name for name in functions if name != "metadata" and name not in OPTION_NAMES]
    assert len(functions) > 20
    owners = set(re.findall(r"\b(?:class|object|trait) (\w+)", code))
    defined = set(re.findall(r"\bdef (\w+)", code))
    methods = {method for _, _, method in (name.partition(".") for name in classes) if method}
    assert {name.partition(".")[0] for name in classes} - owners == set()
    assert {*functions, *methods} - defined == set()


def test_architecture_page_tells_where_thirty_behaviours_are() -> None:
    page = (ROOT / "docs/architecture.md").read_text().partition("## Where is it")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| `([\w./]+)` \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 30
    for behaviour, path, name in rows:
        file = (ROOT / "spark_statestore" if path.endswith(".py") else SHIM) / path
        defined = rf"^\s*(?:\w+(?:\[\w+\])? )*(?:class|def|object|trait) {name}\b|^{name}\b"
        assert re.search(defined, file.read_text(), re.MULTILINE), (behaviour, path, name)
