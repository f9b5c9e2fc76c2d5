"""Spark's operator metadata: name, stores and partitions of each stateful operator.

It is text like the logs: a line with the version, then a line of JSON. Version 1 has one file per operator;
version 2 has one per run of the query, with the URLs of schema files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_statestore.errors import CorruptCheckpointError, restore_from_backup
from spark_statestore.formats.metadata import parse_json

SCHEMAS: Final = "_stateSchema"
"""Directory of an operator's schema files."""

JOIN: Final = "symmetricHashJoin"
"""Name of a join of two streams."""

_SCHEMA_FILES = "stateSchemaFilePaths"

# Upper bound for a plausibility check, far above what a query can have.
_MOST: Final = 1 << 20

# Operators that Spark runs in one task, with their number of key columns in that case: aggregations without
# grouping columns (those by session have its start), and a limit, which has a column of nulls.
_SINGLE_WITH: Final = {
    "stateStoreSave": 0,
    "StatefulStreamlineAggregate": 0,
    "sessionWindowStateStoreSaveExec": 1,
    "globalLimit": 1,
}


@dataclass(frozen=True, slots=True)
class OperatorStore:
    """A state store of an operator; there is one in each partition.

    Attributes
    ----------
    name
        ``default`` unless the operator has several, as joins do.
    prefix_columns
        Number of leading key columns for prefix scans; 0 if there are none.
    partitions
        Number of partitions of the operator.
    """

    name: str
    prefix_columns: int
    partitions: int


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """A stateful operator of a query.

    Attributes
    ----------
    id
        Number in the query.
    name
        Spark's name, such as ``stateStoreSave`` or ``symmetricHashJoin``.
    stores
        Stores.
    version
        Version of the metadata file, ``v1`` or ``v2``.
    node
        JSON of the metadata file.
    """

    id: int
    name: str
    stores: tuple[OperatorStore, ...]
    version: str
    node: Mapping[str, Any]

    @classmethod
    def decode(cls, data: bytes, where: str) -> StatefulOperator:
        """Parse a file of operator metadata."""
        try:
            version, text = data.decode().split("\n", 1)
            node = parse_json(text)
            info = node["operatorInfo"]
            stores = tuple(
                OperatorStore(store["storeName"], store["numColsPrefixKey"], store["numPartitions"])
                for store in node["stateStoreInfo"]
            )
            for number in (
                info["operatorId"],
                *(n for s in stores for n in (s.prefix_columns, s.partitions)),
            ):
                if type(number) is not int or not 0 <= number <= _MOST:
                    raise ValueError(
                        f"{number!r:.40} is not a number of an operator, of columns or of partitions"
                    )
            for name in (info["operatorName"], *(store.name for store in stores)):
                if not isinstance(name, str) or "/" in name:
                    raise ValueError(f"{name!r:.80} is not a name")
            return cls(info["operatorId"], info["operatorName"], stores, version, node)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(
                f"{where} does not describe a stateful operator: {error!r}. "
                f"{restore_from_backup(otherwise=None)}"
            ) from error

    def encode(self) -> bytes:
        """Counterpart of `decode`."""
        return f"{self.version}\n{json.dumps(self.node, separators=(',', ':'))}".encode()

    @property
    def partitions(self) -> int:
        """Number of partitions in Spark's metadata; see `is_single` for operators that run in one."""
        return self.stores[0].partitions

    @property
    def is_join(self) -> bool:
        """True for a join of two streams."""
        return self.name == JOIN

    @property
    def may_be_single(self) -> bool:
        """True if `is_single` may be true for this kind of operator."""
        return self.name in _SINGLE_WITH

    def is_single(self, key_schema: str) -> bool:
        """Return True if the operator runs in one partition regardless of its metadata.

        It has no grouping columns then. `key_schema` is that of the column family ``default``.
        """
        return self.may_be_single and len(parse_json(key_schema)["fields"]) == _SINGLE_WITH[self.name]

    @property
    def properties(self) -> Mapping[str, Any]:
        """Properties of the operator, such as the state variables of transformWithState.

        They are empty in version 1.
        """
        text = self.node.get("operatorPropertiesJson")
        return parse_json(text) if text else {}

    @property
    def schema_files(self) -> tuple[str, ...]:
        """URLs of the schema files of all stores; none in version 1."""
        return tuple(url for store in self.node["stateStoreInfo"] for url in store.get(_SCHEMA_FILES, ()))

    def below_its_schemas(self, url: str) -> str | None:
        """Return a schema file's path relative to the operator's schema directory.

        Return None if it is not in it.
        """
        _, separator, below = url.rpartition(f"/{self.id}/{SCHEMAS}/")
        return below if separator else None

    def with_partitions(self, partitions: int) -> StatefulOperator:
        """Return the operator with another number of partitions."""
        nodes = [{**store, "numPartitions": partitions} for store in self.node["stateStoreInfo"]]
        stores = tuple(replace(store, partitions=partitions) for store in self.stores)
        return replace(self, stores=stores, node={**self.node, "stateStoreInfo": nodes})

    def relocated(self, state_url: str) -> StatefulOperator:
        """Return the operator with its schema files below another state directory."""

        def moved(url: str) -> str:
            below = self.below_its_schemas(url)
            return url if below is None else f"{state_url.rstrip('/')}/{self.id}/{SCHEMAS}/{below}"

        nodes = [
            {**store, _SCHEMA_FILES: [moved(url) for url in store[_SCHEMA_FILES]]}
            if _SCHEMA_FILES in store
            else store
            for store in self.node["stateStoreInfo"]
        ]
        return replace(self, node={**self.node, "stateStoreInfo": nodes})
