"""The command ``assess``: where the batch time of a query goes, and what it would be with this store."""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from spark_statestore.assess.event_log import EventLog
from spark_statestore.assess.model import (
    GET_PRICE,
    PRICE_DATE,
    PRICE_SOURCE,
    PUT_PRICE,
    Assessment,
    assess_query,
)
from spark_statestore.assess.queries import Query, read_queries
from spark_statestore.cli.assess_report import Section, Table, write_report
from spark_statestore.cli.output import Output, size, table, with_output
from spark_statestore.monitoring.plots import require_matplotlib

_DAY: Final = 86_400

_PARTS: Final = {
    "planning, search for input": "planning",
    "Spark's own files": "logs",
    "state: opening, start of tasks": "opening",
    "state: update, with its input": "update",
    "state: removal": "removal",
    "state: commit": "commit",
    "other stages, sink, scheduling": "other",
    "whole batch": "total",
    "Python workers, within these": "python",
}
"""Fields of a batch's parts by their labels."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for 1,000 requests: PUT, COPY, POST or LIST, and GET, HEAD and all others."""

    put: float
    get: float


@click.command("assess")
@click.argument("eventlog", nargs=-1, required=True)
@click.option(
    "--html", metavar="FILE", type=click.Path(dir_okay=False, writable=True), help="Write a report."
)
@click.option(
    "--skip",
    type=click.IntRange(0),
    metavar="N",
    help="First batches of a query that do not count.  [default: 10, or a third if that is less]",
)
@click.option(
    "--cores", type=click.IntRange(1), metavar="N", help="Task slots, if EVENTLOG has progress alone."
)
@click.option(
    "--put-price",
    type=click.FloatRange(0),
    default=PUT_PRICE,
    show_default=True,
    metavar="USD",
    help=f"Price of 1,000 PUT or LIST requests: {PRICE_SOURCE}, {PRICE_DATE}.",
)
@click.option(
    "--get-price",
    type=click.FloatRange(0),
    default=GET_PRICE,
    show_default=True,
    metavar="USD",
    help="Price of 1,000 GET or HEAD requests, likewise.",
)
@with_output
def assess(
    out: Output,
    eventlog: tuple[str, ...],
    html: str | None,
    skip: int | None,
    cores: int | None,
    put_price: float,
    get_price: float,
) -> None:
    """Show where the batch time of queries goes, and estimate it with this store.

    EVENTLOG is an event log of Spark: a file, compressed or not, or a rolling directory eventlog_v2_…; or a
    file with a StreamingQueryProgress as JSON in each line. The queries may have any state store. Figures are
    medians of the batches that count.
    """
    if html is not None:
        require_matplotlib("assess --html")
    logs = [EventLog(url) for url in eventlog]
    queries: list[Query] = []
    with out.progress("reading event logs") as progress:
        for number, log in enumerate(logs):
            queries += read_queries(log)
            progress(number + 1, len(logs))
    incomplete = [log.url for log in logs if not log.is_complete]
    assessments = [assess_query(query, skip=skip, cores=cores) for query in queries]
    prices = Prices(put_price, get_price)
    sections = [_sections(assessment, prices) for assessment in assessments]
    notes = [
        f"{url} ends in the middle of a line: its application runs, or was killed; the rest is assessed."
        for url in incomplete
    ]
    if html is not None:
        write_report(html, list(zip(assessments, sections, strict=True)), notes)
        notes.append(f"report: {html}")
    parts: list[Any] = []
    for section in itertools.chain(*sections):
        parts += [table(*section) if isinstance(section, tuple) else section, ""]
    node = {
        "queries": [_node(assessment, prices) for assessment in assessments],
        "incomplete": incomplete,
        "prices": {"put": put_price, "get": get_price, "source": PRICE_SOURCE, "date": PRICE_DATE},
        "report": html,
    }
    out.result(node, *parts[:-1], *(["", *notes] if notes else []))


