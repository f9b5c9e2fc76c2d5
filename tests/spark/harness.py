"""A real provider in a real JVM, driven row by row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

import spark_statestore

Row = tuple[Any, ...]

KEY = "a string, b bigint"
VALUE = "v bigint, s string"

# Spark's own provider, the reference for the contract of a provider.
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# Otherwise Spark postpones cleanups until a number of versions can be deleted together.
IMMEDIATE_CLEANUP = {"spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0"}

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Family:
    """Declaration of a column family.

    Parameters
    ----------
    spec
        ``("none",)``, ``("prefix", columns)``, ``("range", *ordinals)``, ``("timestampPrefix",)`` or
        ``("timestampPostfix",)``.
    """

    name: str = "default"
    key: str = KEY
    value: str = VALUE
    spec: Row = ("none",)
    multiple: bool = False
    internal: bool = False


class Provider:
    """One instance of a provider, as an executor creates it for one run of a query.

    Parameters
    ----------
    spark
        Session of its JVM.
    location
        The query's checkpoint location.
    prefix_columns
        Leading key columns to scan by, 0 for none.
    default
        The default column family, if `key`, `value` and `prefix_columns` are not sufficient.
    families
        Whether further column families are permitted.
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
        default: Family | None = None,
        families: bool = False,
        provider: str = spark_statestore.PROVIDER_CLASS,
        **confs: str,
    ) -> None:
        session = {
            k: v for k, v in spark.conf.getAll.items() if k.startswith("spark.sql.streaming.stateStore.")
        }
        settings = session | {
            k if k.startswith("spark.") else "spark.sql.streaming.stateStore." + k.replace("__", "."): v
            for k, v in confs.items()
        }
        if default is None:
            spec = ("prefix", prefix_columns) if prefix_columns else ("none",)
            default = Family(key=key, value=value, spec=spec)
        self._harness = spark._jvm.org.apache.spark.sql.statestore.ProviderHarness(
            provider,
            f"{location}/state",
            operator,
            partition,
            store,
            json.dumps(asdict(default)),
            families,
            settings,
        )

    def open(self, version: int, checkpoint_id: str | None = None) -> Store:
        return self._open("open", version, checkpoint_id, False, False)

    def open_forced(self, version: int, checkpoint_id: str | None = None) -> Store:
        return self._open("open", version, checkpoint_id, True, False)

    def open_empty(self, version: int) -> Store:
        return self._open("open", version, None, False, True)

    def open_read(self, version: int, checkpoint_id: str | None = None) -> Store:
        return self._open("openRead", version, checkpoint_id)

    def open_replay(self, start: int, version: int) -> Store:
        """Open a version for reading, built from an earlier one and the changes since."""
        return self._open("openReplay", start, version)

    def changes(self, family: str, start: int, version: int) -> list[tuple[int, str, Row, Row | None]]:
        """Return the change feed of a family: batch, change type, key and value."""
        (rows,) = json.loads(self._harness.run(json.dumps([("changes", 0, family, start, version)])))
        return [(batch, kind, tuple(key), value and tuple(value)) for batch, kind, key, value in rows]

    def refusal(self, operation: str, version: int, checkpoint_id: str | None = None) -> Refusal | None:
        """Return the error of opening a store by ``open`` or ``openRead``; None if it succeeds."""
        arguments = (version, checkpoint_id) + ((False, False) if operation == "open" else ())
        refused = self._harness.refusal(json.dumps([(operation, next(_numbers), *arguments)]))
        return None if refused is None else Refusal(*json.loads(refused))

    def upgrade(
        self, read_store: Store, version: int, checkpoint_id: str | None = None, owner: Provider | None = None
    ) -> Store:
        owner = owner or self
        number = next(_numbers)
        self._harness.upgradeFrom(owner._harness, read_store.number, number, version, checkpoint_id)
        return Store(self._harness, number)

    def begin_task(self) -> None:
        """Run the further calls of this thread as a Spark task."""
        self._harness.beginTask()

    def kill_task(self) -> None:
        """Kill the task of this thread, as the driver does."""
        self._harness.killTask()

    def end_task(self, *, failed: bool = False) -> None:
        self._harness.endTask(failed)

    def begin_run(self) -> None:
        """Begin a run of a query, whose tasks hand their commits over to `barrier`."""
        self._harness.beginRun()

    def prepare_barrier(self) -> None:
        """Begin to publish the commits of a batch, as real-time mode does when it logs the offsets."""
        self._harness.prepareBarrier()

    def barrier(self) -> None:
        """Wait for the commits of a batch, as before Spark's commit log gets it."""
        self._harness.barrier()

    def end_run(self) -> None:
        self._harness.endRun()

    def snapshot(self) -> None:
        self._harness.snapshotMaintenance()

    @contextmanager
    def holding_copies(self) -> Iterator[None]:
        """Have local copies of this JVM wait until the end of the block."""
        released = self._harness.holdCopies()
        try:
            yield
        finally:
            released.countDown()

    def await_background(self) -> None:
        """Wait for uploads, compactions and local copies that have begun in this JVM."""
        self._harness.awaitBackground()

    def cleanup(self) -> None:
        self._harness.cleanupMaintenance()

    def end_stores(self) -> None:
        """End the stores that are still open: RocksDB cannot be closed before."""
        self._harness.endStores()

    def close(self) -> None:
        self._harness.close()

    def _open(self, operation: str, *arguments: Any) -> Store:
        number = next(_numbers)
        _run(self._harness, [(operation, number, *arguments)])
        return Store(self._harness, number)


