"""What Spark notes of each stateful operator of a query: its name, its stores and their partitions.

Text like the logs: a line with the version, then a line of JSON. Version 1 is one file of an operator;
version 2 has one for each run of the query, with the places of schema files as full URLs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_statestore.errors import CorruptCheckpointError

__all__ = ["SCHEMAS", "OperatorStore", "StatefulOperator"]

SCHEMAS: Final = "_stateSchema"
"""Directory of an operator's schema files."""

_SCHEMA_FILES = "stateSchemaFilePaths"

# Far more partitions than a query can have.
_MOST: Final = 1 << 20

# Operators that Spark runs in one task, with the key columns that they have then: aggregations without a
# column to group by, of which a session has its start, and a limit, which has a column of nulls.
_SINGLE_WITH: Final = {
    "stateStoreSave": 0,
    "StatefulStreamlineAggregate": 0,
    "sessionWindowStateStoreSaveExec": 1,
    "globalLimit": 1,
}


@dataclass(frozen=True, slots=True)
class OperatorStore:
    """One store that an operator has in each of its partitions.

    Attributes
    ----------
    name
        ``default`` unless the operator has several, as joins do.
    prefix_columns
        Leading key columns that prefix scans use, 0 if there are none.
    partitions
        Partitions that the operator has.
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
        Its number in the query.
    name
        What Spark calls it, such as ``stateStoreSave`` or ``symmetricHashJoin``.
    stores
        Its stores.
    version
        Of the file, ``v1`` or ``v2``.
    node
        All that the file says.
    """

    id: int
    name: str
    stores: tuple[OperatorStore, ...]
    version: str
    node: Mapping[str, Any]

    @classmethod
    def decode(cls, data: bytes, where: str) -> StatefulOperator:
        """Read what Spark notes of an operator.

        Raises
        ------
        CorruptCheckpointError
            If it is no such file.
        """
        try:
            version, text = data.decode().split("\n", 1)
            node = json.loads(text)
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
                        f"{number!r:.40} is no number of an operator, of columns or of partitions"
                    )
            for name in (info["operatorName"], *(store.name for store in stores)):
                if not isinstance(name, str) or "/" in name:
                    raise ValueError(f"{name!r:.80} is no name")
            return cls(info["operatorId"], info["operatorName"], stores, version, node)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptCheckpointError(
                f"{where} does not describe a stateful operator: {error!r}. Copy it back from a backup; nothing was "
                "changed."
            ) from error

    def encode(self) -> bytes:
        """Counterpart of `decode`."""
        return f"{self.version}\n{json.dumps(self.node, separators=(',', ':'))}".encode()

    @property
    def partitions(self) -> int:
        """Partitions of the operator as Spark notes them. See `is_single` for those that have but one."""
        return self.stores[0].partitions

    @property
    def may_be_single(self) -> bool:
        """Whether it may be one of those that `is_single` tells."""
        return self.name in _SINGLE_WITH

    def is_single(self, key_schema: str) -> bool:
        """Whether it has one partition, whatever number Spark notes, as there is nothing to spread its rows by.

        Parameters
        ----------
        key_schema
            Schema of the keys of its state ``default``, as Spark's JSON.
        """
        return self.may_be_single and len(json.loads(key_schema)["fields"]) == _SINGLE_WITH[self.name]

    @property
    def properties(self) -> Mapping[str, Any]:
        """What the operator says of itself, such as a transformWithState's state variables; empty in version 1."""
        text = self.node.get("operatorPropertiesJson")
        return json.loads(text) if text else {}

    @property
    def schema_files(self) -> tuple[str, ...]:
        """URLs of the schema files of all stores; none in version 1."""
        return tuple(url for store in self.node["stateStoreInfo"] for url in store.get(_SCHEMA_FILES, ()))

    def below_its_schemas(self, url: str) -> str | None:
        """The path of a schema file below the operator's directory of those; None if it is not in that."""
        _, found, below = url.rpartition(f"/{self.id}/{SCHEMAS}/")
        return below if found else None

    def with_partitions(self, partitions: int) -> StatefulOperator:
        """The operator with another number of partitions."""
        nodes = [{**store, "numPartitions": partitions} for store in self.node["stateStoreInfo"]]
        stores = tuple(replace(store, partitions=partitions) for store in self.stores)
        return replace(self, stores=stores, node={**self.node, "stateStoreInfo": nodes})

    def relocated(self, state_url: str) -> StatefulOperator:
        """The operator with its schema files below another directory.

        Parameters
        ----------
        state_url
            URL of the directory that holds the directory of each operator.
        """

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
