"""The tutorial: every command runs in an empty directory, and prints what the page shows."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sysconfig
from pathlib import Path

import psutil
import pyspark
import pytest

from tests.spark.ui import cells
from tests.support.bare import environment_without_settings
from tests.support.paths import ROOT
from tests.support.spark_versions import is_since

PAGE = ROOT / "docs/tutorial.md"

# The language, the file that a block is saved as, and the text.
BLOCKS = re.findall(
    r'^```(\w+)(?: title="([\w.]+)")?\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL
)

END = "end of the output of"

FETCH_TAB = "curl --silent --fail $(grep -o 'http.*' second.log) > tab.html"
"""What the reader's browser does."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("built")]


def script() -> str:
    """Return the page's commands as a script, with the files that it says to save.

    Jobs have process groups of their own, as in an interactive shell.
    """
    lines = ["set -e", "set -m"]
    for number, (language, name, text) in enumerate(BLOCKS):
        if language == "python":
            lines += [f"cat > {name} <<'{END}'", text + END]
        elif language == "sh":
            lines += [text, f"echo '{END} {number}'"]
            if text.startswith("grep ^UI"):
                lines.append(FETCH_TAB)
    return "\n".join(lines)


def installed(directory: Path) -> Path:
    """Make a directory of this environment's packages without this project, for pip to find.

    PySpark is the one of this test.
    """
    directory.mkdir()
    own, spark = Path(sysconfig.get_path("purelib")), Path(pyspark.__file__).parents[1]
    for path in own.iterdir():
        if "spark_statestore" not in path.name and not path.name.startswith("pyspark"):
            (directory / path.name).symlink_to(path)
    for path in spark.glob("pyspark*"):
        (directory / path.name).symlink_to(path)
    return directory


def end_session(number: int) -> None:
    """Kill what a script has left behind, whose queries run until something ends them."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == number:
                process.kill()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Run the script with the checkout at home; return the output of the blocks by number."""
    tmp_path = tmp_path_factory.mktemp("tutorial")
    home, work = tmp_path / "home", tmp_path / "empty"
    home.mkdir()
    work.mkdir()
    (home / "spark-statestore").symlink_to(ROOT)
    environment = environment_without_settings() | {
        "HOME": str(home),
        "PYTHONPATH": str(installed(tmp_path / "installed")),
        # pip takes what it would fetch from there; what it builds is this checkout.
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "JDK_JAVA_OPTIONS": os.environ["JDK_JAVA_OPTIONS"],
    }
    with subprocess.Popen(
        ["bash", "-c", script()],
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=500)
        except subprocess.TimeoutExpired:
            end_session(process.pid)
            stdout, stderr = process.communicate()
        finally:
            end_session(process.pid)
    logs = "".join(f"{path.name}: {path.read_text()[-4000:]}" for path in sorted(work.rglob("*.log")))
    assert process.returncode == 0, f"{stdout}\n{stderr}\n{logs}"
    (shown,) = work.rglob("tab.html")
    assert cells(shown.read_text(), "numRowsTotal") == [5]
    parts = re.split(rf"^{END} (\d+)\n", stdout, flags=re.MULTILINE)
    return {int(number): output for output, number in zip(parts[::2], parts[1::2], strict=False)}


def test_blocks_are_commands_files_and_outputs() -> None:
    assert PAGE.read_text().count("```") == 2 * len(BLOCKS)
    assert {language for language, _, _ in BLOCKS} == {"sh", "python", "text"}
    assert all(bool(name) == (language == "python") for language, name, _ in BLOCKS)
    assert all(BLOCKS[number - 1][0] == "sh" for number, block in enumerate(BLOCKS) if block[0] == "text")


@pytest.mark.parametrize("number", [number for number, block in enumerate(BLOCKS) if block[0] == "text"])
def test_commands_print_what_the_page_shows(number: int, printed: dict[int, str]) -> None:
    output = re.sub(" +$", "", printed[number - 1], flags=re.MULTILINE)
    text = BLOCKS[number][2]
    if not is_since("4.3"):
        # The default of a new query there.
        text = text.replace("checkpoint format v2", "checkpoint format v1")
    pattern = ".+".join(map(re.escape, text.split("…")))
    assert re.fullmatch(pattern, output, re.DOTALL), output
