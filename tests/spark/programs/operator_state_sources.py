"""Python data sources that keep operator state: a sink, and a source whose offsets are mere numbers.

Both fail if a file in their directory ``faults`` demands it: its name is a point and a number, its content
the fault to inject once, an error or a kill.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamWriter,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)

from spark_statestore.operator_state import ListStateDescriptor, MapStateDescriptor, QueryOperatorState
from tests.spark.programs.operator_state import process

POSITIONS = MapStateDescriptor("positions", pa.string(), pa.int64())
TAKEN = ListStateDescriptor("taken", pa.int64())
AT_ONCE = 4


def fail_if_asked(faults, point, number):
    """Inject the requested fault, once."""
    path = Path(faults, f"{point} {number}")
    if path.exists():
        how = path.read_text()
        path.unlink()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ZeroDivisionError("fails as asked for")


@dataclass
class Numbers(WriterCommitMessage):
    """Numbers that a task received."""

    numbers: list[int]


class Sink(DataSource):
    """Applies the numbers of each batch to operator state, when the batch is committed."""

    @classmethod
    def name(cls):
        return "operator-state-sink"

    def streamWriter(self, schema, overwrite):
        return SinkWriter(self.options)


class SinkWriter(DataSourceStreamWriter):
    """Its commits run in a Python worker, a new object for each."""

    def __init__(self, options):
        self.state = QueryOperatorState(options["checkpointLocation"], "sink")
        self.faults = options["faults"]

    def write(self, iterator):
        return Numbers([row.number for row in iterator])

    def commit(self, messages, batchId):
        with self.state.batch(batchId) as store:
            process(store, [number for message in messages for number in message.numbers])
            fail_if_asked(self.faults, "in the block", batchId)
        fail_if_asked(self.faults, "after the block", batchId)

    def abort(self, messages, batchId):
        pass


class Source(DataSource):
    """Reads the lines of growing files."""

    @classmethod
    def name(cls):
        return "operator-state-source"

    def schema(self):
        return "line string"

    def simpleStreamReader(self, schema):
        return SourceReader(self.options)


class SourceReader(SimpleDataSourceStreamReader):
    """Numbers its offsets; the state of a number has the position in each file up to which it was read."""

    def __init__(self, options):
        self.state = QueryOperatorState(options["checkpointLocation"], "source")
        self.directory = Path(options["path"])
        self.faults = options["faults"]

    def initialOffset(self):
        return {"number": 0}

    def read(self, start):
        number = start["number"] + 1
        if not list(self._lines(self._positions(start), {})):
            return iter([]), start
        with self.state.batch(number) as store:
            positions = store.get_broadcast_state(POSITIONS)
            lines = list(self._lines(dict(positions.items()), {}))[:AT_ONCE]
            for file, _ in lines:
                positions.put(file, positions.get(file, 0) + 1)
            store.get_list_state(TAKEN).add(len(lines))
            fail_if_asked(self.faults, "in the block", number)
        fail_if_asked(self.faults, "after the block", number)
        return iter([(line,) for _, line in lines]), {"number": number}

    def readBetweenOffsets(self, start, end):
        yield from ((line,) for _, line in self._lines(self._positions(start), self._positions(end)))

    def _positions(self, offset):
        if offset["number"] == 0:
            return {}
        return dict(self.state.read(offset["number"]).get_broadcast_state(POSITIONS).items())

    def _lines(self, start, end):
        """Return files and lines between positions, or to the end of the files without end positions."""
        for path in sorted(self.directory.iterdir()):
            lines = path.read_text().splitlines()
            last = end.get(path.name, 0) if end else len(lines)
            yield from ((path.name, line) for line in lines[start.get(path.name, 0) : last])
