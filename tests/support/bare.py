"""A Python environment that has pyarrow and fsspec, without this project."""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

import pyarrow

NEEDED = ("pyarrow", "fsspec")

FOR_PANDAS = ("numpy", "pandas", "dateutil", "pytz", "tzdata", "six")
"""Modules that Spark's Python workers need to run functions over pandas' frames."""

FOR_PROCESSORS = (*FOR_PANDAS, "google")
"""Modules that they need to run transformWithState: protobuf as well."""

FOR_S3 = ("obstore", "botocore", "dateutil", "jmespath", "six", "typing_extensions", "urllib3")
"""obstore and botocore, which the backend needs for state on S3, and their dependencies."""


def bare_python(home: Path, *more: str) -> Path:
    """Create an environment with the backend's packages and some more, and return its interpreter."""
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    installed = Path(pyarrow.__file__).parent.parent
    packages = {*NEEDED, *more}
    for package in packages:
        for path in installed.glob(f"{package}*"):
            (site / path.name).symlink_to(path)
    python = home / "bin" / "python"
    command = [python, "-c", f"import {', '.join(packages)}; import spark_statestore"]
    run = subprocess.run(command, cwd=home, env={}, capture_output=True, text=True, check=False)
    assert "No module named 'spark_statestore'" in run.stderr, run.stderr
    return python


def environment_without_settings() -> dict[str, str]:
    """Return the environment without settings for Python and Spark.

    It has the variables that find programs and the user's home.
    """
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "JAVA_HOME")}
