"""A query's checkpoint with one operator and typed rows, written without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.storage import CheckpointName
from spark_statestore.store.changelog import DELETE, MERGE, PUT
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.testing.stores import attempt_id
from tests.unit.rows.encoder import encode
from tests.unit.savepoints.written_query import Instance, Rows, WrittenQuery

KEY = {"type": "struct", "fields": [{"name": "k", "type": "string"}, {"name": "n", "type": "long"}]}
VALUE = {"type": "struct", "fields": [{"name": "v", "type": "long"}]}

COUNTS = ColumnFamily("default", 0, json.dumps(KEY), json.dumps(VALUE), "hash", 0)
LISTS = replace(COUNTS, name="lists", values=0)

Change = tuple[str, str, int]
"""Operation (put, delete or merge), key and value."""

Changes = Mapping[int, Sequence[tuple[str, Sequence[Change]]]]
"""Changes of each state, by partition."""

_OPS = {"put": PUT, "delete": DELETE, "merge": MERGE}


def row_key(key: str) -> dict[str, Any]:
    """The key's columns."""
    return {"k": key or None, "n": len(key)}


State = dict[str, list[int]]
"""The values of each key."""


class TypedQuery(WrittenQuery):
    """A query with two partitions, whose store has a plain state and one with several values of a key.

    `states` has the state after each batch, by partition and column family.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.states: list[dict[tuple[int, str], State]] = []
        self._state = {(partition, state.name): State() for partition in (0, 1) for state in (COUNTS, LISTS)}
        self._changes: Changes = {}
        super().__init__(url, operators={0: ("stateStoreSave", 2, ("default",))}, **options)

    def change(self, changes: Changes) -> int:
        """Run a batch: for some partitions, the changes of their column families, in order."""
        self._changes = changes
        self.log_commit(self.begin(put={}), {})
        self.states.append(dict(self._state))
        return self.batch

    def commit_store(
        self, store: StoreId, put: Rows, *, instance: Instance | None = None, whole: bool = False
    ) -> str:
        instance = instance or self.instances[store]
        by = attempt_id()
        instance.name = CheckpointName(self.batch + 2, by if self.with_ids else None)
        parts = self._changes.get(store.partition, ())
        for name, part in parts:
            self._state[store.partition, name] = applied(self._state[store.partition, name], part)
        counts, lists = (self._state[store.partition, state.name] for state in (COUNTS, LISTS))
        column_families = (
            replace(COUNTS, rows=len(counts)),
            replace(LISTS, rows=len(lists), values=sum(map(len, lists.values()))),
        )
        pending = begin_checkpoint(instance.store, instance.name, by, column_families)
        for name, part in parts:
            pending.write(0 if name == COUNTS.name else 1, changes_of(part))
        instance.handle = pending.publish(instance.handle, instance.attempt_id, None).handle
        instance.attempt_id = by
        return by


def changes_of(changes: Sequence[Change]) -> pa.Buffer:
    """A batch of changes as the shim sends it."""
    columns = [
        [_OPS[op] for op, _, _ in changes],
        [encode(KEY, row_key(key)) for _, key, _ in changes],
        [None if op == "delete" else encode(VALUE, {"v": value}) for op, _, value in changes],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, CHANGE_SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=CHANGE_SCHEMA).serialize()


def applied(state: State, changes: Sequence[Change]) -> State:
    """Return the values of each key after changes."""
    state = {key: list(values) for key, values in state.items()}
    for op, key, value in changes:
        if op == "delete":
            state.pop(key, None)
        elif op == "merge" and key in state:
            state[key].append(value)
        else:
            state[key] = [value]
    return state
