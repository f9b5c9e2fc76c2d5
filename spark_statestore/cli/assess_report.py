"""The report of ``assess`` as an HTML file of its own, with a plot for each query."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_statestore._version import __version__
from spark_statestore.assess.model import Assessment
from spark_statestore.monitoring.plots import image_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Table = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Columns and rows."""

Section = str | Table

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ccc;"
    "text-align:right}td:first-child,th:first-child{text-align:left}p{white-space:pre-line}img{max-width:100%}"
)

_STACKED: Final = ("planning", "logs", "opening", "update", "removal", "commit", "other")


def write_report(
    file: str, queries: Sequence[tuple[Assessment, Sequence[Section]]], notes: Sequence[str]
) -> None:
    """Write the report; it loads nothing from elsewhere."""
    parts = [f"<p>{html.escape(note)}</p>" for note in notes]
    for assessed, sections in queries:
        title, *body = sections
        heading = assessed.query.name or assessed.query.id
        image = image_of(_figure(assessed), "batch time by part, and by batch")
        parts.append(f"<h2>{html.escape(heading)}</h2>{_html(title)}{image}")
        parts += map(_html, body)
    Path(file).write_text(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>spark-statestore assess</title><style>{_STYLE}</style></head><body>"
        f"<h1>Stateful queries, assessed by spark-statestore {__version__}</h1>"
        f"{''.join(parts)}</body></html>\n",
        encoding="utf-8",
    )


def _html(section: Section) -> str:
    if isinstance(section, str):
        return f"<p>{html.escape(section)}</p>"
    columns, rows = section
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{'' if cell is None else html.escape(str(cell))}</td>" for cell in row)
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _figure(assessed: Assessment) -> Figure:
    """Return a figure with the parts of a batch, now and here, and the time of each batch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    bars, lines = figure.subplots(1, 2)
    estimate = assessed.estimate
    stores = [assessed.query.provider, *(["spark-statestore, estimate"] if estimate else [])]
    parts = [assessed.parts, *([estimate.parts] if estimate else [])]
    starts = [0.0] * len(parts)
    for name in _STACKED:
        widths = [getattr(part, name) for part in parts]
        bars.barh(stores, widths, left=starts, label=name)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    bars.invert_yaxis()
    bars.set(title="Parts of a batch", xlabel="milliseconds")
    bars.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, fontsize=8)
    batches = assessed.query.batches
    lines.plot([batch.number for batch in batches], [batch.milliseconds for batch in batches], marker=".")
    first = assessed.counted[0].number
    lines.axvline(
        first, color="black", linewidth=0.8, linestyle="--", label=f"batch {first}: the first that counts"
    )
    if estimate:
        lines.axhline(estimate.milliseconds, color="tab:orange", label="estimate with spark-statestore")
        lines.axhspan(estimate.low, estimate.high, color="tab:orange", alpha=0.2)
    lines.set(title="Time of a batch", xlabel="batch", ylabel="milliseconds", yscale="log")
    lines.legend(fontsize=8)
    return figure
