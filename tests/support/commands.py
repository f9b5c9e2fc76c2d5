"""Programs that tests run to their end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.paths import ROOT


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 280,
    may_fail: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its output; unless it may fail, check that it succeeds."""
    result = subprocess.run(
        command, cwd=cwd, env=env, timeout=timeout, capture_output=True, text=True, check=False
    )
    assert may_fail or result.returncode == 0, f"{result.stdout[-2000:]}\n{result.stderr[-5000:]}"
    return result


def build(target: str, directory: Path) -> Path:
    """Build the ``wheel`` or ``sdist`` of this checkout in an empty directory, and return its path."""
    run([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", directory], cwd=ROOT, timeout=600)
    (path,) = directory.iterdir()
    return path


def environment_with(directory: Path, *packages: str) -> Path:
    """Make a virtual environment with packages of the index or of files, and return its interpreter."""
    run([sys.executable, "-m", "venv", directory])
    python = directory / "bin" / "python"
    install(python, *packages)
    return python


def install(python: Path, *packages: str) -> None:
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", *packages]
    run(command, cwd=python.parent, timeout=1800)


def interpreter(directory: Path, commands: str) -> str:
    """Make an interpreter, for the option ``python``, before which a shell runs commands; return its path."""
    script = directory / "python"
    script.write_text(f'#!/bin/sh\n{commands}\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)