Open = Callable[..., Provider]


@contextmanager
def instances(spark: Any, place: Path, **confs: str) -> Iterator[Open]:
    """Yield a function that opens instances of one store, as several executors do, and close them all."""
    opened = []

    def open_instance(**more: str) -> Provider:
        opened.append(Provider(spark, f"file:{place}", **confs | more))
        return opened[-1]

    yield open_instance
    for provider in opened:
        provider.close()


class Operations:
    """Operations of a store. Subclasses decide where they are executed."""

    number: int

    def _do(self, decode: Callable[[Any], Any], operation: str, *arguments: Any) -> Any:
        raise NotImplementedError

    def create(self, family: Family) -> None:
        self._do(_as_is, "create", family.name, asdict(family))

    def register(self, family: Family) -> None:
        self._do(_as_is, "register", family.name, asdict(family))

    def record(self, family: Family) -> None:
        """Record the schema of a family's values as the newest one, as Spark does when it has checked it."""
        self._do(_as_is, "record", family.name, asdict(family))

    def remove_family(self, family: str) -> bool:
        return self._do(_as_is, "removeFamily", family)

    def families(self) -> set[str]:
        return self._do(set, "families")

    def put(self, key: Row, value: Row, family: str = "default") -> None:
        self._do(_as_is, "put", family, key, value)

    def put_list(self, key: Row, values: list[Row], family: str = "default") -> None:
        self._do(_as_is, "putList", family, key, values)

    def merge(self, key: Row, value: Row, family: str = "default") -> None:
        self._do(_as_is, "merge", family, key, value)

    def merge_list(self, key: Row, values: list[Row], family: str = "default") -> None:
        self._do(_as_is, "mergeList", family, key, values)

    def remove(self, key: Row, family: str = "default") -> None:
        self._do(_as_is, "remove", family, key)

    def delete_range(self, begin: Row, end: Row, family: str = "default") -> None:
        self._do(_as_is, "deleteRange", family, begin, end)

    def get(self, key: Row, family: str = "default") -> Row | None:
        return self._do(_row, "get", family, key)

    def exists(self, key: Row, family: str = "default") -> bool:
        return self._do(_as_is, "exists", family, key)

    def multi_get(self, keys: list[Row], family: str = "default") -> list[Row | None]:
        return self._do(_rows, "multiGet", family, keys)

    def scan(self, kind: str, *arguments: Any, family: str = "default") -> list[Any]:
        """Return all rows of an iterator, see `Store.open_iterator` for the kinds and their arguments."""
        return self._do(_rows if kind == "values" else _pairs, "scan", family, kind, *arguments)

    def values(self, key: Row, family: str = "default") -> list[Row]:
        return self.scan("values", key, family=family)

    def rows(self, family: str = "default") -> list[tuple[Row, Row]]:
        return self.scan("all", family=family)

    def prefix_rows(self, *prefix: Any, family: str = "default") -> list[tuple[Row, Row]]:
        return self.scan("prefix", prefix, family=family)

    def range_rows(
        self, start: Row | None, end: Row | None, family: str = "default"
    ) -> list[tuple[Row, Row]]:
        return self.scan("range", start, end, family=family)

    def commit(self) -> int:
        return self._do(_as_is, "commit")

    def abort(self) -> None:
        self._do(_as_is, "abort")

    def release(self) -> None:
        self._do(_as_is, "release")


