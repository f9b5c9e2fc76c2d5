"""A real provider in a real JVM, driven row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import spark_statestore

Row = tuple[Any, ...]

KEY = "a string, b bigint"
VALUE = "v bigint, s string"

# Otherwise Spark has clean-ups wait until a number of versions can go at once.
CLEAN_AT_ONCE = {"spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0"}


class Provider:
    """One instance of a provider, as one executor holds it for one run of a query.

    Parameters
    ----------
    spark
        The session whose JVM it lives in.
    location
        The query's checkpoint location.
    prefix_columns
        Leading key columns to scan by, 0 for none.
    confs
        Settings below ``spark.sql.streaming.stateStore.`` or full names.
    """

    def __init__(
        self,
        spark: Any,
        location: str,
        *,
        prefix_columns: int = 0,
        operator: int = 0,
        partition: int = 0,
        store: str = "default",
        key: str = KEY,
        value: str = VALUE,
        provider: str = spark_statestore.PROVIDER_CLASS,
        **confs: str,
    ) -> None:
        self._jvm = spark._jvm
        session = {
            k: v for k, v in spark.conf.getAll.items() if k.startswith("spark.sql.streaming.stateStore.")
        }
        settings = session | {
            k if k.startswith("spark.") else "spark.sql.streaming.stateStore." + k.replace("__", "."): v
            for k, v in confs.items()
        }
        self._harness = self._jvm.org.apache.spark.sql.statestore.ProviderHarness(
            provider, f"{location}/state", operator, partition, store, key, value, prefix_columns, settings
        )

    def open(self, version: int, checkpoint_id: str | None = None) -> Store:
        return Store(self._harness, self._harness.open(version, checkpoint_id))

    def open_forced(self, version: int, checkpoint_id: str | None = None) -> Store:
        return Store(self._harness, self._harness.openForced(version, checkpoint_id))

    def open_empty(self, version: int) -> Store:
        return Store(self._harness, self._harness.openEmpty(version))

    def open_read(self, version: int, checkpoint_id: str | None = None) -> Store:
        return Store(self._harness, self._harness.openRead(version, checkpoint_id))

    def upgrade(
        self, read: Store, version: int, checkpoint_id: str | None = None, owner: Provider | None = None
    ) -> Store:
        owner = owner or self
        number = self._harness.upgradeFrom(owner._harness, read.number, version, checkpoint_id)
        return Store(self._harness, number)

    def snapshot(self) -> None:
        self._harness.snapshotMaintenance()

    def cleanup(self) -> None:
        self._harness.cleanupMaintenance()

    def close(self) -> None:
        self._harness.close()


class Store:
    """A store that a provider opened, for reading or for writing."""

    def __init__(self, harness: Any, number: int) -> None:
        self._harness = harness
        self.number = number

    def put(self, key: Row, value: Row) -> None:
        self._harness.put(self.number, json.dumps(key), json.dumps(value))

    def remove(self, key: Row) -> None:
        self._harness.remove(self.number, json.dumps(key))

    def get(self, key: Row) -> Row | None:
        found = self._harness.get(self.number, json.dumps(key))
        return None if found is None else tuple(json.loads(found))

    def exists(self, key: Row) -> bool:
        return bool(self._harness.exists(self.number, json.dumps(key)))

    def rows(self) -> list[tuple[Row, Row]]:
        return [_pair(row) for row in json.loads(self._harness.rows(self.number))]

    def prefix_rows(self, *prefix: Any) -> list[tuple[Row, Row]]:
        return [_pair(row) for row in json.loads(self._harness.prefixRows(self.number, json.dumps(prefix)))]

    def iterator(self) -> RowIterator:
        return RowIterator(self._harness, self._harness.openIterator(self.number), self.number)

    def prefix_iterator(self, *prefix: Any) -> RowIterator:
        number = self._harness.openPrefixIterator(self.number, json.dumps(prefix))
        return RowIterator(self._harness, number, self.number)

    def commit(self) -> int:
        return int(self._harness.commit(self.number))

    def abort(self) -> None:
        self._harness.abort(self.number)

    def release(self) -> None:
        self._harness.release(self.number)

    @property
    def has_committed(self) -> bool:
        return bool(self._harness.hasCommitted(self.number))

    @property
    def checkpoint_id(self) -> str | None:
        found = self._harness.checkpointId(self.number)
        return None if found is None else str(found)

    @property
    def base_checkpoint_id(self) -> str | None:
        found = self._harness.baseCheckpointId(self.number)
        return None if found is None else str(found)

    @property
    def metrics(self) -> dict[str, int]:
        return dict(json.loads(self._harness.metrics(self.number)))


class RowIterator:
    """An open iterator of a store."""

    def __init__(self, harness: Any, number: int, store: int) -> None:
        self._harness = harness
        self._number = number
        self._store = store

    def __iter__(self) -> Iterator[tuple[Row, Row]]:
        while (row := self.next()) is not None:
            yield row

    def next(self) -> tuple[Row, Row] | None:
        found = self._harness.next(self._number)
        return None if found is None else _pair(json.loads(found))

    def next_removed(self) -> tuple[Row, Row] | None:
        """The next row, read after its key was removed from the store."""
        found = self._harness.nextRemoved(self._number, self._store)
        return None if found is None else _pair(json.loads(found))

    def close(self) -> None:
        self._harness.closeIterator(self._number)


def _pair(row: list[Any]) -> tuple[Row, Row]:
    key, value = row
    return tuple(key), tuple(value)
