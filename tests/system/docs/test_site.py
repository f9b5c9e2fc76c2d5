"""The documentation site: pages made from the code, and what its strict build refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spark_statestore
from spark_statestore.options import OPTIONS
from tests.support.paths import ROOT
from tests.unit.cli.test_app import commands

METRICS = "jvm-shim/src/main/scala/org/apache/spark/sql/statestore/provider/StoreMetrics.scala"

# Changes of one file each: the text that is replaced, its replacement, and what the build says.
BROKEN_LINKS = {
    "to a page": ("docs/hdfs.md", "# HDFS\n", "# HDFS\n\n[x](nowhere.md)\n", "nowhere.md"),
    "to a heading": (
        "docs/hdfs.md",
        "[x](nowhere.md)\n",
        "[x](nowhere.md)\n\n[x](moving.md#nowhere)\n",
        "#nowhere",
    ),
}

BROKEN_REFERENCES = {
    "link to a file": (
        "docs/object-stores.md",
        "# Object stores\n",
        "# Object stores\n\n[x](../nowhere.py)\n",
        "nowhere.py",
    ),
    "page without a place": ("mkdocs.yml", "HDFS: hdfs.md", "HDFS: local-files.md", "hdfs.md"),
    "public name without docstring": (
        "spark_statestore/session.py",
        '"""For ``spark.plugins``: starts',
        'PLUGIN_USE = """For ``spark.plugins``: starts',
        "spark_statestore.PLUGIN_CLASS",
    ),
    "public name without section": (
        "docs/_hooks.py",
        '    "Reading": ["spark_statestore.rows"],\n',
        "",
        "read_state",
    ),
    "option without help": (
        "spark_statestore/cli/parameters.py",
        ', help="The query is stopped: skip the check for activity."',
        "",
        "lacks help: --stopped",
    ),
    "metric that is not declared": (
        METRICS,
        "SnapshotAge, MaxRows",
        "Snapshots, MaxRows",
        "metrics Snapshot",
    ),
    "section of README": ("README.md", "## Metrics\n", "## Figures\n", "no section 'Metrics'"),
}

pytestmark = pytest.mark.slow


def build(directory: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(directory), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site."""
    target = tmp_path_factory.mktemp("site")
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return target


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy what a site is built from; links to other files find those of this checkout."""
    directory = tmp_path / "checkout"
    shutil.copytree(ROOT / "docs", directory / "docs")
    shutil.copytree(
        ROOT / "spark_statestore",
        directory / "spark_statestore",
        ignore=shutil.ignore_patterns("jars", "__pycache__"),
    )
    (directory / METRICS).parent.mkdir(parents=True)
    for name in ("mkdocs.yml", "README.md", METRICS):
        shutil.copy(ROOT / name, directory / name)
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and not (directory / path.name).exists():
            (directory / path.name).symlink_to(path)
    return directory


def identifiers(page: Path) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', page.read_text()))


def test_reference_has_every_option_metric_command_and_name(site: Path) -> None:
    reference = site / "reference"
    assert {option.name.lower() for option in OPTIONS} <= identifiers(reference / "options/index.html")
    metrics = re.findall(r'Metric\(\s*"(\w+)"', (ROOT / METRICS).read_text())
    page = (reference / "metrics/index.html").read_text()
    assert len(metrics) >= 15
    assert [name for name in metrics if f"<code>{name}</code>" not in page] == []
    named = {f"spark-statestore-{name.replace('_', '-')}" for name in commands()}
    assert named <= identifiers(reference / "cli/index.html")
    public = {f"spark_statestore.{name}" for name in spark_statestore.__all__} - {
        "spark_statestore.__version__"
    }
    assert public <= identifiers(reference / "api/index.html")


def test_pages_load_nothing_from_other_sites(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(\w+:[^"]+)"', page.read_text())
        loaded += re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="(\w+:[^"]+)"', page.read_text())
        assert loaded == [], page


def test_links_to_files_lead_to_the_repository(checkout: Path, tmp_path: Path) -> None:
    settings = (checkout / "mkdocs.yml").read_text()
    (checkout / "mkdocs.yml").write_text(
        settings.replace("!ENV [REPOSITORY_URL, null]", "https://example.org/x/")
    )
    done = build(checkout, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/reliability/index.html").read_text()
    assert 'href="https://example.org/x/blob/main/tests/model/INVARIANTS.md"' in page
    assert (
        'href="https://example.org/x/tree/main/benchmarks/results"'
        in (tmp_path / "site/index.html").read_text()
    )


def require_refused(checkout: Path, site: Path, changes: list[tuple[str, str, str, str]]) -> None:
    """Require that the build names every change."""
    for name, old, new, _ in changes:
        source = (checkout / name).read_text()
        assert source.count(old) == 1
        (checkout / name).write_text(source.replace(old, new))
    done = build(checkout, site)
    assert done.returncode != 0
    assert [named for *_, named in changes if named not in done.stderr] == []


def test_build_refuses_every_broken_link(checkout: Path, tmp_path: Path) -> None:
    require_refused(checkout, tmp_path / "site", list(BROKEN_LINKS.values()))


# Each ends the build at once.
@pytest.mark.soak
@pytest.mark.parametrize("change", BROKEN_REFERENCES.values(), ids=BROKEN_REFERENCES.keys())
def test_build_refuses(change: tuple[str, str, str, str], checkout: Path, tmp_path: Path) -> None:
    require_refused(checkout, tmp_path / "site", [change])
