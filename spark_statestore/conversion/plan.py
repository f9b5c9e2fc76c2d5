"""The stores of a checkpoint as the JVM needs them described, and what a conversion refuses."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from spark_statestore.conversion.providers import has_families, is_own
from spark_statestore.errors import (
    CheckpointNotFoundError,
    ConversionError,
    CorruptCheckpointError,
    restore_from_backup,
)
from spark_statestore.files import join
from spark_statestore.files.failures import failing_to
from spark_statestore.options import OPTION_PREFIX, PROVIDER_KEY
from spark_statestore.query import QueryCheckpoint, StatefulOperator
from spark_statestore.query.operators import SCHEMAS
from spark_statestore.query.query_checkpoint import COMMITS, OFFSETS, STATE, ranges
from spark_statestore.rows.source import variable_kinds
from spark_statestore.storage import CheckpointStorageLocationReference, decode_path_from_reference
from spark_statestore.store.metadata import StoreId

STORE_CONF: Final = "spark.sql.streaming.stateStore."
"""Prefix of the settings of state stores."""

_ENCODING: Final = f"{STORE_CONF}encodingFormat"
_LIST: Final = "ListState"

# Families that Spark's joins declare as internal; those of transformWithState begin with a dollar sign.
_INTERNAL: Final = ("left-keyToNumValues", "right-keyToNumValues", "left-tsWithKey", "right-tsWithKey")
_LISTS_OF_JOINS: Final = ("keyWithTsToValues", "tsWithKey")

_Ids = Mapping[int, Sequence[Sequence[str]]]


class Source:
    """The checkpoint that is converted, at one batch."""

    def __init__(
        self, url: str, batch: int | None, checkpoints_dir: str | None, *, query_id: str | None = None
    ) -> None:
        self.url = url
        """As it was passed; `checkpoint.url` is normalised."""
        self.checkpoint = QueryCheckpoint(url, checkpoints_dir=checkpoints_dir)
        # Raises if this is not a checkpoint location. An intermediate one has no such file.
        self.query_id = query_id or self.checkpoint.query_id
        if batch is None:
            self._require_committed()
        self.batch = self.checkpoint.require_batch(batch)
        self.offsets = self.checkpoint.offsets(self.batch)
        self.commit = self.checkpoint.commit(self.batch)
        self.checkpoints_dir = checkpoints_dir

    @cached_property
    def provider(self) -> str:
        """Class of the query's provider."""
        provider = self.offsets.conf.get(PROVIDER_KEY)
        if not provider:
            raise CorruptCheckpointError(
                f"the offset log of {self.checkpoint.url} does not name a state store provider for batch "
                f"{self.batch}. " + restore_from_backup("the entry", "use another batch")
            )
        return provider

    @cached_property
    def operators(self) -> Sequence[StatefulOperator]:
        """The stateful operators."""
        operators = self.checkpoint.operators(self.batch)
        if not operators:
            raise ConversionError(
                f"the query of {self.checkpoint.url} has no stateful operator, so there is nothing to "
                "convert: start it with any state store. Nothing was changed."
            )
        return operators

    @property
    def ids(self) -> _Ids | None:
        """Checkpoint ids of format 2; None in format 1."""
        return self.commit.state_ids

    def require_encoding(self) -> None:
        """Raise if rows are stored in another encoding than Spark's own."""
        encoding = self.offsets.conf.get(_ENCODING, "unsaferow")
        if encoding.lower() != "unsaferow":
            raise ConversionError(
                f"the query of {self.checkpoint.url} was started with {_ENCODING}={encoding}, whose rows "
                "cannot be converted. Keep its state store; nothing was changed."
            )

    def partitions(self, operator: StatefulOperator) -> int:
        """Return the number of partitions in which an operator has state."""
        if is_own(self.provider):
            return self.checkpoint.partitions(operator, self.batch)
        if self.ids and operator.id in self.ids:
            return len(self.ids[operator.id])
        if operator.may_be_single and not self._has_directory(operator, 1):
            return 1
        if self._has_directory(operator, operator.partitions):
            raise CorruptCheckpointError(
                f"operator {operator.id} ({operator.name}) of {self.checkpoint.url} has "
                f"{operator.partitions} partitions by its metadata, but there is state of partition "
                f"{operator.partitions}. " + restore_from_backup("the metadata", otherwise=None)
            )
        return operator.partitions

    def _has_directory(self, operator: StatefulOperator, partition: int) -> bool:
        path = self.checkpoint.path(STATE, str(operator.id), str(partition))
        with failing_to("look for", self.checkpoint.files, path):
            return self.checkpoint.files.is_directory(path)

    def _require_committed(self) -> None:
        begun = self.checkpoint.logged(OFFSETS)
        commits = self.checkpoint.logged(COMMITS)
        if begun and commits and max(begun) > max(commits):
            open_ = sorted(number for number in begun if number > max(commits))
            raise ConversionError(
                f"the newest batch of {self.checkpoint.url} is not committed: it has begun {ranges(open_)}, "
                f"and committed {max(commits)}. Start the query with its present store, stop it after a "
                f"batch, then convert; or pass batch={max(commits)} (--batch {max(commits)}) to leave the "
                "open batch out. Nothing was changed."
            )
        if begun and not commits:
            raise CheckpointNotFoundError(
                f"the checkpoint {self.checkpoint.url} has no committed batch. Let the query commit its "
                "first batch, or start it with the other store in a new location; nothing was changed."
            )


