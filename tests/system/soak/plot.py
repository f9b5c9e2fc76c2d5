"""Plot of the samples of a soak: ``python -m tests.system.soak.plot results/FILE.json [FILE.svg]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def draw(samples: list[dict[str, float]], target: Path) -> None:
    """Draw one small chart for each figure over the number of batches, from zero."""
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


if __name__ == "__main__":
    source = Path(sys.argv[1])
    draw(
        json.loads(source.read_text())["samples"],
        Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".svg"),
    )
