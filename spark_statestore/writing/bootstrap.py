"""Start of a query with state that was computed elsewhere, such as from its history."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from numbers import Integral
from typing import Any

from spark_statestore.errors import OptionError
from spark_statestore.query.logs import CommitEntry, OffsetEntry
from spark_statestore.query.parallel import Progress
from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.query.sources import is_offset_of_files
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.rescaling.partitioning import state_name
from spark_statestore.savepoints.copy import EditOfLogs
from spark_statestore.savepoints.create import held_if_possible
from spark_statestore.savepoints.restore import copy_held
from spark_statestore.writing.done_files import SourceLog, log_of_done_files
from spark_statestore.writing.tables import as_tables
from spark_statestore.writing.write import Changes, WrittenState, changes_of, find_writable

StateKey = int | tuple[int, str]
"""An operator with one state, or an operator and one of its column families."""

Offset = str | Mapping[str, Any] | Sequence[str]
"""JSON as the source writes it, or the files and directories that a file source has read."""


def bootstrap(
    started: str,
    target: str,
    state: Mapping[StateKey, Any],
    *,
    offsets: Mapping[str, Offset] | None = None,
    watermark: datetime | None = None,
    batch: int | None = None,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> WrittenState:
    """Write a checkpoint from which a query starts with given state, without Spark.

    Schemas, partitions and settings are those of a checkpoint that the query has written in a run of its
    own, on any few rows and with any sink. Of its state nothing is taken: what `state` does not have is
    empty, and so is the operator state of the query's functions.

    Parameters
    ----------
    started
        The checkpoint of that run.
    target
        URL of the new checkpoint location, which must be empty. Start the unchanged query with it as its
        ``checkpointLocation``.
    state
        Rows by operator, or by operator and column family, as `write_state` takes them.
    offsets
        Where the query begins to read, by the name of the source: ``"0"`` for the first one, or the name
        that Spark gives it in its offset log. An offset is JSON as the source writes it, such as
        ``{"orders": {"0": 1200, "1": 1187}}`` of Kafka. For Spark's file source it is a list of the files
        that are done, such as ``["/data/incoming"]``; a directory means all that are below it now. Sources
        that are not given go on after the run.
    watermark
        The watermark of the first batch, in whole milliseconds. By default that of the run.
    batch
        The last batch of the run that counts, by default the newest committed one.
    checkpoints_dir, progress
        See `write_state`.

    Returns
    -------
    WrittenState
        All keys are `added`.

    Raises
    ------
    OptionError
        If there is no such source, if an offset lacks what the run's has, if a file that is done does not
        exist, if the watermark has no zone, or if the state is one that cannot be written.
    RowEncodingError
        If a row is not one of its state's schema, or two rows have the same key.
    RescaleError
        If the partition of a key is unknown.
    CheckpointNotFoundError
        If the checkpoint, the batch or a state does not exist.
    CheckpointExistsError
        If the new location is not empty.
    IllegalStateError
        If the query is rescaled or written in place meanwhile. No files remain at the new location.
    CheckpointError, StorageError
        If a file cannot be read or written. No files remain at the new location.
    """
    offsets = {} if offsets is None else offsets
    require_mapping("state", state)
    require_mapping("offsets", offsets)
    checkpoint = open_checkpoint(started, checkpoints_dir=checkpoints_dir)
    number = checkpoint.require_batch(batch)
    entry = checkpoint.offsets(number)
    present = checkpoint.source_offsets(entry)
    logs = _logs_of_files(checkpoint, present, offsets)
    edit = _edit_of_logs(checkpoint, entry, present, offsets, logs, watermark)
    tables_by_state = {operator_and_family(key): as_tables(rows) for key, rows in state.items()}
    with held_if_possible(checkpoint, number, target):
        commit = checkpoint.commit(number)
        changes_by_state: dict[tuple[int, str], Changes] = {}
        for (operator, family), tables in tables_by_state.items():
            described, source = find_writable(checkpoint, number, operator, "default", family)
            name = state_name(source.store, source.state.name)
            if (operator, name) in changes_by_state:
                raise OptionError(
                    f"there are rows of operator {operator}, column family {name!r}, twice. Give them once. "
                    "No checkpoint was written."
                )
            changes_by_state[operator, name] = changes_of(
                tables, "replace", checkpoint, number, described, source
            )

        def change(content: StoreSnapshot) -> StoreSnapshot:
            content = replace(content, rows=lambda: iter(()))
            for changes in changes_by_state.values():
                content = changes.apply(content)
            return content

        copy_held(
            checkpoint,
            number,
            target,
            str(uuid.uuid4()),
            entry=commit,
            checkpoints_dir=checkpoints_dir,
            progress=progress,
            change=change,
            edit=edit,
            source_logs={name: log.files for name, log in logs.items()},
            has_operator_state=False,
        )
    return WrittenState(number, sum(changes.counts.added for changes in changes_by_state.values()), 0, 0)


def operator_and_family(key: Any) -> tuple[int, str | None]:
    """Return an operator and, if it is given, a column family; raise `OptionError` for all else."""
    operator, family = key if isinstance(key, tuple) and len(key) == 2 else (key, None)
    if isinstance(operator, Integral) and (family is None or isinstance(family, str)):
        return int(operator), family
    raise OptionError(
        f"the state is given for {key!r}, but it must be for an operator, such as 0, or for an operator and "
        "a column family, such as (0, 'count'). No checkpoint was written."
    )


def require_mapping(name: str, value: object) -> None:
    """Raise `OptionError` for an argument that is no dict."""
    if not isinstance(value, Mapping):
        raise OptionError(
            f"the {name} is a {type(value).__name__}, but it must be a dict. No checkpoint was written."
        )


def _logs_of_files(
    checkpoint: QueryCheckpoint, present: Mapping[str, str], offsets: Mapping[str, Offset]
) -> dict[str, SourceLog]:
    """Return the logs of the sources for which files are given."""
    logs = {}
    for name, offset in offsets.items():
        # Another name is refused with those of all sources.
        if name in present and isinstance(offset, Sequence) and not isinstance(offset, str):
            if not is_offset_of_files(present[name]):
                raise OptionError(
                    f"files are given for the source {name!r}, but its offset is {present[name]}, which is "
                    "not that of Spark's file source. Give an offset as this source writes it, or leave it. "
                    "No checkpoint was written."
                )
            logs[name] = log_of_done_files(checkpoint, name, offset)
    return logs


def _edit_of_logs(
    checkpoint: QueryCheckpoint,
    entry: OffsetEntry,
    present: Mapping[str, str],
    offsets: Mapping[str, Offset],
    logs: Mapping[str, SourceLog],
    watermark: datetime | None,
) -> EditOfLogs:
    """Return what gives the entries of Spark's logs other offsets and another watermark."""
    lines = {
        name: logs[name].offset if name in logs else _line(name, offset) for name, offset in offsets.items()
    }
    if lines and len(present) != len(entry.sources):
        raise OptionError(
            f"the query of {checkpoint.url} reads a source several times, with one log for all, so that its "
            "offset cannot be set. Leave the offsets. No checkpoint was written."
        )
    for name, line in lines.items():
        if name not in present:
            raise OptionError(
                f"the query of {checkpoint.url} has no source {name!r}: it has "
                f"{', '.join(map(repr, present)) or 'none'}. Use one of those. No checkpoint was written."
            )
        if name not in logs:
            _require_like(name, line, present[name])
        # A source that the query reads twice has two lines, of which Spark takes the last one.
        if alike := [
            source for source in present if source not in lines and present[source] == present[name]
        ]:
            raise OptionError(
                f"the sources {name!r} and {alike[0]!r} have the same offset {present[name]}, as has one "
                "that the query reads twice. Give the offsets of both. No checkpoint was written."
            )
    milliseconds = None if watermark is None else _milliseconds(watermark)

    def edit(offsets: OffsetEntry, commit: CommitEntry) -> tuple[OffsetEntry, CommitEntry]:
        offsets = _with_offsets(offsets, present, lines) if lines else offsets
        if milliseconds is None:
            return offsets, commit
        return offsets.with_watermark(milliseconds), commit.with_watermark(milliseconds)

    return edit


