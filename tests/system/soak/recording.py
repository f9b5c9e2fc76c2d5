"""Programs of the soak in processes of their own, and the results that are kept of them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.paths import ROOT

RESULTS = Path(__file__).parent / "results"


def events_of(program: str, arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Run a program, yield the names and values of its events, and check that it succeeds."""
    with subprocess.Popen(
        [sys.executable, "-m", f"tests.system.soak.{program}", json.dumps(arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        # As in production, with both compilers.
        env=os.environ | {"JDK_JAVA_OPTIONS": ""},
    ) as process:
        for line in process.stdout or ():
            if line.startswith("{"):
                event = json.loads(line)
                yield event["event"], event["value"]
    assert process.returncode == 0


def record(name: str, **result: Any) -> Path:
    """Store a result with the machine that it is of, and return its file."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    target.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    return target
