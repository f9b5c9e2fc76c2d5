"""Output of the demo: a progress bar while it runs, tables at the end."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_SECONDS_BETWEEN_LINES = 10


class BatchBars:
    """A progress bar for each query; without a terminal, a line at intervals."""

    def __init__(self, console: Console, queries: list[str], batches: int) -> None:
        self._console = console
        self._batches = batches
        self._line_due = 0.0
        columns = TextColumn("{task.description:<11}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._tasks = {query: self._progress.add_task(query, total=batches) for query in queries}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, batches: dict[str, int]) -> None:
        # A query may add a batch without data, to act on a new watermark.
        counts = {query: min(count, self._batches) for query, count in batches.items()}
        for query, count in counts.items():
            self._progress.update(self._tasks[query], completed=count)
        if not self._console.is_terminal and time.monotonic() >= self._line_due:
            self._line_due = time.monotonic() + _SECONDS_BETWEEN_LINES
            parts = (f"{query} {count} of {self._batches}" for query, count in counts.items())
            self._console.print("batches committed:", ", ".join(parts), soft_wrap=True)


def read_progress(work: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
    """Return Spark's progress of each query's batches in order, and the first batches of the last run."""
    batches: dict[str, dict[int, dict[str, Any]]] = {}
    for line in (work / "progress.jsonl").read_text().splitlines():
        with suppress(ValueError):  # the kill may have cut a line off
            batch = json.loads(line)
            batches.setdefault(batch["name"], {})[batch["batchId"]] = batch
    progress = {
        name: [query_batches[number] for number in sorted(query_batches)]
        for name, query_batches in sorted(batches.items())
    }
    resumed = {
        name: min(batch["batchId"] for batch in query_batches if batch["runId"] == query_batches[-1]["runId"])
        for name, query_batches in progress.items()
    }
    return progress, resumed


def figures(batch: dict[str, Any]) -> dict[str, float]:
    """Return the figures of one batch; the metrics are sums over the partitions."""
    operator = batch["stateOperators"][0]
    metrics = operator["customMetrics"]
    steps = ("Encode", "Send", "Store")
    return {
        "rows in": batch["numInputRows"],
        "state rows": operator["numRowsTotal"],
        "commit ms": sum(metrics[f"checkpointCommit{step}TimeUs"] for step in steps) / 1000,
        "bytes": metrics["checkpointBytesWritten"],
        "objects": metrics["checkpointObjectsWritten"],
    }


def batches_table(progress: dict[str, list[dict[str, Any]]], resumed: dict[str, int]) -> Table:
    """Select a few batches of each query: the first, those around the restart and the last."""
    table = _table("Some batches", "query", "batch", *_columns(progress), "")
    for name, batches in progress.items():
        notes = {resumed[name] - 1: "before kill", resumed[name]: "resumed"}
        for batch in batches:
            number = batch["batchId"]
            if number in (0, *notes) or batch is batches[-1]:
                cells = (f"{value:,.0f}" for value in figures(batch).values())
                note = notes.get(number, "")
                if note == "resumed" and batch["numInputRows"] == 0:
                    note = "resumed*"
                    table.caption = "* The sink had this batch already, so Spark did not run it again."
                table.add_row(name, str(number), *cells, note)
        table.add_section()
    return table


def spread_table(progress: dict[str, list[dict[str, Any]]]) -> Table:
    table = _table("All batches with data", "query", "", *_columns(progress))
    for name, batches in progress.items():
        values = [figures(batch) for batch in batches if batch["numInputRows"] > 0]
        for title, choose in (("least", min), ("median", median), ("most", max)):
            cells = (f"{choose(value[column] for value in values):,.0f}" for column in _columns(progress))
            table.add_row(name, title, *cells)
        table.add_section()
    return table


def state_table(work: Path, progress: dict[str, list[dict[str, Any]]]) -> Table:
    table = _table("State in storage", f"below {work / 'checkpoints'}", "objects", "bytes", "rows")
    for name, batches in progress.items():
        # Spark's own description of the state, in directories called _metadata, does not count.
        partitions = work / "checkpoints" / name / "state"
        places = ("*/*/chk-*/*", "*/*/shared/*", "_merged/*")
        sizes = [file.stat().st_size for place in places for file in partitions.glob(place)]
        rows = figures(batches[-1])["state rows"]
        table.add_row(f"{name}/state", str(len(sizes)), f"{sum(sizes):,}", f"{rows:,}")
    return table


def results_table(results: dict[str, dict[str, Any]]) -> Table:
    table = _table("Results", "query", "rows of the stream", "rows of the batch", "equal")
    for name, result in results.items():
        equal = "yes" if is_equal(result) else "NO"
        table.add_row(name, f"{result['stream']:,}", f"{result['batch']:,}", equal)
    return table


def is_equal(result: dict[str, Any]) -> bool:
    return not result["only_stream"] and not result["only_batch"] and result["stream"] == result["batch"] > 0


def _columns(progress: dict[str, list[dict[str, Any]]]) -> list[str]:
    return list(figures(next(iter(progress.values()))[0]))


def _table(title: str, first: str, *headings: str) -> Table:
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column(first, overflow="fold")
    for column in headings:
        table.add_column(column, justify="right" if column else "left", overflow="fold")
    return table
