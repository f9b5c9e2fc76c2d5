"""Recording of a JVM and its backend: stacks, and the pauses of the JVM's collector."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import flame

TOOLS = ("jfr", "jcmd", "py-spy")
"""Programs required for recording: of a JDK 17, and ``pip install py-spy``."""


@dataclass
class Recording:
    """A recording.

    Parameters
    ----------
    jvm, backend
        Number of samples of each stack. Those of the JVM include threads that wait in a system call.
    pauses
        Milliseconds of each pause of the collector.
    """

    jvm: flame.Stacks = field(default_factory=flame.Stacks)
    backend: flame.Stacks = field(default_factory=flame.Stacks)
    pauses: list[float] = field(default_factory=list)


def missing() -> list[str]:
    """Return the missing programs."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


@contextmanager
def recording(jvm: int, backend: int, seconds: float, scratch: Path) -> Iterator[Recording]:
    """Record the work of the block, which should take about this many seconds."""
    found = Recording()
    events, folded, settings = scratch / "java.jfr", scratch / "python.txt", scratch / "settings.jfc"
    settings.write_text(_SETTINGS)
    _quietly("jcmd", str(jvm), "JFR.start", "name=profile", f"settings={settings}")
    options = [
        "--nonblocking",
        "--rate",
        "500",
        "--format",
        "raw",
        "--duration",
        str(int(seconds)),
        "--output",
        str(folded),
    ]
    spy = subprocess.Popen(
        ["py-spy", "record", "--pid", str(backend), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield found
    _quietly("jcmd", str(jvm), "JFR.stop", "name=profile", f"filename={events}")
    spy.wait()
    found.jvm = flame.from_jfr(_printed(events, "jdk.ExecutionSample,jdk.NativeMethodSample"))
    found.backend = flame.from_folded(folded.read_text().splitlines())
    pauses = json.loads(_printed(events, "jdk.GCPhasePause"))["recording"]["events"]
    found.pauses = [_milliseconds(event["values"]["duration"]) for event in pauses]


def _printed(events: Path, names: str) -> str:
    command = ["jfr", "print", "--json", "--stack-depth", "64", "--events", names, str(events)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _milliseconds(duration: str) -> float:
    # Format of the flight recorder: PT0.001234S
    return 1000 * float(duration.removeprefix("PT").removesuffix("S"))


def _quietly(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


_SETTINGS = """<?xml version="1.0" encoding="UTF-8"?>
<configuration version="2.0">
  <event name="jdk.ExecutionSample"><setting name="enabled">true</setting><setting name="period">1 ms</setting></event>
  <event name="jdk.NativeMethodSample"><setting name="enabled">true</setting><setting name="period">1 ms</setting></event>
  <event name="jdk.GCPhasePause"><setting name="enabled">true</setting></event>
</configuration>
"""