class Store(Operations):
    """A store that a provider opened, for reading or for writing."""

    def __init__(self, harness: Any, number: int) -> None:
        self._harness = harness
        self.number = number

    def _do(self, decode: Callable[[Any], Any], operation: str, *arguments: Any) -> Any:
        (result,) = _run(self._harness, [(operation, self.number, *arguments)])
        return decode(result)

    def get_before(self, key: Row, other_store: Store, other_key: Row, family: str = "default") -> Row | None:
        """Return the row of a key, decoded after another store has read another key."""
        return self._do(_row, "getBefore", family, key, other_store.number, other_key)

    def script(self) -> Script:
        return Script(self._harness, self.number)

    def refusal(self, operation: str, *arguments: Any, **options: Any) -> Refusal | None:
        """Return the error of an operation, a method of this class; None if it succeeds."""
        script = self.script()
        getattr(script, operation)(*arguments, **options)
        refused = self._harness.refusal(json.dumps(script.operations))
        if refused is None:
            return None
        refusal = Refusal(*json.loads(refused))
        if refusal.kind == _MISSING:
            pytest.skip(refusal.message)
        return refusal

    def open_iterator(self, kind: str, *arguments: Any, family: str = "default") -> RowIterator:
        """Open an iterator that stays open.

        The kinds are ``all``, ``prefix`` with the prefix, ``range`` with two keys or None, each also with
        ``Values`` behind it for single values of a key; ``values`` with a key; ``multiGet`` with keys,
        None for missing ones; and ``reusable``.
        """
        number = next(_numbers)
        self._do(_as_is, "openIterator", family, kind, *arguments, number)
        return RowIterator(
            self._harness, number, self.number, _row if kind in ("values", "multiGet") else _pair
        )

    def iterator(self) -> RowIterator:
        return self.open_iterator("all")

    @property
    def has_committed(self) -> bool:
        return self._do(_as_is, "hasCommitted")

    @property
    def checkpoint_id(self) -> str | None:
        return self._do(_as_is, "checkpointId")

    @property
    def base_checkpoint_id(self) -> str | None:
        return self._do(_as_is, "baseCheckpointId")

    @property
    def metrics(self) -> dict[str, int]:
        return self._do(dict, "metrics")


def begin(provider: Provider, version: int, checkpoint_id: str | None, rows: dict[Row, Row]) -> Store:
    """Open a version for writing, and put rows."""
    store = provider.open(version, checkpoint_id)
    for key, row in rows.items():
        store.put(key, row)
    return store


def read(provider: Provider, version: int, checkpoint_id: str | None = None) -> dict[Row, Row]:
    """Return the rows of a version."""
    store = provider.open_read(version, checkpoint_id)
    rows = dict(store.rows())
    store.release()
    return rows


class Script(Operations):
    """Operations on one store, sent to it in one call; single calls are ten times slower."""

    def __init__(self, harness: Any, number: int) -> None:
        self._harness = harness
        self.number = number
        self.operations: list[Any] = []
        self._decoders: list[Callable[[Any], Any]] = []

    def _do(self, decode: Callable[[Any], Any], operation: str, *arguments: Any) -> Any:
        self.operations.append((operation, self.number, *arguments))
        self._decoders.append(decode)

    def run(self) -> list[Any]:
        """Return the result of each operation."""
        results = _run(self._harness, self.operations)
        decoded = [decode(result) for decode, result in zip(self._decoders, results, strict=True)]
        self.operations, self._decoders = [], []
        return decoded


@dataclass(frozen=True)
class Refusal:
    """An error: its condition if it has one in Spark, else its class."""

    kind: str
    message: str


class RowIterator:
    """An open iterator of a store."""

    def __init__(self, harness: Any, number: int, store: int, decode: Callable[[Any], Any]) -> None:
        self._harness = harness
        self._number = number
        self._store = store
        self._decode = decode

    def __iter__(self) -> Iterator[Any]:
        while (row := self.next()) is not None:
            yield row

    def take(self, limit: int) -> list[Any]:
        """Return at most this many rows."""
        return [self._decode(row) for row in self._ask("next", limit)]

    def take_removed(self, limit: int) -> list[Any]:
        """Return at most this many rows, each read after its key was removed from the store."""
        return [self._decode(row) for row in self._ask("nextRemoved", limit, self._store)]

    def take_overwritten(self, limit: int) -> list[Any]:
        """Return at most this many rows, read by a caller that writes its own rows into each pair."""
        return [self._decode(row) for row in self._ask("nextOverwritten", limit)]

    def next(self) -> Any:
        return next(iter(self.take(1)), None)

    def seek(self, *prefix: Any) -> None:
        """Make a reusable iterator see all writes, and seek the first key that is not below the prefix."""
        self._ask("seek", prefix)

    def close(self) -> None:
        self._ask("closeIterator")

    def _ask(self, operation: str, *arguments: Any) -> Any:
        return _run(self._harness, [(operation, self._number, *arguments)])[0]


# The error of an operation that the stores of an older Spark lack. This package's stores have all of them.
_MISSING = "MissingInSparkException"


def _run(harness: Any, operations: list[Any]) -> list[Any]:
    """Run operations in the JVM; skip the test at one that the tested store of Spark's lacks."""
    try:
        return json.loads(harness.run(json.dumps(operations)))
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() == _MISSING:
            pytest.skip(error.java_exception.getMessage())
        raise


def _as_is(result: Any) -> Any:
    return result


def _row(row: list[Any] | None) -> Row | None:
    return None if row is None else tuple(row)


def _rows(rows: list[Any]) -> list[Row | None]:
    return [_row(row) for row in rows]


def _pair(row: list[Any]) -> tuple[Row, Row]:
    key, value = row
    return tuple(key), tuple(value)


def _pairs(rows: list[Any]) -> list[tuple[Row, Row]]:
    return [_pair(row) for row in rows]
