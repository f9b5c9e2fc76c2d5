"""Write of a query's state: a copy of its checkpoint with changed keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.compute as pc

from spark_statestore.errors import OptionError
from spark_statestore.query import QueryCheckpoint, StatefulOperator
from spark_statestore.query.parallel import Progress
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.rescaling.redistribute import require_strict_distribution
from spark_statestore.rows.source import StateSource, state_of
from spark_statestore.savepoints.create import held_if_possible
from spark_statestore.savepoints.restore import copy_held
from spark_statestore.writing.changes import StateChanges
from spark_statestore.writing.in_place import InPlaceWrite
from spark_statestore.writing.layout_changes import LayoutChanges
from spark_statestore.writing.predicate import MatchingDelete
from spark_statestore.writing.rows import AGGREGATION, Mode, require_writable
from spark_statestore.writing.state_layouts import StateLayout, layout_of
from spark_statestore.writing.tables import as_tables

Changes = StateChanges | MatchingDelete | LayoutChanges
"""Changes of a state, applied to each store that is copied."""

_AGGREGATION_FORMAT: Final = "spark.sql.streaming.aggregation.stateFormatVersion"


@dataclass(frozen=True, slots=True)
class WrittenState:
    """The result of `write_state`.

    Attributes
    ----------
    batch
        The last batch of the new checkpoint. A query resumes with the next one.
    added, changed, removed
        Number of keys that were new, were there and have the value of the changes, and are no more there.
    """

    batch: int
    added: int
    changed: int
    removed: int


def write_state(
    source: str,
    target: str | None,
    changes: Any,
    *,
    operator: int = 0,
    store: str = "default",
    column_family: str | None = None,
    mode: Mode = "upsert",
    batch: int | None = None,
    in_place: bool = False,
    stopped: bool = False,
    memory: int = 1 << 29,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> WrittenState:
    """Copy a query's checkpoint with changed state: correct, delete or import keys without Spark.

    The copy is one as by `clone`: it shares no file with the source, which is not changed, and has a new
    query id. Start the unchanged query with it as its ``checkpointLocation``. With `in_place` the checkpoint
    itself changes, at its newest batch.

    The state of every operator but limits can be written. What Spark derives from it, such as the number of a
    list's values, is written with it: docs/writing.md has the states and their names.

    Parameters
    ----------
    source
        The query's ``checkpointLocation``, or a savepoint.
    target
        URL of the new checkpoint location, which must be empty; None with `in_place`.
    changes
        A row for each key, with the columns of `read_state`, such as ``key`` and ``value``; of a state whose
        keys have several values, a row for each in its order. Of other names of fields or other types, see
        `encode_rows`. The column ``partition_id`` is ignored: the key decides. A
        `pyarrow.Table`, `RecordBatch` or `RecordBatchReader`; a data frame of Polars, Spark or pandas, whose
        structs are dicts; or another object with the method ``__arrow_c_stream__``. With the mode ``delete``
        also a predicate over the columns of `read_state`, which selects the keys: a
        `pyarrow.compute.Expression`, or a string of SQL if DuckDB is installed.
    operator, store, column_family
        The state, see `read_state`. All others are copied unchanged.
    mode
        ``upsert``: the keys get these values. ``replace``: the state has these keys and no others.
        ``delete``: the keys are removed; keys that are not there are ignored, and so are values.
    batch
        The last batch of the copy, by default the newest committed one.
    in_place
        Change the state of the stopped query. The state of before is kept; docs/writing.md says how it is put
        back.
    stopped
        With `in_place`, the query is stopped: do not check its logs for activity.
    memory
        Approximate limit of the bytes of rows held for each store that is copied, beside the changes: the
        files of a larger one are read several times, each time for other keys. On remote storage eight stores
        are copied at a time.
    checkpoints_dir
        The option ``checkpointsDir`` of both queries.
    progress
        Called with the number of stores that are copied and their total.

    Raises
    ------
    RowEncodingError
        If a row is not one of the state's schema, or two rows have the same key.
    OptionError
        If there is no such mode, if `changes` is no table, if a predicate cannot be evaluated, or if the
        state is one that cannot be written.
    MissingPackageError
        If the predicate is SQL and DuckDB is not installed.
    RescaleError
        If the partition of a key is unknown.
    CheckpointNotFoundError
        If the checkpoint, the batch or the state does not exist.
    CheckpointExistsError
        If the new location is not empty.
    QueryRunningError
        If the query seems to run, with `in_place`. Nothing was changed.
    IllegalStateError
        If another process rescales the query or writes its state in place, or has removed what was written in
        place. Nothing was changed, and no files remain at the new location.
    CheckpointError, StorageError
        If a file cannot be read or written. No files remain at the new location.
    """
    if mode not in get_args(Mode):
        raise OptionError(f"the mode is {mode!r}, but it must be one of {', '.join(get_args(Mode))}.")
    require_memory(memory)
    if in_place != (target is None):
        raise OptionError(
            f"the target is {target!r}, and in_place is {in_place}: a copy has a target, and state that is "
            "written in place has None. Give one of both. Nothing was changed."
        )
    if in_place:
        checkpoint = QueryCheckpoint(source, checkpoints_dir=checkpoints_dir, fsync=True)
    else:
        checkpoint = open_checkpoint(source, checkpoints_dir=checkpoints_dir)
    number = checkpoint.require_batch(batch)
    if (is_predicate := isinstance(changes, str | pc.Expression)) and mode != "delete":
        raise OptionError(
            f"the changes are the predicate {str(changes)!r}, which selects keys to delete, but the mode "
            f"is {mode!r}. Use the mode 'delete', or pass a table of keys and values. No copy was made."
        )
    rows = changes if is_predicate else as_tables(changes)
    state = (checkpoint, number, operator, store, column_family)
    if target is None:
        # First of all: the newest batch of a running query changes meanwhile.
        activity = ActivityCheck(checkpoint)
        activity.require_stopped(stopped=stopped)
        if number != checkpoint.newest_batch():
            raise OptionError(
                f"state is written in place at the newest batch, {checkpoint.newest_batch()}, but the batch "
                f"is {number}. Leave the batch, roll the query back to it before, or write a copy. Nothing "
                "was changed."
            )
        place = InPlaceWrite(checkpoint, number, operator, activity)
        state_changes = _changes_of_state(*state, mode, rows, memory)
        place.write(state_changes.apply, memory, progress)
    else:
        with held_if_possible(checkpoint, number, target):
            entry = checkpoint.commit(number)
            state_changes = _changes_of_state(*state, mode, rows, memory)
            copy_held(
                checkpoint,
                number,
                target,
                str(uuid.uuid4()),
                entry=entry,
                checkpoints_dir=checkpoints_dir,
                progress=progress,
                change=state_changes.apply,
                memory=memory,
            )
    counts = state_changes.counts
    return WrittenState(number, counts.added, counts.changed, counts.removed)


def _changes_of_state(
    checkpoint: QueryCheckpoint,
    batch: int,
    operator: int,
    store: str,
    column_family: str | None,
    mode: Mode,
    changes: str | pc.Expression | Iterator[pa.Table],
    memory: int,
) -> Changes:
    described, source = find_writable(checkpoint, batch, operator, store, column_family)
    if isinstance(changes, str | pc.Expression):
        matching = MatchingDelete(changes, described, source.store, source.state, source.columns(None))
        return _with_derived(matching, checkpoint, batch, described, source, memory)
    return changes_of(changes, mode, checkpoint, batch, described, source, memory)


def changes_of(
    tables: Iterable[pa.Table],
    mode: Mode,
    checkpoint: QueryCheckpoint,
    batch: int,
    operator: StatefulOperator,
    source: StateSource,
    memory: int | None = None,
) -> Changes:
    """Return the changes of a state by tables, see `StateChanges`, with what Spark derives from it."""
    changes = StateChanges(tables, mode, operator, source.store, source.state, len(source.versions))
    return _with_derived(changes, checkpoint, batch, operator, source, memory)


def _with_derived(
    changes: StateChanges | MatchingDelete,
    checkpoint: QueryCheckpoint,
    batch: int,
    operator: StatefulOperator,
    source: StateSource,
    memory: int | None,
) -> Changes:
    def rows_of_partition(partition: int) -> Iterator[pa.Table]:
        (version,) = (version for version in source.versions if version.store.partition == partition)
        return source.rows(version, memory)

    layout = layout_with_derived(checkpoint, batch, operator, source)
    return (
        changes
        if layout is None
        else LayoutChanges(changes, operator, source.store, layout, rows_of_partition)
    )


def layout_with_derived(
    checkpoint: QueryCheckpoint, batch: int, operator: StatefulOperator, source: StateSource
) -> StateLayout | None:
    """Return a state with what Spark derives from it; None if its rows stand alone."""

    def source_of_store(store: str) -> StateSource:
        return state_of(checkpoint, operator.id, store, None, batch)

    return layout_of(operator, source, source_of_store)


def require_memory(memory: int) -> None:
    """Raise `OptionError` for a limit below one byte."""
    if memory < 1:
        raise OptionError(f"the memory is {memory}, but it must be at least 1 byte, such as the default.")


def find_writable(
    checkpoint: QueryCheckpoint, batch: int, operator: int, store: str, column_family: str | None
) -> tuple[StatefulOperator, StateSource]:
    """Return an operator and a state of it that can be written, see `read_state`.

    Raises
    ------
    OptionError, RescaleError
        If it cannot.
    CheckpointNotFoundError
        If it does not exist.
    """
    described = checkpoint.operator(operator, batch)
    require_writable(described, store, None)
    source = state_of(checkpoint, operator, store, column_family, batch)
    require_writable(described, source.store, source.state)
    _require_known_layout(checkpoint, batch, described)
    return described, source


def _require_known_layout(checkpoint: QueryCheckpoint, batch: int, operator: StatefulOperator) -> None:
    """Raise if partitions or values of the operator do not follow from its schemas."""
    require_strict_distribution(checkpoint, batch, "Such state cannot be written.")
    conf = checkpoint.offsets(batch).conf
    if operator.name == AGGREGATION and conf.get(_AGGREGATION_FORMAT) == "1":
        raise OptionError(
            f"the query of {checkpoint.url} was started with {_AGGREGATION_FORMAT}=1, which keeps the key in "
            "the value once more; such state cannot be written. Start the query anew with version 2. No copy "
            "was made."
        )
