"""A real provider in a real JVM, driven row by row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import spark_statestore

Row = tuple[Any, ...]

KEY = "a string, b bigint"
VALUE = "v bigint, s string"

# Spark's own provider, which says what a provider has to do.
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

# Otherwise Spark has clean-ups wait until a number of versions can go at once.
CLEAN_AT_ONCE = {"spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint": "0"}

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Family:
    """A column family as it is declared.

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
    """One instance of a provider, as one executor holds it for one run of a query.

    Parameters
    ----------
    spark
        The session whose JVM it lives in.
    location
        The query's checkpoint location.
    prefix_columns
        Leading key columns to scan by, 0 for none.
    default
        The default column family, where `key`, `value` and `prefix_columns` do not say enough.
    families
        Whether there may be other column families.
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

    def upgrade(
        self, read: Store, version: int, checkpoint_id: str | None = None, owner: Provider | None = None
    ) -> Store:
        owner = owner or self
        number = next(_numbers)
        self._harness.upgradeFrom(owner._harness, read.number, number, version, checkpoint_id)
        return Store(self._harness, number)

    def begin_task(self) -> None:
        """Run what this thread does next as a Spark task."""
        self._harness.beginTask()

    def end_task(self) -> None:
        self._harness.endTask()

    def snapshot(self) -> None:
        self._harness.snapshotMaintenance()

    def cleanup(self) -> None:
        self._harness.cleanupMaintenance()

    def end_stores(self) -> None:
        """End what is open still: RocksDB cannot be closed before."""
        self._harness.endStores()

    def close(self) -> None:
        self._harness.close()

    def _open(self, operation: str, *arguments: Any) -> Store:
        number = next(_numbers)
        self._harness.run(json.dumps([(operation, number, *arguments)]))
        return Store(self._harness, number)


Open = Callable[..., Provider]


@contextmanager
def instances(spark: Any, place: Path, **confs: str) -> Iterator[Open]:
    """Opens instances of one store, as several executors would; all are closed in the end."""
    opened = []

    def open_instance(**more: str) -> Provider:
        opened.append(Provider(spark, f"file:{place}", **confs | more))
        return opened[-1]

    yield open_instance
    for provider in opened:
        provider.close()


class Operations:
    """What a store can be asked for. Where it happens is for the subclass to say."""

    number: int

    def _do(self, decode: Callable[[Any], Any], operation: str, *arguments: Any) -> Any:
        raise NotImplementedError

    def create(self, family: Family) -> None:
        self._do(_as_is, "create", family.name, asdict(family))

    def register(self, family: Family) -> None:
        self._do(_as_is, "register", family.name, asdict(family))

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
        """All that an iterator gives, see `Store.open_iterator` for the kinds and their arguments."""
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
        (result,) = json.loads(self._harness.run(json.dumps([(operation, self.number, *arguments)])))
        return decode(result)

    def script(self) -> Script:
        return Script(self._harness, self.number)

    def refusal(self, operation: str, *arguments: Any, **options: Any) -> Refusal | None:
        """How an operation, a method of this class, fails; None if it goes well."""
        script = self.script()
        getattr(script, operation)(*arguments, **options)
        refused = self._harness.refusal(json.dumps(script.operations))
        return None if refused is None else Refusal(*json.loads(refused))

    def open_iterator(self, kind: str, *arguments: Any, family: str = "default") -> RowIterator:
        """An iterator that stays open.

        The kinds are ``all``, ``prefix`` with the prefix, ``range`` with two keys or None, each also with
        ``Values`` behind it for the values of a key one by one; ``values`` with a key; and ``reusable``.
        """
        number = next(_numbers)
        self._do(_as_is, "openIterator", family, kind, *arguments, number)
        return RowIterator(self._harness, number, self.number, _row if kind == "values" else _pair)

    def iterator(self) -> RowIterator:
        return self.open_iterator("all")

    def prefix_iterator(self, *prefix: Any) -> RowIterator:
        return self.open_iterator("prefix", prefix)

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


class Script(Operations):
    """Operations on one store that go to it in one call; one a time is ten times slower."""

    def __init__(self, harness: Any, number: int) -> None:
        self._harness = harness
        self.number = number
        self.operations: list[Any] = []
        self._decoders: list[Callable[[Any], Any]] = []

    def _do(self, decode: Callable[[Any], Any], operation: str, *arguments: Any) -> Any:
        self.operations.append((operation, self.number, *arguments))
        self._decoders.append(decode)

    def run(self) -> list[Any]:
        """What each of the operations gave."""
        results = json.loads(self._harness.run(json.dumps(self.operations)))
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
        """At most so many rows."""
        return [self._decode(row) for row in self._ask("next", limit)]

    def take_removed(self, limit: int) -> list[Any]:
        """At most so many rows, each read after its key was removed from the store."""
        return [self._decode(row) for row in self._ask("nextRemoved", limit, self._store)]

    def next(self) -> Any:
        return next(iter(self.take(1)), None)

    def next_removed(self) -> Any:
        """The next row, read after its key was removed from the store."""
        return next(iter(self.take_removed(1)), None)

    def seek(self, *prefix: Any) -> None:
        """Let a reusable iterator see all writes, and go to the first key that is not below."""
        self._ask("seek", prefix)

    def close(self) -> None:
        self._ask("closeIterator")

    def _ask(self, operation: str, *arguments: Any) -> Any:
        return json.loads(self._harness.run(json.dumps([(operation, self._number, *arguments)])))[0]


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
