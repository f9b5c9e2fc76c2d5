"""Draw a run of the group `scale`: ``python -m benchmarks.plots results/NAME.json DIRECTORY``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

MIB = 2**20


def main() -> int:
    """Write two plots."""
    source, target = map(Path, sys.argv[1:])
    (found,) = (g for g in json.loads(source.read_text())["groups"] if g["group"] == "scale")
    stores = found["samples"]["stores"]
    # Deterministic output.
    plt.rcParams["svg.hashsalt"] = "spark-statestore"
    draw(stores, lambda of: of["batch"], "batch of 10,000 rows, ms", target / "batch-by-size.svg")
    draw(stores, _memory, "memory, MiB", target / "memory-by-size.svg")
    return 0


def draw(
    stores: list[dict[str, Any]], value: Callable[[dict[str, Any]], float], title: str, to: Path
) -> None:
    """Draw one line for each store, over the rows of its state."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name in dict.fromkeys(of["store"] for of in stores):
        mine = [of for of in stores if of["store"] == name]
        axes.plot([of["rows"] for of in mine], [value(of) for of in mine], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="rows of state", ylabel=title)
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    figure.savefig(to, metadata={"Date": None})
    plt.close(figure)


def _memory(of: dict[str, Any]) -> float:
    # RocksDB's memory outside the heap is known only from its own metrics.
    native = of["reported"] if of["store"].startswith("RocksDB") else 0
    return (of["heap"] + of["buffers"] + of["backend"] + native) / MIB


if __name__ == "__main__":
    sys.exit(main())
