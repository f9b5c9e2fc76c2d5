"""Rows by partition in a temporary file."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from spark_statestore.rescaling.murmur3 import Partitions

# Rows per batch.
_BATCH_ROWS: Final = 65_536


class Spool:
    """Rows by partition in an unlinked temporary file, freed with its last reader.

    Parameters
    ----------
    schema
        Columns of the rows.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._file = tempfile.TemporaryFile(prefix="spark-statestore-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._tables = itertools.count()
        self._segments: defaultdict[int, list[_Segment]] = defaultdict(list)

    def add(self, state: str, rows: pa.Table, partitions: Partitions, count: int) -> None:
        """Add rows of a state, each to its partition of so many; their order is kept."""
        import numpy as np

        table = next(self._tables)
        begin = 0
        for batch in rows.to_batches(max_chunksize=_BATCH_ROWS):
            chosen = partitions[begin : begin + len(batch)]
            begin += len(batch)
            order = np.argsort(chosen, kind="stable")
            ordered = batch.take(pa.array(order))
            bounds = np.searchsorted(chosen[order], np.arange(count + 1))
            for partition in np.flatnonzero(np.diff(bounds)).tolist():
                start, end = int(bounds[partition]), int(bounds[partition + 1])
                self._write(partition, table, state, ordered.slice(start, end - start))

    def tables(self, partition: int) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of a partition: the name of a state, and those that were added together."""
        # Parts of one table are in order; parts of several may interleave.
        segments = sorted(self._segments[partition], key=attrgetter("table"))
        for (_, state), parts in itertools.groupby(segments, attrgetter("table", "state")):
            yield state, pa.Table.from_batches([self._read(segment) for segment in parts])

    def _write(self, partition: int, table: int, state: str, rows: pa.RecordBatch) -> None:
        message = rows.serialize()
        with self._lock:
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(message)
            self._segments[partition].append(_Segment(table, state, start, message.size))

    def _read(self, segment: _Segment) -> pa.RecordBatch:
        with self._lock:
            self._file.seek(segment.start)
            message = self._file.read(segment.size)
        return pa.ipc.read_record_batch(pa.py_buffer(message), self.schema)


class _Segment(NamedTuple):
    """Range of a batch of rows in the file, and the number of its table."""

    table: int
    state: str
    start: int
    size: int
