"""``ls`` and ``show``: what a checkpoint consists of."""

from __future__ import annotations

import json
from typing import Any

import click

from spark_statestore.checkpoint.metadata import CheckpointMetadata, StoreId
from spark_statestore.checkpoint.query import QueryCheckpoint, StatefulOperator
from spark_statestore.checkpoint.query.summary import StoredFiles, StoreSummary, stored_files, summarise
from spark_statestore.cli import parameters
from spark_statestore.cli.output import Output, size, table, when, with_output
from spark_statestore.errors import CheckpointNotFoundError
from spark_statestore.savepoint.savepoint import open_checkpoint
from spark_statestore.state.handles import SegmentFileStateHandle

__all__ = ["ls", "show"]


@click.command("ls")
@parameters.checkpoint
@parameters.batch
@click.option("--by-partition", is_flag=True, help="A line for each partition.")
@parameters.checkpoints_dir
@with_output
def ls(
    out: Output, checkpoint: str, batch: int | None, by_partition: bool, checkpoints_dir: str | None
) -> None:
    """List operators, stores, versions, sizes and chains.

    Sizes and chains are what a load of the batch's versions reads; "stored" is all that lies in the
    stores' directories, with older versions.
    """
    query = open_checkpoint(checkpoint, checkpoints_dir=checkpoints_dir)
    batch = query.require_batch(batch)
    operators = {operator.id: operator for operator in query.operators(batch)}
    with out.progress("reading metadata") as progress:
        stores = summarise(query, batch, progress)
        stored = stored_files(query)
    lines = [_line([store], operators, stored, alone=True) for store in stores]
    if not by_partition:
        groups: dict[tuple[int, str], list[StoreSummary]] = {}
        for store in stores:
            groups.setdefault((store.operator, store.store), []).append(store)
        lines = [_line(group, operators, stored, alone=False) for group in groups.values()]
    about = _about(query, batch)
    shown = [
        [value if not name.endswith("bytes") else size(value) for name, value in line.items()]
        for line in lines
    ]
    out.result(
        about | {"stores": lines},
        _heading(about),
        table([name.replace("_", " ") for name in lines[0]], shown) if lines else "The query has no state.",
    )


def _line(
    group: list[StoreSummary],
    operators: dict[int, StatefulOperator],
    stored: dict[StoreId, StoredFiles],
    *,
    alone: bool,
) -> dict[str, Any]:
    """One line of the list: a store in one partition, or in all of them."""
    first = group[0]
    there = [stored.get(StoreId(one.operator, one.partition, one.store), StoredFiles()) for one in group]
    line: dict[str, Any] = {
        "operator": first.operator,
        "name": operators[first.operator].name,
        "store": first.store,
    }
    line |= {"partition": first.partition} if alone else {"partitions": len(group)}
    line |= {"rows": sum(one.rows for one in group), "bytes": sum(one.bytes for one in group)}
    if not alone:
        line |= {"largest_bytes": max(one.bytes for one in group)}
    line |= {
        "chain": max(one.chain for one in group),
        "versions": max(files.versions for files in there),
        "stored_files": sum(files.files for files in there),
        "stored_bytes": sum(files.bytes for files in there),
    }
    return line


@click.command("show")
@parameters.checkpoint
@parameters.batch
@click.option(
    "--operator", type=click.IntRange(0), metavar="N", help="One operator's store instead of the query."
)
@click.option(
    "--partition", type=click.IntRange(0), metavar="N", default=0, show_default=True, help="Of the store."
)
@click.option("--store", default="default", show_default=True, help="Name of the store.")
@parameters.checkpoints_dir
@with_output
def show(
    out: Output,
    checkpoint: str,
    batch: int | None,
    operator: int | None,
    partition: int,
    store: str,
    checkpoints_dir: str | None,
) -> None:
    """Show a batch: what Spark noted of it, and its operators.

    With --operator, show one store as the batch left it: its column families with their schemas,
    and the streams that it consists of.
    """
    query = open_checkpoint(checkpoint, checkpoints_dir=checkpoints_dir)
    batch = query.require_batch(batch)
    if operator is None:
        _show_batch(out, query, batch)
        return
    wanted = StoreId(operator, partition, store)
    for version in query.stores(batch, operator):
        if version.store == wanted:
            _show_store(out, query.open(wanted).metadata(version.name, version.attempt))
            return
    described = query.operator(operator, batch)
    raise CheckpointNotFoundError(
        f"operator {operator} ({described.name}) of {query.url} has no store {store!r} in a partition {partition}: it "
        f"has {', '.join(one.name for one in described.stores)} in {described.partitions} partitions."
    )


def _show_batch(out: Output, query: QueryCheckpoint, batch: int) -> None:
    offsets = query.offsets(batch)
    operators = query.operators(batch)
    node = _about(query, batch) | {
        "timestamp_ms": offsets.metadata.get("batchTimestampMs"),
        "sources": list(offsets.sources),
        "operators": [
            {
                "operator": one.id,
                "name": one.name,
                "partitions": one.partitions,
                "stores": [store.name for store in one.stores],
                "properties": one.properties,
            }
            for one in operators
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
                (one.id, one.name, one.partitions, ", ".join(store.name for store in one.stores))
                for one in operators
            ],
        ),
        "\nSources at the end of the batch",
        table(["source", "offset"], enumerate(offsets.sources)),
        "\nSettings that Spark has fixed",
        table(["setting", "value"], sorted(offsets.conf.items())),
    )


def _show_store(out: Output, metadata: CheckpointMetadata) -> None:
    node = {
        "operator": metadata.store.operator,
        "partition": metadata.store.partition,
        "store": metadata.store.name,
        "version": metadata.version,
        "attempt": metadata.attempt,
        "parent_attempt": metadata.parent_attempt,
        "created_ms": metadata.created_ms,
        "written_by": metadata.written_by,
        "states": [state.to_json() for state in metadata.states],
        "base": metadata.handle.base_version,
        "bytes": metadata.handle.state_size,
        "chain": [
            {
                "version": entry.version,
                "full": entry.full,
                "bytes": entry.state.state_size,
                "stream": entry.state.stream_state_handle_id,
                "inline": isinstance(entry.state.delegate_state_handle, SegmentFileStateHandle),
                "states": list(entry.state.state_name_to_partition_offsets),
            }
            for entry in metadata.handle
        ],
    }
    out.result(
        node,
        f"{metadata.store}: version {metadata.version}, attempt {metadata.attempt}, committed "
        f"{when(metadata.created_ms)} by spark-statestore {metadata.written_by}",
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
                for state in metadata.states
            ],
        ),
        "\nStreams that a load reads",
        table(
            ["version", "what", "bytes", "stream"],
            [
                (
                    entry.version,
                    "full snapshot" if entry.full else "changes",
                    size(entry.state.state_size),
                    entry.state.stream_state_handle_id,
                )
                for entry in metadata.handle
            ],
        ),
    )


def _short(schema: str) -> str:
    """A schema of Spark's as people write it: names and types."""
    return ", ".join(f"{field['name']} {_type(field['type'])}" for field in json.loads(schema)["fields"])


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
