"""Event logs of real runs, trimmed by `tests/system/assess/trim.py`, and parts of them.

A count by key of 300,000 keys in 8 partitions, 41 batches of 20,000 rows, on three stores in one session.
The files ``progress.*`` have the progress of HDFSBacked's query, written by Spark's codecs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from spark_statestore.assess.event_log import Event, EventLog
from spark_statestore.assess.queries import Query, read_queries

DATA: Final = Path(__file__).parent / "data"
HDFS_LOG, ROCKSDB_LOG, OUR_LOG = (
    DATA / f"{name}.zstd" for name in ("hdfsbacked", "rocksdb", "spark-statestore")
)


def events(log: Path = HDFS_LOG) -> list[Event]:
    return list(EventLog(str(log)).events())


def progress(log: Path = HDFS_LOG) -> list[Event]:
    """Return the progress of each batch."""
    return [event["progress"] for event in events(log) if "progress" in event]


def query(log: Path = HDFS_LOG) -> Query:
    (only_query,) = read_queries(EventLog(str(log)))
    return only_query


def write(path: Path, lines: Iterable[Any]) -> Path:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path
