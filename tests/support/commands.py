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


def build_wheel(directory: Path) -> Path:
    """Build the wheel of this checkout in an empty directory, and return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*command, "--wheel-dir", directory, ROOT], timeout=600)
    (path,) = directory.glob("*.whl")
    return path
