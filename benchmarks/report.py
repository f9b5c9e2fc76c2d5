"""Tables, figures, and the environment of a run."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable
from typing import Any


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile: the least value that a given share does not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1] if values else float("nan")


def p95(values: list[float]) -> float:
    return percentile(values, 95)


def environment() -> dict[str, Any]:
    """Describe the environment, without identifying the machine."""
    import pyarrow
    import pyspark

    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    settings = subprocess.run(
        [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, check=True
    ).stderr
    properties = dict(
        re.findall(r"^ +(java\.vm\.name|java\.runtime\.version) = (.*)$", settings, re.MULTILINE)
    )
    return {
        "cores": os.cpu_count(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "java": f"{properties['java.vm.name']} {properties['java.runtime.version']}",
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "load average over the last 15 minutes": round(os.getloadavg()[2], 1),
    }


def figures(*values: float) -> list[str]:
    """Format a number for a table."""
    return [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in values]


def table(title: str, header: list[str], rows: list[list[str]], level: int = 3) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Iterable[str]) -> str:
        padded = [
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([f"{'#' * level} {title}", "", line(header), rule, *(line(row) for row in rows)])


def as_json(found: dict[str, Any]) -> str:
    """Return JSON with short numbers, and lists of numbers on one line."""
    text = json.dumps(_rounded(found), indent=1, allow_nan=True)
    return re.sub(r"\[[-\d.eE,\s]*\]", lambda m: re.sub(r"\s+", " ", m[0]), text) + "\n"


def _rounded(found: Any) -> Any:
    match found:
        case float():
            return round(found, 6)
        case dict():
            return {key: _rounded(value) for key, value in found.items()}
        case list() | tuple():
            return [_rounded(value) for value in found]
    return found
