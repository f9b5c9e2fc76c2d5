"""Queries of an event log: their batches, stateful operators, and the times of their tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_statestore.assess import event_log
from spark_statestore.assess.event_log import Event, EventLog
from spark_statestore.errors import EventLogError

HDFS, ROCKSDB, OURS, UNKNOWN = "HDFSBacked", "RocksDB", "spark-statestore", "unknown"
CHANGELOG: Final = "RocksDB, changelog"

_PROVIDERS: Final = {
    "HDFSBackedStateStoreProvider": HDFS,
    "RocksDBStateStoreProvider": ROCKSDB,
    "CheckpointStateStoreProvider": OURS,
}
_METRICS: Final = {"loadedMapCache": HDFS, "rocksdb": ROCKSDB, "checkpointCommit": OURS}
"""Providers by the beginning of their custom metrics."""

_WRITTEN: Final = ("checkpointBytesWritten", "rocksdbBytesCopied")
"""Custom metrics with the bytes that commits wrote."""

STATE_STORE: Final = "spark.sql.streaming.stateStore."
_PROVIDER_KEY: Final = f"{STATE_STORE}providerClass"
_CHANGELOG_KEY: Final = f"{STATE_STORE}rocksdb.changelogCheckpointing.enabled"

# In the plan of each stateful operator: the directory of its state.
_CHECKPOINT: Final = re.compile(r"checkpoint = (\S+)/state,")

# SQL metrics of a stateful operator's task.
_UPDATE, _REMOVE, _COMMIT = "time to update", "time to remove", "time to commit changes"
_PYTHON: Final = "time to run Python workers"
TASK_METRICS: Final = frozenset({_UPDATE, _REMOVE, _COMMIT, _PYTHON})


@dataclass(slots=True)
class OperatorBatch:
    """A stateful operator in one batch; its times are sums over partitions, in milliseconds."""

    name: str
    rows: int
    updated: int
    removed: int
    memory_bytes: int
    update_ms: int
    removal_ms: int
    commit_ms: int
    partitions: int
    stores: int
    custom: Mapping[str, int]

    @property
    def task_ms(self) -> int:
        """Time of tasks in the metrics."""
        return self.update_ms + self.removal_ms + self.commit_ms

    @property
    def bytes_written(self) -> int | None:
        """Bytes that commits wrote, None if the provider does not report them."""
        return next((self.custom[name] for name in _WRITTEN if name in self.custom), None)


@dataclass(slots=True)
class TaskTimes:
    """Tasks of a batch that have state stores; times are sums over them, in milliseconds.

    Attributes
    ----------
    tasks
        Number of tasks.
    run_ms
        Time that they ran, without their deserialisation and scheduling.
    duration_ms
        Time from launch to end.
    update_ms, removal_ms, commit_ms
        Spark's metrics of their operators. The update includes what the operator reads: the shuffle and the
        operators below it.
    python_ms
        Time that Python workers ran in all tasks of the batch.
    first_ms, last_ms
        Launch of the first and end of the last one.
    """

    tasks: int = 0
    run_ms: int = 0
    duration_ms: int = 0
    update_ms: int = 0
    removal_ms: int = 0
    commit_ms: int = 0
    python_ms: int = 0
    first_ms: int = 0
    last_ms: int = 0

    @property
    def opening_ms(self) -> int:
        """Time outside of update, removal and commit: opening the stores, and the start of the task."""
        return max(0, self.run_ms - self.update_ms - self.removal_ms - self.commit_ms)

    @property
    def parallelism(self) -> float:
        """Mean number of tasks at a time."""
        return max(1.0, self.duration_ms / max(1, self.last_ms - self.first_ms))


@dataclass(slots=True)
class Batch:
    """A batch with data: durations by phase in milliseconds, and its stateful operators."""

    number: int
    timestamp: str
    durations: Mapping[str, int]
    input_rows: int
    operators: list[OperatorBatch]
    tasks: TaskTimes | None = None

    @property
    def milliseconds(self) -> int:
        """Time of the batch from trigger to end."""
        return self.durations.get("triggerExecution", sum(self.durations.values()))

    @property
    def stores(self) -> int:
        """Number of state stores of all operators."""
        return sum(operator.stores for operator in self.operators)


@dataclass(slots=True)
class Query:
    """A run of a query, as one event log or file of progress has it.

    Attributes
    ----------
    provider
        `HDFS`, `ROCKSDB`, `CHANGELOG`, `OURS` or `UNKNOWN`.
    cores
        Task slots of the application, None if the log does not tell.
    checkpoint
        URL of the checkpoint location, None if the log does not tell.
    """

    log: str
    id: str
    run_id: str
    name: str | None
    provider: str = UNKNOWN
    cores: int | None = None
    checkpoint: str | None = None
    batches: list[Batch] = field(default_factory=list)

    @property
    def is_stateful(self) -> bool:
        """True if a batch has stateful operators."""
        return any(batch.operators for batch in self.batches)


def read_queries(log: EventLog) -> list[Query]:
    """Return the queries of an event log or a file of progress, in the order of their starts.

    Raises
    ------
    EventLogError
        If it cannot be read, or has no streaming query.
    """
    reader = _Reader(log.url)
    for event in log.events():
        reader.read(event)
    queries = reader.queries()
    if not queries:
        raise EventLogError(
            f"{log.url} has no streaming query: it is the log of another application, or of one whose "
            "queries had not ended a batch."
        )
    return queries


class _Reader:
    """Collects queries from events in the order of a log."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._queries: dict[str, Query] = {}
        self._batch_of_stage: dict[int, tuple[str, int]] = {}
        self._tasks: dict[tuple[str, int], TaskTimes] = {}
        self._settings: dict[str, str] = {}
        self._query_settings: dict[str, dict[str, str]] = {}
        self._cores: dict[str, int] = {}
        self._most_cores = 0
        self._handlers = {
            event_log.STARTED: self._started,
            event_log.PROGRESS: self._progress,
            event_log.TASK: self._task,
            event_log.JOB: self._job,
            event_log.EXECUTION: self._execution,
            event_log.ENVIRONMENT: self._environment,
            event_log.EXECUTOR: self._executor,
            event_log.EXECUTOR_LOST: self._executor_lost,
        }

    def read(self, event: Event) -> None:
        try:
            self._handlers[event["Event"]](event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EventLogError(
                f"{self._url} has an event {event['Event']} without what Spark 3.3 and later write in it: "
                f"{type(error).__name__}: {error}."
            ) from error

    def queries(self) -> list[Query]:
        """Return the queries that have a batch with data."""
        for query in self._queries.values():
            query.cores = self._most_cores or None
            settings = self._settings | self._query_settings.get(query.run_id, {})
            query.provider = _provider(query, settings)
            for batch in query.batches:
                batch.tasks = self._tasks.get((query.run_id, batch.number))
        return [query for query in self._queries.values() if query.batches]

    def _started(self, event: Event) -> None:
        self._query(event)

    def _query(self, event: Event) -> Query:
        run = str(event["runId"])
        if run not in self._queries:
            self._queries[run] = Query(self._url, str(event["id"]), run, event.get("name"))
        return self._queries[run]

    def _progress(self, event: Event) -> None:
        progress = event["progress"]
        durations = {name: int(value) for name, value in progress["durationMs"].items()}
        query = self._query(progress)
        # Spark reports progress of idle queries, too.
        if "addBatch" not in durations:
            return
        query.batches.append(
            Batch(
                int(progress["batchId"]),
                str(progress["timestamp"]),
                durations,
                sum(int(source.get("numInputRows") or 0) for source in progress["sources"]),
                [_operator(operator) for operator in progress["stateOperators"]],
            )
        )

    def _job(self, event: Event) -> None:
        properties = event.get("Properties") or {}
        if "streaming.sql.batchId" not in properties or "sql.streaming.queryId" not in properties:
            return
        batch = int(properties["streaming.sql.batchId"])
        # Spark names the run as the group of its jobs.
        run = str(properties.get("spark.jobGroup.id"))
        self._query_settings[run] = {
            key: value for key, value in properties.items() if key.startswith(STATE_STORE)
        }
        for stage in event["Stage IDs"]:
            self._batch_of_stage[int(stage)] = run, batch

    def _task(self, event: Event) -> None:
        batch = self._batch_of_stage.get(int(event["Stage ID"]))
        metrics = event.get("Task Metrics")
        if batch is None or not metrics or event["Task End Reason"].get("Reason") != "Success":
            return
        values: dict[str, int] = {}
        for accumulable in event["Task Info"]["Accumulables"]:
            name = accumulable.get("Name")
            if name in TASK_METRICS:
                values[name] = values.get(name, 0) + int(accumulable.get("Update", 0))
        times = self._tasks.setdefault(batch, TaskTimes())
        times.python_ms += values.get(_PYTHON, 0)
        if _COMMIT not in values:
            return
        launch, finish = int(event["Task Info"]["Launch Time"]), int(event["Task Info"]["Finish Time"])
        times.first_ms = min(times.first_ms, launch) if times.tasks else launch
        times.last_ms = max(times.last_ms, finish)
        times.tasks += 1
        times.duration_ms += finish - launch
        times.run_ms += int(metrics["Executor Run Time"])
        times.update_ms += values.get(_UPDATE, 0)
        times.removal_ms += values.get(_REMOVE, 0)
        times.commit_ms += values[_COMMIT]

    def _execution(self, event: Event) -> None:
        description = str(event.get("description") or "")
        for run, query in self._queries.items():
            if query.checkpoint is None and f"runId = {run}" in description:
                match = _CHECKPOINT.search(str(event.get("physicalPlanDescription") or ""))
                query.checkpoint = match and match[1]

    def _environment(self, event: Event) -> None:
        properties = event["Spark Properties"]
        pairs = properties.items() if isinstance(properties, dict) else properties
        self._settings |= {key: value for key, value in pairs if key.startswith(STATE_STORE)}

    def _executor(self, event: Event) -> None:
        self._cores[str(event["Executor ID"])] = int(event["Executor Info"]["Total Cores"])
        self._most_cores = max(self._most_cores, sum(self._cores.values()))

    def _executor_lost(self, event: Event) -> None:
        self._cores.pop(str(event["Executor ID"]), None)


def _operator(reported: Mapping[str, Any]) -> OperatorBatch:
    custom = reported.get("customMetrics") or {}
    partitions = int(reported.get("numShufflePartitions", 0))
    return OperatorBatch(
        # Spark 3.1 and earlier do not name operators.
        str(reported.get("operatorName") or "stateful operator"),
        int(reported["numRowsTotal"]),
        int(reported["numRowsUpdated"]),
        int(reported.get("numRowsRemoved", 0)),
        int(reported["memoryUsedBytes"]),
        int(reported.get("allUpdatesTimeMs", 0)),
        int(reported.get("allRemovalsTimeMs", 0)),
        int(reported.get("commitTimeMs", 0)),
        partitions,
        int(reported.get("numStateStoreInstances", partitions)),
        {str(name): int(value) for name, value in custom.items()},
    )


def _provider(query: Query, settings: Mapping[str, str]) -> str:
    """Return the provider by its metrics, which a checkpoint's own provider reports, else by settings."""
    names = {name for batch in query.batches for operator in batch.operators for name in operator.custom}
    provider = UNKNOWN
    for beginning, candidate in _METRICS.items():
        if any(name.startswith(beginning) for name in names):
            provider = candidate
    if provider == UNKNOWN and _PROVIDER_KEY in settings:
        provider = _PROVIDERS.get(settings[_PROVIDER_KEY].rpartition(".")[2], UNKNOWN)
    if provider == ROCKSDB and settings.get(_CHANGELOG_KEY, "").lower() == "true":
        return CHANGELOG
    return provider