def _node(assessed: Assessment, prices: Prices) -> dict[str, Any]:
    query = assessed.query
    requests = {
        name: {"put": counts.puts, "get": counts.gets, "usd": counts.dollars(prices.put, prices.get)}
        for name, counts in (("present", assessed.requests), ("here", assessed.requests_here))
        if counts
    }
    return {
        "log": query.log,
        "id": query.id,
        "runId": query.run_id,
        "name": query.name,
        "provider": query.provider,
        "checkpoint": query.checkpoint,
        "cores": query.cores,
        "batches": len(query.batches),
        "counted": len(assessed.counted),
        "inputRows": assessed.input_rows,
        "parallelism": assessed.parallelism,
        "milliseconds": assessed.parts,
        "operators": assessed.operators,
        "requests": requests,
        "estimate": assessed.estimate,
    }


def _sections(assessed: Assessment, prices: Prices) -> list[Section]:
    """Return the report of a query as sentences and tables."""
    query = assessed.query
    name = f"query {query.name or 'without a name'} ({query.id}), {query.provider}"
    counted = f"{len(query.batches)} batches with data, of which the last {len(assessed.counted)} count"
    cores = f"; {query.cores} cores" if query.cores else ""
    sections: list[Section] = [f"{query.log}\n{name}\n{counted}{cores}; {assessed.input_rows} rows a batch"]
    sections.append(_times(assessed))
    if not assessed.operators:
        return [*sections, "The query has no stateful operators: no state store takes part in it."]
    sections.append(_operators(assessed))
    if assessed.requests and assessed.requests_here:
        a_day = _DAY / max(0.001, _seconds_between(assessed))
        stores = {query.provider: assessed.requests, "spark-statestore": assessed.requests_here}
        rows = [
            (
                store,
                round(requests.puts, 1),
                round(requests.gets, 1),
                round(requests.dollars(prices.put, prices.get) * a_day, 2),
            )
            for store, requests in stores.items()
        ]
        sections.append(
            (("requests of a batch, object storage", "PUT, LIST", "GET, HEAD", "USD a day"), rows)
        )
    if assessed.estimate is None:
        return [*sections, "No estimate: " + assessed.no_estimate]
    estimate = assessed.estimate
    sections.append(
        f"estimate with spark-statestore: {estimate.milliseconds:,.0f} ms a batch, "
        f"{estimate.low:,.0f} to {estimate.high:,.0f} ({estimate.milliseconds / assessed.parts.total:.2f} "
        f"times the present {assessed.parts.total:,.0f} ms); confidence {estimate.confidence}: "
        f"{estimate.basis}"
    )
    sections.append("\n".join(f"* {reason}" for reason in estimate.reasons))
    return sections


def _times(assessed: Assessment) -> Table:
    parts, here = assessed.parts, assessed.estimate and assessed.estimate.parts
    rows = []
    for label, attribute in _PARTS.items():
        value = getattr(parts, attribute)
        if value is None:
            continue
        row = [label, round(value), round(100 * value / max(1, parts.total))]
        rows.append([*row, round(getattr(here, attribute))] if here else row)
    columns = ["part of a batch", "ms", "%", *(["ms, spark-statestore"] if here else [])]
    return columns, rows


def _operators(assessed: Assessment) -> Table:
    columns = (
        "operator",
        "name",
        "partitions",
        "stores",
        "rows",
        "updated",
        "removed",
        "memory",
        "commit, task ms",
        "written",
    )
    rows: Sequence[Sequence[Any]] = [
        (
            number,
            operator.name,
            operator.partitions,
            operator.stores,
            operator.rows,
            operator.updated,
            operator.removed,
            size(operator.memory_bytes),
            operator.commit_ms,
            None if operator.bytes_written is None else size(operator.bytes_written),
        )
        for number, operator in enumerate(assessed.operators)
    ]
    return columns, rows


def _seconds_between(assessed: Assessment) -> float:
    """Return the median time from batch to batch, the duration of one if there are no two."""
    starts = [datetime.datetime.fromisoformat(batch.timestamp).timestamp() for batch in assessed.counted]
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    return statistics.median(gaps) if gaps else assessed.parts.total / 1000