def side(
    source: Source,
    location: CheckpointStorageLocationReference,
    provider: str,
    partitions: Mapping[int, int],
    ids: _Ids | None,
    *,
    with_ids: bool,
) -> dict[str, Any]:
    """Return a side of the conversion as the JVM reads it: root, settings and stores.

    `location` refers to its checkpoint location, whose path executors get. With `with_ids` it has checkpoint
    format v2, and `ids` are those of its stores, if these exist.
    """
    url = decode_path_from_reference(location)
    pinned = {name: value for name, value in source.offsets.conf.items() if name.startswith(STORE_CONF)}
    conf: dict[str, str | None] = {
        **pinned,
        PROVIDER_KEY: provider,
        f"{STORE_CONF}checkpointFormatVersion": "2" if with_ids else "1",
        f"{STORE_CONF}commitValidation.enabled": "false",
        # With it Spark 4.0 would write no full snapshot.
        f"{STORE_CONF}rocksdb.changelogCheckpointing.enabled": "false",
        f"{OPTION_PREFIX}storage": "filesystem",
        f"{OPTION_PREFIX}checkpointsDir": source.checkpoints_dir if url == source.url else None,
    }
    stores = [
        _store(source, operator, number, partitions[operator.id], ids)
        for operator in source.operators
        for number in range(len(operator.stores))
    ]
    return {"root": join(_location(url), STATE), "conf": conf, "stores": stores}


def _store(
    source: Source, operator: StatefulOperator, number: int, partitions: int, ids: _Ids | None
) -> dict[str, Any]:
    store = operator.stores[number]
    return {
        "operator": operator.id,
        "name": store.name,
        "hasFamilies": has_families(operator),
        "prefixColumns": store.prefix_columns,
        "partitions": partitions,
        "schemas": [b64encode(content).decode() for content in _schemas(source, operator, store.name)],
        "lists": _lists(source, operator),
        "internal": list(_INTERNAL),
        "ids": [stores[number] for stores in ids[operator.id]] if ids and operator.id in ids else [],
    }


def _schemas(source: Source, operator: StatefulOperator, store: str) -> Iterator[bytes]:
    """Yield the content of the schema files; the newest comes last.

    As content they need no file system of Hadoop's.
    """
    checkpoint = source.checkpoint
    if not has_families(operator):
        below: list[tuple[str, ...]] = [(*StoreId(operator.id, 0, store).directories, "_metadata", "schema")]
    else:
        # The recorded URLs are those of the place where the query began.
        names = [operator.below_its_schemas(file) for file in operator.schema_files]
        if None in names or not names:
            raise CorruptCheckpointError(
                f"the metadata of operator {operator.id} ({operator.name}) names schema files outside of the "
                "operator's directory: "
                f"{', '.join(operator.schema_files) or 'none'}. {restore_from_backup(otherwise=None)}"
            )
        below = [(str(operator.id), SCHEMAS, name) for name in names if name is not None]
    for parts in below:
        path = checkpoint.path(STATE, *parts)
        with failing_to("read", checkpoint.files, path):
            yield checkpoint.files.read(path)


def _lists(source: Source, operator: StatefulOperator) -> list[str]:
    """Return the column families whose keys may have several values."""
    if operator.is_join:
        return [f"{side}-{name}" for side in ("left", "right") for name in _LISTS_OF_JOINS]
    kinds: dict[str, str] = {}
    # A variable that the query no longer has may still have rows.
    for _, description in source.checkpoint.operator_runs(operator.id, range(source.batch + 1)):
        kinds |= variable_kinds(description)
    return [name for name, kind in kinds.items() if kind == _LIST]


def _location(url: str) -> str:
    """Return a checkpoint location as Spark's file systems know it."""
    checkpoint = QueryCheckpoint(url)
    return checkpoint.url if checkpoint.files.scheme == "file" else url.rstrip("/")
