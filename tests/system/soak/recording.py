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
    """Run a program, print and yield the names and values of its events, and check that it succeeds."""
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
                print(event["event"], event["value"], flush=True)
                yield event["event"], event["value"]
    assert process.returncode == 0


def record(name: str, **result: Any) -> Path:
    """Store a result with the machine that it is of, and return its file."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{name}.json"
    target.write_text(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    return target


def draw(samples: list[dict[str, float]], target: Path) -> None:
    """Draw one small chart for each figure over the number of batches, from zero, as an SVG file."""
    import matplotlib

    matplotlib.use("Agg")
    # Text as text, and a deterministic file.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "soak"})
    from matplotlib import pyplot

    names = [name for name in samples[0] if name not in ("batch", "seconds")]
    columns = 3
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(11, 2.4 * rows), squeeze=False)
    for name, axis in zip(names, axes.flat, strict=False):
        axis.plot(
            [sample["batch"] for sample in samples], [sample[name] for sample in samples], color="#2060a0"
        )
        axis.set_title(name.replace("jvm", "JVM"), fontsize=9)
        axis.set_ylim(0, 1.25 * max(sample[name] for sample in samples) or 1)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(names) :]:
        axis.axis("off")
    figure.suptitle(f"{samples[-1]['batch']:,} batches in {samples[-1]['seconds'] / 60:.0f} minutes")
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
    pyplot.close(figure)
