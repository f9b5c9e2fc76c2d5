"""What a run of the benchmark measured, as tables and as JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.contest import OURS, Plan, Samples, Samplings

RESULTS = Path(__file__).parent / "results"

LARGE, SMALL = 1_000_000, 100_000
MOST_OF_BUILT_IN = 1 / 8
MOST_GROWTH = 1.5

_STEPS = {
    "load": "checkpointLoadTimeUs",
    "seal": "checkpointCommitSealTimeUs",
    "send": "checkpointCommitSendTimeUs",
    "store": "checkpointCommitStoreTimeUs",
}


def median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def p95(values: list[float]) -> float:
    return sorted(values)[-(-len(values) * 95 // 100) - 1] if values else float("nan")


@dataclass(frozen=True)
class Criterion:
    """A bound that the product promises, and what was measured."""

    text: str
    measured: float
    bound: float

    @property
    def met(self) -> bool:
        return self.measured <= self.bound

    def __str__(self) -> str:
        verdict = "PASS" if self.met else "FAIL"
        return f"{verdict}  {self.text}: measured {self.measured:.3f}, bound {self.bound:g}"


def environment(spark: Any) -> dict[str, Any]:
    """What the figures depend on, without anything that names the machine."""
    import pyarrow
    import pyspark

    java = spark._jvm.java.lang.System.getProperty
    return {
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "java": f"{java('java.vm.name')} {java('java.runtime.version')}",
        "heap": f"{spark._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20} MiB",
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "pyarrow": pyarrow.__version__,
        "load average over the last 15 minutes": round(os.getloadavg()[2], 1),
    }


def criteria(samples: Samplings) -> list[Criterion]:
    """The bounds that this run can judge: those whose sizes it measured."""
    sizes = {size for _, size in samples}
    found = []
    if LARGE in sizes:
        ours = median(samples[OURS, LARGE].batch)
        best = min(median(s.batch) for (name, size), s in samples.items() if size == LARGE and name != OURS)
        found.append(
            Criterion(
                f"batch at {LARGE:,} keys: at most 1/8 of the better built-in", ours / best, MOST_OF_BUILT_IN
            )
        )
        if SMALL in sizes:
            growth = ours / median(samples[OURS, SMALL].batch)
            text = f"batch at {LARGE:,} keys: at most 1.5 times that at {SMALL:,}"
            found.append(Criterion(text, growth, MOST_GROWTH))
    for size in sorted(sizes):
        objects = max((m["checkpointObjectsWritten"] for m in samples[OURS, size].small_metrics), default=0)
        if objects:
            text = f"objects per commit that fits inline, at {size:,} keys"
            found.append(Criterion(text, objects, 1))
    return found


def tables(samples: Samplings, plan: Plan, about: dict[str, Any]) -> str:
    """Everything in Markdown, which also reads well in a terminal."""
    parts = [
        ", ".join(f"{key} {value}" for key, value in about.items()) + ".",
        (
            f"One batch is getStore, {plan.operations:,} times get and put on random existing keys, and commit: "
            f"{plan.batches} batches of each store after {plan.warmup} to warm up, interleaved in changing order. "
            "Key two longs, value three longs, files on a local file system. Maintenance, and "
            "what a store does in the background after its commit, runs between the batches and is not in their "
            "times. Times in milliseconds."
        ),
        _batches(samples, "batch", f"Batch of {plan.operations:,} rows"),
        _batches(samples, "small_batch", f"Batch of {plan.small_operations:,} rows"),
        _others(samples),
        _ours(samples, plan),
        _compactions(samples, plan),
    ]
    return "\n\n".join(part for part in parts if part)


def as_json(samples: Samplings, plan: Plan, about: dict[str, Any], judged: list[Criterion]) -> dict[str, Any]:
    """Every time that was measured; what the metrics said is in the tables."""
    return {
        "environment": about,
        "plan": asdict(plan),
        "criteria": verdicts(judged),
        "stores": [{"store": name, "keys": size} | _times(s) for (name, size), s in samples.items()],
    }


def verdicts(judged: list[Criterion]) -> list[dict[str, Any]]:
    """The bounds and what was measured, as JSON has them."""
    return [asdict(c) | {"met": c.met} for c in judged]


def save(name: str, text: str, found: dict[str, Any]) -> None:
    """Keep the tables and the samples of a run."""
    name = f"{datetime.date.today().isoformat()}-{name}"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"# {name}\n\n{text}\n")
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")


def _times(of: Samples) -> dict[str, list[float]]:
    return {
        name: [round(value, 3) for value in values]
        for name, values in asdict(of).items()
        if not name.endswith("metrics")
    }


def _batches(samples: Samplings, what: str, title: str) -> str:
    rows = []
    for (name, size), of in samples.items():
        times: list[float] = getattr(of, what)
        if times:
            ratio = median(times) / median(getattr(samples[OURS, size], what))
            rows.append([name, f"{size:,}", *figures(median(times), min(times), p95(times)), f"{ratio:.2f}"])
    return table(title, ["store", "keys", "median", "min", "p95", "ratio to ours"], rows) if rows else ""


def _others(samples: Samplings) -> str:
    rows = []
    for (name, size), of in samples.items():
        ours = samples[OURS, size]
        memory = (of.small_metrics or of.metrics)[-1]["memoryUsedBytes"] / 2**20
        rows.append(
            [
                name,
                f"{size:,}",
                *figures(median(of.cold_load), min(of.cold_load)),
                f"{median(of.cold_load) / median(ours.cold_load):.2f}",
                *figures(median(of.maintenance), memory),
            ]
        )
    header = ["store", "keys", "cold load", "min", "ratio to ours", "maintenance", "memoryUsedBytes, MiB"]
    return table("Cold load, maintenance and memory", header, rows)


def _ours(samples: Samplings, plan: Plan) -> str:
    rows = []
    for (name, size), of in samples.items():
        if name != OURS:
            continue
        for operations, times, metrics in (
            (plan.operations, of.batch, of.metrics),
            (plan.small_operations, of.small_batch, of.small_metrics),
        ):
            if metrics:
                rows.append([f"{size:,}", f"{operations:,}", *_breakdown(times, metrics)])
    header = ["keys", "rows", "whole", *_STEPS, "operations and rest", "bytes written", "objects"]
    return table(f"Where a batch of {OURS} spends its time (medians)", header, rows)


def _compactions(samples: Samplings, plan: Plan) -> str:
    # Rare and long, so no median shows them; they are part of the batches above.
    said = []
    for (name, size), of in samples.items():
        if name == OURS:
            long = [t for t, m in zip(of.batch, of.metrics, strict=True) if m["stateTableCompactions"]]
            took = f", which took {', '.join(figures(*long))} ms" if long else ""
            said.append(f"at {size:,} keys in {len(long)} of {len(of.batch)} batches{took}")
    return (
        f"The log of the state is compacted in the first batch that finds more than half of it dead, about once in "
        f"as many batches of {plan.operations:,} rows as it takes to write the whole state again. That happened "
        + "; ".join(said)
        + "."
    )


def _breakdown(times: list[float], metrics: list[dict[str, int]]) -> list[str]:
    def of(name: str) -> float:
        return median([float(m[name]) for m in metrics])

    steps = {step: of(metric) / 1000 for step, metric in _STEPS.items()}
    rest = [
        t - sum(m[metric] for metric in _STEPS.values()) / 1000 for t, m in zip(times, metrics, strict=True)
    ]
    return [
        *figures(median(times), *steps.values(), median(rest)),
        f"{of('checkpointBytesWritten'):,.0f}",
        f"{of('checkpointObjectsWritten'):g}",
    ]


def figures(*values: float) -> list[str]:
    """Numbers as a table has them."""
    return [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in values]


def table(title: str, header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table with its columns aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: list[str]) -> str:
        padded = [
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "| " + " | ".join(padded) + " |"

    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([f"### {title}", "", line(header), rule, *(line(row) for row in rows)])
