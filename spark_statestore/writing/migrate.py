"""State of an old query, taken to a changed one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from spark_statestore.errors import OptionError
from spark_statestore.query.logs import CommitEntry, OffsetEntry
from spark_statestore.query.parallel import Progress
from spark_statestore.query.query_checkpoint import QueryCheckpoint
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.query.sources import is_offset_of_files, lines_by_name
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.savepoints.copy import EditOfLogs
from spark_statestore.savepoints.create import held_if_possible
from spark_statestore.savepoints.new_location import unused_locations
from spark_statestore.savepoints.restore import copy_held
from spark_statestore.writing.bootstrap import StateKey, operator_and_family, require_mapping
from spark_statestore.writing.columns import ColumnValues, shortened
from spark_statestore.writing.operator_matches import KeyedState, keyed_states, matched_operators
from spark_statestore.writing.state_plans import plan_operator, variable_of
from spark_statestore.writing.taken_state import OperatorPlan, StatePlan
from spark_statestore.writing.write import require_memory


@dataclass(frozen=True, slots=True)
class MigratedState:
    """A state of the new query.

    Attributes
    ----------
    operator, name
        Its operator and column family.
    taken_from
        Operator and column family of the old query; None if it starts empty.
    keys
        Number of keys that are taken.
    columns
        Where each column comes from, such as ``("value.sum", "0")``. None if the rows are taken as they are.
    not_taken
        Columns of the old state that no new one takes as they are.
    """

    operator: int
    name: str
    taken_from: tuple[int, str] | None
    keys: int
    columns: tuple[tuple[str, str], ...] = ()
    not_taken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Migration:
    """The result of `migrate`; as text, a table of what comes from where.

    Attributes
    ----------
    batch
        The last batch of the new checkpoint. The changed query begins with the next one.
    states
        The states of the new query.
    dropped
        States of the old query that are not in the new one, with their numbers of keys: names such as
        ``operator 1 (dedupe)``.
    """

    batch: int
    states: tuple[MigratedState, ...]
    dropped: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        lines = [f"batch {self.batch}"]
        for state in self.states:
            origin = (
                "starts empty"
                if state.taken_from is None
                else f"{state.keys:,} keys of operator {state.taken_from[0]}, {state.taken_from[1]}"
                + ("" if state.columns else ", as they are")
            )
            lines.append(f"operator {state.operator}, {state.name}: {origin}")
            width = max((len(path) for path, _ in state.columns), default=0)
            lines += [f"    {path:{width}} = {source}" for path, source in state.columns]
            lines += [f"    not taken: {path}" for path in shortened(state.not_taken)]
        lines += [f"dropped: {name}, {keys:,} keys" for name, keys in self.dropped]
        return "\n".join(lines)


def migrate(
    source: str,
    started: str,
    target: str,
    *,
    operators: Mapping[int, int | None] | None = None,
    states: Mapping[tuple[int, str], str | None] | None = None,
    columns: Mapping[StateKey, Mapping[str, ColumnValues]] | None = None,
    drop: Collection[StateKey] = (),
    batch: int | None = None,
    memory: int = 1 << 29,
    checkpoints_dir: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Migration:
    """Write a checkpoint from which a changed query goes on with the state of the old one, without Spark.

    Schemas, partitions and settings are those of a checkpoint that the changed query has written in a run of
    its own, as for `bootstrap`. Offsets, logs of file sources, watermark, number of the batch and operator
    state of the query's functions are the old query's.

    A state of the same schema is taken byte for byte, of every operator. Of another schema are those that
    `write_state` can write, whose columns are matched by name, and buffers of aggregates by their kind.

    Parameters
    ----------
    source
        The old query's ``checkpointLocation``, or a savepoint. It is not changed. Stop the query before.
    started
        The checkpoint of the changed query's run.
    target
        URL of the new checkpoint location, which must be empty. Start the changed query with it as its
        ``checkpointLocation``.
    operators
        Old operators by new ones, None for one that starts without state. The others are matched by kind
        and names of key columns.
    states
        Names of the old variables of ``transformWithState`` by operator and name of the new ones, None for
        one that starts empty. The others are matched by name.
    columns
        Values of columns, such as ``{0: {"key.country": pa.scalar("DE")}}``, by operator or by operator and
        column family of the new query. An expression of pyarrow, SQL as a string if DuckDB is installed, or
        a function that returns an array for a record batch, over the rows of the old state as `read_state`
        returns them; or a number, a time, bytes, or None for all rows.
    drop
        Operators of the old query, or operators and column families, whose state is not taken.
    batch
        The last batch of the old query that counts, by default the newest committed one.
    memory
        Approximate limit of the bytes held of a store that is taken as it is. Other states are held whole.
    dry_run
        Read and check all, and return what would be done, without writing anything.
    checkpoints_dir, progress
        See `write_state`.

    Raises
    ------
    OptionError
        If state of the old query would be lost that `drop` does not name, if the values of a column cannot
        be told, or if an argument does not fit the queries.
    RowEncodingError
        If values are not of the new column's type, or if several keys of the old state would be one.
    RescaleError
        If the partition of a key is unknown.
    CheckpointNotFoundError
        If a checkpoint, the batch or a state does not exist.
    CheckpointExistsError
        If the new location is not empty.
    IllegalStateError
        If the new query is rescaled or written in place meanwhile. No files remain at the new location.
    CheckpointError, StorageError
        If a file cannot be read or written. No files remain at the new location.
    """
    operators, states, columns = operators or {}, states or {}, columns or {}
    _require_form(operators, states, columns, drop, memory)
    old = open_checkpoint(source, checkpoints_dir=checkpoints_dir)
    new = open_checkpoint(started, checkpoints_dir=checkpoints_dir)
    number = old.require_batch(batch)
    begun = new.require_batch(None)
    edit = _edit_of_logs(old, number, new, begun)
    # Before all is read. The target is neither in the old checkpoint nor in that of the run.
    for checkpoint in (old, new):
        unused_locations(checkpoint, target)
    with nullcontext() if dry_run else held_if_possible(old, number, target):
        entry = new.commit(begun)
        plans, dropped = _plans(old, number, new, begun, operators, states, columns, drop)
        result = Migration(
            number,
            tuple(
                _described(plan, state)
                for plan in plans.values()
                for state in plan.states
                if not state.is_derived
            ),
            tuple(dropped),
        )
        for plan in plans.values():
            plan.read()
        if dry_run:
            return result

        def change(content: StoreSnapshot) -> StoreSnapshot:
            return plans[content.store.operator].content(content, memory)

        copy_held(
            old,
            number,
            target,
            str(uuid.uuid4()),
            entry=entry,
            checkpoints_dir=checkpoints_dir,
            progress=progress,
            change=change,
            edit=edit,
            state_of=(new, begun),
        )
    return result


def _plans(
    old: QueryCheckpoint,
    batch: int,
    new: QueryCheckpoint,
    begun: int,
    operators: Mapping[int, int | None],
    states: Mapping[tuple[int, str], str | None],
    columns: Mapping[StateKey, Mapping[str, ColumnValues]],
    drop: Collection[StateKey],
) -> tuple[dict[int, OperatorPlan], list[tuple[str, int]]]:
    """Return what each operator of the new query takes, and what of the old query is dropped."""
    before, after = keyed_states(old, batch), keyed_states(new, begun)
    matches = matched_operators(before, after, operators)
    values_by_state = {operator_and_family(key): values for key, values in columns.items()}
    dropped_names = {operator_and_family(key) for key in drop}
    plans = {
        state.operator.id: plan_operator(
            matches[state.operator.id],
            state,
            {name: origin for (operator, name), origin in states.items() if operator == state.operator.id},
            {
                family: values
                for (operator, family), values in values_by_state.items()
                if operator == state.operator.id
            },
            _dropped_of(matches[state.operator.id], dropped_names),
            is_given=state.operator.id in operators,
        )
        for state in after
    }
    numbers = {state.operator.id for state in after}
    for operator in [operator for operator, _ in (*states, *values_by_state) if operator not in numbers]:
        raise OptionError(
            f"the new query has no stateful operator {operator!r}, it has "
            f"{', '.join(map(str, after)) or 'none'}. Use one of those. No checkpoint was written."
        )
    old_operators = {match.operator.id for match in matches.values() if match is not None}
    dropped = [entry for plan in plans.values() for entry in plan.dropped]
    for state in before:
        keys = sum(family.rows for family in state.families.values())
        if state.operator.id in old_operators:
            continue
        if keys and (state.operator.id, None) not in dropped_names:
            raise OptionError(
                f"no operator of the new query takes the state of operator {state} of the old one, which has "
                f"{keys:,} keys. Say in `operators` which one takes it, or drop it: drop="
                f"[{state.operator.id}]. No checkpoint was written."
            )
        dropped.append((f"operator {state}", keys))
    old_states = {(state.operator.id, None) for state in before} | {
        (state.operator.id, variable_of(name)) for state in before for _, name in state.families
    }
    for operator, family in dropped_names - old_states:
        raise OptionError(
            f"the old query has no state {(operator, family) if family else operator!r} to drop; it has the "
            f"operators {', '.join(map(str, before)) or 'none'}. Use one of those, or leave it. No "
            "checkpoint was written."
        )
    return plans, dropped


def _dropped_of(match: KeyedState | None, names: Collection[tuple[int, str | None]]) -> set[str | None]:
    """Return the column families of an old operator that are dropped; None is in it for all of them."""
    return {family for operator, family in names if match is not None and operator == match.operator.id}


def _described(plan: OperatorPlan, state: StatePlan) -> MigratedState:
    computed = state.computed
    columns = () if computed is None else tuple((f.path, str(f)) for f in computed.columns.fields)
    return MigratedState(
        plan.new.operator.id,
        state.label,
        None if state.old is None or plan.old is None else (plan.old.operator.id, state.old.name),
        0 if state.old is None else state.old.rows,
        columns,
        () if computed is None else tuple(computed.columns.not_taken),
    )


def _edit_of_logs(old: QueryCheckpoint, batch: int, new: QueryCheckpoint, begun: int) -> EditOfLogs:
    """Return what gives the old query's entries the settings of the new one."""
    entry, fresh = old.offsets(batch), new.offsets(begun)
    commit = new.commit(begun)
    watermark = old.commit(batch).metadata.get("nextBatchWatermarkMs", entry.watermark_ms)
    _require_like_sources(entry, fresh, old, new)

    def edit(offsets: OffsetEntry, old_commit: CommitEntry) -> tuple[OffsetEntry, CommitEntry]:
        metadata = {**offsets.metadata, "conf": fresh.metadata.get("conf", {})}
        ids = old_commit.state_ids
        changed = commit.with_watermark(int(watermark))
        return (
            replace(offsets, metadata=metadata),
            changed if ids is None else changed.with_state_ids(ids),
        )

    return edit


