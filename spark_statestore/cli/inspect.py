"""The commands ``ls`` and ``show``: batches, operators and stores of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import click

from spark_statestore.cli import parameters
from spark_statestore.cli.output import FAILED, Output, size, table, when, with_output
from spark_statestore.errors import CheckpointError, CheckpointNotFoundError
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query import QueryCheckpoint, StatefulOperator
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.query.summary import StoredFiles, StoreSummary, stored_files, summarize_each
from spark_statestore.rows.types import with_unique_names
from spark_statestore.storage.file_handles import SegmentFileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry
from spark_statestore.store.metadata import CheckpointMetadata, StoreId

_Group: TypeAlias = dict[StoreId, StoreSummary | CheckpointError]


@click.command("ls")
@parameters.checkpoint
@parameters.batch
@click.option("--by-partition", is_flag=True, help="Print a line for each partition.")
@parameters.checkpoints_dir
@with_output
def ls(
    out: Output, checkpoint: str, batch: int | None, by_partition: bool, checkpoints_dir: str | None
) -> None:
    """List operators, stores, versions, sizes and chains.

    Sizes and chains are those that a load of the batch's versions reads; "stored" is the size of the stores'
    directories, with older versions. The exit code is 1 if a store's metadata cannot be read; the other
    stores are still listed.
    """
    query = open_checkpoint(checkpoint, checkpoints_dir=checkpoints_dir)
    batch = query.require_batch(batch)
    operators = {operator.id: operator for operator in query.operators(batch)}
    with out.progress("reading metadata") as progress:
        stores = summarize_each(query, batch, progress)
        stored = stored_files(query)
    groups: dict[tuple[int, str, int | None], _Group] = {}
    for store, summary in stores.items():
        key = (store.operator, store.name, store.partition if by_partition else None)
        groups.setdefault(key, {})[store] = summary
    lines = [_line(group, operators, stored, alone=by_partition) for group in groups.values()]
    about = _about(query, batch)
    damaged = {store: error for store, error in stores.items() if isinstance(error, CheckpointError)}
    problems = [
        {"operator": store.operator, "partition": store.partition, "store": store.name, "message": str(error)}
        for store, error in damaged.items()
    ]
    columns = [name for name in (lines[0] if lines else {}) if name != "damaged" or damaged]
    out.result(
        about | {"stores": lines, "problems": problems},
        _heading(about),
        table([name.replace("_", " ") for name in columns], [_cells(line, columns) for line in lines])
        if lines
        else "The query has no state.",
        *(["", *(f"damaged: {store}\n    {error}" for store, error in damaged.items())] if damaged else []),
    )
    if damaged:
        raise click.exceptions.Exit(FAILED)


def _cells(line: dict[str, Any], columns: list[str]) -> list[Any]:
    values = [(name, line[name]) for name in columns]
    return [size(value) if name.endswith("bytes") and value is not None else value for name, value in values]


def _line(
    group: _Group, operators: dict[int, StatefulOperator], stored: dict[StoreId, StoredFiles], *, alone: bool
) -> dict[str, Any]:
    """Return one line of the list: a store in one partition, or in all; sums are without damaged stores."""
    first = next(iter(group))
    there = [stored.get(store, StoredFiles()) for store in group]
    summaries = [summary for summary in group.values() if isinstance(summary, StoreSummary)]
    line: dict[str, Any] = {
        "operator": first.operator,
        "name": operators[first.operator].name,
        "store": first.name,
    }
    line |= {"partition": first.partition} if alone else {"partitions": len(group)}
    line |= {"damaged": len(group) - len(summaries)}
    line |= {
        "rows": sum(summary.rows for summary in summaries) if summaries else None,
        "bytes": sum(summary.bytes for summary in summaries) if summaries else None,
    }
    if not alone:
        line |= {"largest_bytes": max((summary.bytes for summary in summaries), default=None)}
    line |= {
        "chain_length": max((summary.chain_length for summary in summaries), default=None),
        "versions": max(files.versions for files in there),
        "stored_files": sum(files.files for files in there),
        "stored_bytes": sum(files.bytes for files in there),
    }
    if alone:
        line |= {"host": next((summary.host for summary in summaries), None)}
    return line


@click.command("show")
@parameters.checkpoint
@parameters.batch
@click.option(
    "--operator",
    type=click.IntRange(0),
    metavar="N",
    help="One operator's store instead of the query.  [default: with --partition or --store, the only one]",
)
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Of the store.  [default: 0]")
@click.option("--store", metavar="NAME", help="Name of the store.  [default: default]")
@parameters.checkpoints_dir
@with_output
def show(
    out: Output,
    checkpoint: str,
    batch: int | None,
    operator: int | None,
    partition: int | None,
    store: str | None,
    checkpoints_dir: str | None,
) -> None:
    """Show a batch: its log entries and operators.

    With --operator, --partition or --store, show one store at the batch: column families with schemas, and
    streams.
    """
    query = open_checkpoint(checkpoint, checkpoints_dir=checkpoints_dir)
    batch = query.require_batch(batch)
    if operator is None and partition is None and store is None:
        _show_batch(out, query, batch)
        return
    if operator is None:
        operator = _only_operator(query, batch)
    partition, store = partition or 0, store or "default"
    store_id = StoreId(operator, partition, store)
    for version in query.stores(batch, operator):
        if version.store == store_id:
            _show_store(out, query.open(store_id).metadata(version.name, version.attempt_id))
            return
    described = query.operator(operator, batch)
    raise CheckpointNotFoundError(
        f"operator {operator} ({described.name}) of {query.url} has no store {store!r} in a partition "
        f"{partition}: it has {', '.join(described_store.name for described_store in described.stores)} in "
        f"{described.partitions} partitions."
    )


def _only_operator(query: QueryCheckpoint, batch: int) -> int:
    operators = query.operators(batch)
    if len(operators) != 1:
        choices = ", ".join(f"{operator.id} ({operator.name})" for operator in operators)
        raise click.UsageError(
            f"the query has {len(operators)} stateful operators: name one of {choices} with --operator."
            if operators
            else "the query has no stateful operator, so it has no store to show."
        )
    return operators[0].id


def _show_batch(out: Output, query: QueryCheckpoint, batch: int) -> None:
    offsets = query.offsets(batch)
    operators = query.operators(batch)
    node = _about(query, batch) | {
        "timestamp_ms": offsets.metadata.get("batchTimestampMs"),
        "sources": list(offsets.sources),
        "operators": [
            {
                "operator": operator.id,
                "name": operator.name,
                "partitions": operator.partitions,
                "stores": [store.name for store in operator.stores],
                "properties": operator.properties,
            }
            for operator in operators
        ],
        "conf": dict(offsets.conf),
    }
    out.result(
        node,
        _heading(node),
        "Stateful operators",
        table(
            ["operator", "name", "partitions", "stores"],
            [
                (
                    operator.id,
                    operator.name,
                    operator.partitions,
                    ", ".join(store.name for store in operator.stores),
                )
                for operator in operators
            ],
        ),
        "\nSources at the end of the batch",
        table(["source", "offset"], enumerate(offsets.sources)),
        "\nSettings that Spark has fixed",
        table(["setting", "value"], sorted(offsets.conf.items())),
    )


def _show_store(out: Output, metadata: CheckpointMetadata) -> None:
    # The names are unique, as in rows that are read.
    column_families = [
        replace(
            state,
            key_schema=with_unique_names(state.key_schema),
            value_schema=with_unique_names(state.value_schema),
        )
        for state in metadata.column_families
    ]
    node = {
        "operator": metadata.store.operator,
        "partition": metadata.store.partition,
        "store": metadata.store.name,
        "version": metadata.version,
        "attempt_id": metadata.attempt_id,
        "parent_attempt_id": metadata.parent_attempt_id,
        "created_ms": metadata.created_ms,
        "written_by": metadata.written_by,
        "host": metadata.host,
        "column_families": [state.to_json() for state in column_families],
        "base_version": metadata.handle.base_version,
        "bytes": metadata.handle.state_size,
        "chain": [
            {
                "version": entry.version,
                "full": entry.full,
                "since": entry.since,
                "bytes": entry.state.state_size,
                "stream": entry.state.stream_state_handle_id,
                "inline": isinstance(entry.state.delegate_state_handle, SegmentFileStateHandle),
                "column_families": list(entry.state.state_name_to_partition_offsets),
            }
            for entry in metadata.handle
        ],
    }
    out.result(
        node,
        f"{metadata.store}: version {metadata.version}, attempt {metadata.attempt_id}, committed "
        f"{when(metadata.created_ms)} by spark-statestore {metadata.written_by} on {metadata.host}",
        "\nColumn families",
        table(
            ["column family", "rows", "key encoder", "key", "value"],
            [
                (
                    state.name,
                    state.rows,
                    state.key_encoder,
                    _short(state.key_schema),
                    _short(state.value_schema),
                )
                for state in column_families
            ],
        ),
        "\nStreams that a load reads",
        table(
            ["version", "what", "bytes", "stream"],
            [
                (
                    entry.version,
                    _kind(entry),
                    size(entry.state.state_size),
                    entry.state.stream_state_handle_id,
                )
                for entry in metadata.handle
            ],
        ),
    )


def _kind(entry: ChainEntry) -> str:
    if entry.full:
        return "full snapshot"
    return "changes" if entry.since is None else f"changes since {entry.since}"


def _short(schema: str) -> str:
    """Format a schema of Spark's as names and types."""
    return ", ".join(f"{field['name']} {_type(field['type'])}" for field in parse_json(schema)["fields"])


def _type(node: Any) -> str:
    if isinstance(node, str):
        return node
    kind = node["type"]
    if kind == "struct":
        fields = ", ".join(f"{field['name']} {_type(field['type'])}" for field in node["fields"])
        return f"struct<{fields}>"
    if kind == "array":
        return f"array<{_type(node['elementType'])}>"
    if kind == "map":
        return f"map<{_type(node['keyType'])}, {_type(node['valueType'])}>"
    return str(kind)


def _about(query: QueryCheckpoint, batch: int) -> dict[str, Any]:
    batches = query.batches()
    return {
        "path": query.url,
        "query_id": query.query_id,
        "batch": batch,
        "oldest_batch": batches[0],
        "newest_batch": batches[-1],
        "watermark_ms": query.offsets(batch).watermark_ms,
        "format": 1 if query.commit(batch).state_ids is None else 2,
    }


def _heading(about: dict[str, Any]) -> str:
    watermark = f", watermark {when(about['watermark_ms'])}" if about["watermark_ms"] else ""
    return (
        f"{about['path']}\nquery {about['query_id']}, batch {about['batch']} of {about['oldest_batch']} to "
        f"{about['newest_batch']}, checkpoint format v{about['format']}{watermark}\n"
    )
