"""Runs of the Kafka queries in processes of their own, and their checkpoints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from spark_statestore import PROVIDER_CLASS
from spark_statestore.query import QueryCheckpoint
from spark_statestore.query.query_checkpoint import COMMITS
from tests.spark.counting import Program, wait_until
from tests.system.kafka.queries import QUERIES, Topics

_FEW = 150
"""Events of a batch while a query is disturbed, so that it has many batches."""

_MANY = 1000


def records_read(checkpoint: QueryCheckpoint, topics: Topics, batch: int) -> int:
    """Return the number of records of the events' topic that a query has read up to a batch."""
    (offsets,) = checkpoint.source_offsets(checkpoint.offsets(batch)).values()
    return sum(json.loads(offsets)[topics.events].values())


@dataclass(frozen=True)
class Runs:
    """The queries on their topics, with a checkpoint each below a directory.

    Their first batch is with a provider; `options` are settings of Kafka's clients.
    """

    topics: Topics
    jars: str
    directory: Path
    provider: str = PROVIDER_CLASS
    options: Mapping[str, str] = field(default_factory=dict)

    def elsewhere(self, directory: Path, topics: Topics | None = None) -> Runs:
        """Return runs from other checkpoints, by default to the same topics."""
        return replace(self, directory=directory, topics=topics or self.topics)

    @property
    def checkpoints(self) -> dict[str, str]:
        return {name: str(self.directory / name) for name in QUERIES}

    def committed(self, name: str) -> int:
        """Return the newest committed batch of a query, or -1."""
        return max(QueryCheckpoint(self.checkpoints[name]).logged(COMMITS), default=-1)

    def read(self, name: str, batch: int) -> int:
        return records_read(QueryCheckpoint(self.checkpoints[name]), self.topics, batch)

    def wait_for_batches(self, more: int) -> None:
        """Wait until each query has committed a number of batches since the call."""
        before = {name: self.committed(name) for name in QUERIES}
        assert wait_until(
            lambda: all(self.committed(name) >= batch + more for name, batch in before.items()), 120
        ), {name: (batch, self.committed(name)) for name, batch in before.items()}

    @contextlib.contextmanager
    def running(self) -> Iterator[Program]:
        """Run the queries, and kill their process with SIGKILL."""
        with self._program(limit=_FEW, end=False) as program:
            program.next("running")
            yield program

    def finish(self) -> None:
        """Run the queries to the end of the topic, and end all sessions."""
        with self._program(limit=_MANY, end=True) as program:
            program.next("ended")
            program.end()

    def _program(self, *, limit: int, end: bool) -> Program:
        return Program(
            "kafka_queries",
            topics=self.topics.as_json(),
            checkpoints=self.checkpoints,
            provider=self.provider,
            limit=limit,
            options=dict(self.options),
            jars=self.jars,
            end=end,
        )