def _require_like_sources(
    entry: OffsetEntry, fresh: OffsetEntry, old: QueryCheckpoint, new: QueryCheckpoint
) -> None:
    """Raise unless the new query has the sources of the old one, as far as their offsets show."""
    before, after = lines_by_name(entry), lines_by_name(fresh)
    if entry.version != fresh.version or before.keys() != after.keys():
        raise OptionError(
            f"the old query reads the sources {', '.join(before)}, and the new one {', '.join(after)}, or "
            "Spark's settings for the log of offsets differ, so that it is not clear where each goes on: "
            f"{entry.sources} in {old.url}, {fresh.sources} in {new.url}. Use the same sources in the same "
            "order, and the same settings. No checkpoint was written."
        )
    for name, line in before.items():
        if "-" not in (line, after[name]) and not _are_alike(line, after[name]):
            raise OptionError(
                f"the source {name} of the new query has the offset {after[name]}, but that of the old one "
                f"has {line}, which is of another kind or topic. Use the same sources in the same order. No "
                "checkpoint was written."
            )


def _are_alike(before: str, after: str) -> bool:
    """Return whether offsets may be those of one source, as far as it is known."""
    if is_offset_of_files(before) or is_offset_of_files(after):
        return is_offset_of_files(before) and is_offset_of_files(after)
    nodes = [_json(offset) for offset in (before, after)]
    topics = [_topics(node) for node in nodes]
    if topics[0] and topics[1]:
        return not topics[0].isdisjoint(topics[1])
    return type(nodes[0]) is type(nodes[1]) and (topics[0] is None) == (topics[1] is None)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _topics(node: object) -> set[str] | None:
    """Return the topics of an offset such as Kafka's, a number for each partition; None for another one."""
    if isinstance(node, dict) and all(isinstance(value, dict) for value in node.values()):
        return set(node)
    return None


def _require_form(operators: Any, states: Any, columns: Any, drop: Any, memory: int) -> None:
    """Raise for arguments of other types than `migrate` describes."""
    for name, mapping in (("operators", operators), ("states", states), ("columns", columns)):
        require_mapping(name, mapping)
    for key in states:
        if operator_and_family(key)[1] is None:
            raise OptionError(
                f"the states have the key {key!r}, but it must be an operator and the name of a variable, "
                "such as (0, 'count'). No checkpoint was written."
            )
    if not isinstance(drop, list | tuple | set | frozenset):
        raise OptionError(
            f"the states to drop are a {type(drop).__name__}, but they must be a list, such as [1] or "
            "[(0, 'count')]. No checkpoint was written."
        )
    require_memory(memory)
