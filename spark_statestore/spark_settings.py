"""Settings that Spark has before a session's builder adds its own."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import sys
from pathlib import Path
from typing import Any

__all__ = ["interpreter", "present_settings"]


def present_settings(*, submitted: bool) -> dict[str, str]:
    """Return the settings of the defaults file and of the command line.

    A setting of a builder replaces them, so that a list must begin with the entries that are there.

    Parameters
    ----------
    submitted
        Whether spark-submit has started the JVM before this process.
    """
    return _spark_defaults() | (_submitted_settings() if submitted else _settings_in_arguments())


def interpreter(builder_conf: dict[str, Any], defaults: dict[str, str]) -> str | None:
    """Return the interpreter of the backends that the settings and the environment leave to this process."""
    if "spark.pyspark.python" in builder_conf or "spark.pyspark.python" in defaults:
        return None
    if named := os.environ.get("PYSPARK_PYTHON"):
        return named
    master = str(
        builder_conf.get("spark.master") or defaults.get("spark.master") or os.environ.get("MASTER", "local")
    )
    # On other machines this interpreter's path may not exist.
    return sys.executable if master.startswith("local") and sys.executable else None


def _spark_defaults() -> dict[str, str]:
    home = os.environ.get("SPARK_HOME")
    if home is None and (spec := importlib.util.find_spec("pyspark")) and spec.origin:
        home = str(Path(spec.origin).parent)
    directory = os.environ.get("SPARK_CONF_DIR") or (home and str(Path(home, "conf")))
    settings: dict[str, str] = {}
    try:
        with open(Path(directory or "", "spark-defaults.conf"), encoding="utf-8") as file:
            for line in file:
                key, _, value = line.strip().replace("=", " ", 1).replace("\t", " ").partition(" ")
                if key and not key.startswith("#"):
                    settings[key] = value.strip()
    except OSError:
        pass
    return settings


def _submitted_settings() -> dict[str, str]:
    """Return the settings of the JVM that spark-submit has started before this process."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _settings_in_arguments() -> dict[str, str]:
    """Return the settings that ``PYSPARK_SUBMIT_ARGS`` passes to a JVM to be launched."""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    passed = [value for flag, value in itertools.pairwise(arguments) if flag in ("--conf", "-c")]
    return {key: value for key, _, value in (setting.partition("=") for setting in passed)}
