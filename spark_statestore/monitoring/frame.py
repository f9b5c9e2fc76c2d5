"""The progress of a query as a pandas frame, with a row for each batch and stateful operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_statestore.errors import MissingPackageError

if TYPE_CHECKING:
    from pandas import DataFrame

DURATION: Final = "durationMs."
"""Prefix of the columns with the durations of a batch."""

_OPERATOR: Final = (
    "numRowsTotal",
    "numRowsUpdated",
    "numRowsRemoved",
    "numRowsDroppedByWatermark",
    "memoryUsedBytes",
    "allUpdatesTimeMs",
    "allRemovalsTimeMs",
    "commitTimeMs",
    "numShufflePartitions",
    "numStateStoreInstances",
)
_DURATIONS: Final = (
    "triggerExecution",
    "latestOffset",
    "getBatch",
    "queryPlanning",
    "walCommit",
    "addBatch",
    "commitOffsets",
)
_COLUMNS: Final = (
    "batchId",
    "timestamp",
    "operatorId",
    "operatorName",
    *_OPERATOR,
    *(DURATION + name for name in _DURATIONS),
)


def progress(query: Any) -> DataFrame:
    """Return the recent batches of a query as a frame, with a row for each batch and stateful operator.

    These are the batches of ``query.recentProgress``: of this run, at most
    ``spark.sql.streaming.numRecentProgressUpdates``.

    Parameters
    ----------
    query
        A ``StreamingQuery``, of a classic session or of Spark Connect. It may have ended.

    Returns
    -------
    pandas.DataFrame
        Columns by the names of Spark's ``StreamingQueryProgress``: ``batchId``, ``timestamp``,
        ``operatorId``, ``operatorName``, the operator's figures such as ``numRowsTotal`` and
        ``memoryUsedBytes``, its custom metrics, and the durations of the batch as
        ``durationMs.triggerExecution``, ``durationMs.addBatch`` and others. A figure that a batch or an
        operator does not have is missing (``<NA>``).

    Raises
    ------
    MissingPackageError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(f"progress needs {error.name}: pip install pandas") from error
    rows = [row for batch in query.recentProgress for row in _rows(batch)]
    names = dict.fromkeys([*_COLUMNS, *(name for row in rows for name in row)])
    # Custom metrics precede the durations, which are the batch's.
    ordered = sorted(names, key=lambda name: name.startswith(DURATION))
    frame = pd.DataFrame(rows, columns=ordered)
    numbers = dict.fromkeys(frame.columns.difference(["timestamp", "operatorName"]), "Int64")
    frame = frame.astype(numbers | {"operatorName": "object"})
    frame["timestamp"] = pd.to_datetime(frame["timestamp"], utc=True)
    return frame


def _rows(batch: Any) -> list[dict[str, Any]]:
    durations = {DURATION + name: value for name, value in batch["durationMs"].items()}
    return [
        {"batchId": batch["batchId"], "timestamp": batch["timestamp"]}
        # Spark lists the operators by their ids.
        | {"operatorId": number, "operatorName": operator["operatorName"]}
        | {name: operator[name] for name in _OPERATOR}
        | dict(operator["customMetrics"])
        | durations
        for number, operator in enumerate(batch["stateOperators"])
    ]