def _with_offsets(entry: OffsetEntry, present: Mapping[str, str], lines: Mapping[str, str]) -> OffsetEntry:
    """Return an entry with other offsets of some sources."""
    sources = [
        # From version 2 of the log on, the name of a source comes first.
        line.removesuffix(present[name]) + lines.get(name, present[name])
        for name, line in zip(present, entry.sources, strict=True)
    ]
    return replace(entry, sources=tuple(sources))


def _line(name: str, offset: Offset) -> str:
    try:
        text = offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":"))
        json.loads(text)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"the offset of the source {name!r} is {offset!r}, but it must be JSON as the source writes it: "
            f"{error}. Use text, or a dict of Python's own strings and numbers. No checkpoint was written."
        ) from error
    if "\n" in text:
        raise OptionError(
            f"the offset of the source {name!r} is {text!r}, but it must be one line. No checkpoint was "
            "written."
        )
    return text


def _require_like(name: str, line: str, before: str) -> None:
    """Raise unless an offset has what the source has written."""
    if is_offset_of_files(before):
        raise OptionError(
            f"the source {name!r} reads files, and keeps their names in a log of its own beside its offset "
            f"{before}. Give a list of the files and directories that are done, such as "
            "['/data/incoming']. No checkpoint was written."
        )
    if before == "-":
        raise OptionError(
            f"the source {name!r} has no offset yet, so that its form is unknown. Run the query once on rows "
            "of this source. No checkpoint was written."
        )
    try:
        path = _difference(json.loads(line), json.loads(before), "")
    except ValueError:
        # The offset of the run is no JSON.
        path = ""
    if path is not None:
        raise OptionError(
            f"the offset of the source {name!r} is {line}, but the source has written {before}, and they "
            f"differ in kind{f' at {path}' if path else ''}. Give a value of that kind for all that is in "
            "it, such as each partition. No checkpoint was written."
        )


def _difference(new: Any, before: Any, path: str) -> str | None:
    """Return the path of what an offset lacks or has of another type; None if there is none."""
    if isinstance(new, dict) and isinstance(before, dict):
        for key, value in before.items():
            inside = f"{path}.{key}" if path else key
            difference = inside if key not in new else _difference(new[key], value, inside)
            if difference is not None:
                return difference
        return None
    return None if before is None or type(new) is type(before) else path


def _milliseconds(watermark: datetime) -> int:
    if not isinstance(watermark, datetime) or watermark.tzinfo is None:
        raise OptionError(
            f"the watermark {watermark!r} is no datetime with a time zone. Use one, such as "
            "datetime(2024, 1, 1, tzinfo=timezone.utc). No checkpoint was written."
        )
    since = watermark.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    milliseconds = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if milliseconds < 0:
        raise OptionError(
            f"the watermark {watermark} is before 1970, where Spark's watermarks begin. No checkpoint was "
            "written."
        )
    return milliseconds
