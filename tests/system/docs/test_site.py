"""The documentation site: pages made from the code, and what its strict build refuses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spark_statestore
from tests.support.commands import run
from tests.support.paths import ROOT
from tests.unit.cli.test_app import commands

REPOSITORY = "https://example.org/x/"

pytestmark = pytest.mark.slow


def build(directory: Path, site: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    environment |= {"PYTHONPATH": str(directory), "NO_MKDOCS_2_WARNING": "1"}
    return run(command, cwd=directory, env=os.environ | environment, may_fail=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of a published repository."""
    target = tmp_path_factory.mktemp("site")
    result = build(ROOT, target, REPOSITORY_URL=REPOSITORY)
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
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
    for name in ("mkdocs.yml", "README.md"):
        shutil.copy(ROOT / name, directory / name)
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and not (directory / path.name).exists():
            (directory / path.name).symlink_to(path)
    return directory


def identifiers(page: Path) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', page.read_text()))


def test_reference_has_every_command_and_name(site: Path) -> None:
    reference = site / "reference"
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


def test_links_to_files_lead_to_the_repository(site: Path) -> None:
    links = {
        "reliability/index.html": "blob/main/tests/model/INVARIANTS.md",
        "index.html": "tree/main/benchmarks/results",
    }
    for page, link in links.items():
        assert f'href="{REPOSITORY}{link}"' in (site / page).read_text()


def case(name: str, path: str, old: str, new: str, *errors: str) -> Any:
    """Return a change of a file that the build refuses. Most end it at once, so that each takes a build."""
    marks = [] if name == "links" else [pytest.mark.soak]
    return pytest.param(path, old, new, errors, id=name, marks=marks)


@pytest.mark.parametrize(
    ("path", "old", "new", "errors"),
    [
        case(
            "links",
            "docs/hdfs.md",
            "# HDFS\n",
            "# HDFS\n\n[x](nowhere.md)\n\n[x](moving.md#nowhere)\n",
            "nowhere.md",
            "#nowhere",
        ),
        case(
            "link to a file",
            "docs/object-stores.md",
            "# Object stores\n",
            "# Object stores\n\n[x](../nowhere.py)\n",
            "nowhere.py",
        ),
        case("page without a place", "mkdocs.yml", "HDFS: hdfs.md", "HDFS: local-files.md", "hdfs.md"),
        case(
            "public name without docstring",
            "spark_statestore/session.py",
            '"""For ``spark.plugins``: starts',
            'PLUGIN_USE = """For ``spark.plugins``: starts',
            "spark_statestore.PLUGIN_CLASS",
        ),
        case(
            "public name without section",
            "docs/_hooks.py",
            '    "Reading": ["spark_statestore.rows"],\n',
            "",
            "read_state",
        ),
        case(
            "option without help",
            "spark_statestore/cli/parameters.py",
            ', help="The query is stopped: skip the check for activity."',
            "",
            "lacks help: --stopped",
        ),
        case("README", "README.md", "## More\n", "## Links\n", "no section 'More'"),
    ],
)
def test_build_refuses(
    checkout: Path, tmp_path: Path, path: str, old: str, new: str, errors: tuple[str, ...]
) -> None:
    source = (checkout / path).read_text()
    assert source.count(old) == 1
    (checkout / path).write_text(source.replace(old, new))
    result = build(checkout, tmp_path / "site")
    assert result.returncode != 0
    assert [error for error in errors if error not in result.stderr] == []
