"""Sinks with operator state in each of their partitions. Spark's Python workers import the module."""

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

from spark_statestore.operator_state import ListStateDescriptor, MapStateDescriptor, QueryOperatorState

SEEN = ListStateDescriptor("seen", pa.int64())
COUNTS = ListStateDescriptor("counts", pa.struct([("subtask", pa.int64()), ("rows", pa.int64())]))
BATCHES = MapStateDescriptor("batches", pa.string(), pa.int64())
PADDING = ListStateDescriptor("padding", pa.binary())


def process(store, numbers, subtask, parallelism):
    """Apply a partition's numbers to the state of its subtask: one state of each redistribution mode."""
    store.get_list_state(SEEN).add_all(numbers)
    counts = store.get_union_list_state(COUNTS)
    # After a change of the parallelism, each subtask has the counts of all and continues with some of them.
    own = sum(count["rows"] for count in counts.get() if count["subtask"] % parallelism == subtask)
    counts.update([{"subtask": subtask, "rows": own + len(numbers)}])
    batches = store.get_broadcast_state(BATCHES)
    batches.put("done", batches.get("done", 0) + 1)
    # In a file beside the metadata.
    store.get_list_state(PADDING).update([b"%d" % subtask * 30_000])


def content(location, batch=None):
    """Return the state of all subtasks."""
    store = QueryOperatorState(location, "sink").read(batch)
    return {
        "seen": sorted(store.get_list_state(SEEN).get()),
        "rows": sum(count["rows"] for count in store.get_union_list_state(COUNTS).get()),
        "batches": dict(store.get_broadcast_state(BATCHES).items()),
    }


def answer(batches):
    """Return the expected state after these batches."""
    numbers = sorted(number for batch in batches for number in batch)
    return {"seen": numbers, "rows": len(numbers), "batches": {"done": len(batches)}}


class Sink:
    """The function of a partition, run in a task; that of a batch and subtask may fail."""

    def __init__(self, location, parallelism, batch_id, fail=None):
        self.location = location
        self.parallelism = parallelism
        self.batch_id = batch_id
        self.fail = fail

    def write(self, numbers):
        subtask = TaskContext.get().partitionId()
        state = QueryOperatorState(
            self.location, "sink", subtask=subtask, parallelism=self.parallelism, num_retained=2
        )
        with state.batch(self.batch_id) as store:
            process(store, numbers, subtask, self.parallelism)
            if (self.batch_id, subtask) == self.fail:
                raise ZeroDivisionError("this subtask fails")

    def of_rows(self, rows):
        """Write a partition of `foreachPartition`."""
        self.write([row.number for row in rows])

    def of_frames(self, frames):
        """Write a partition of `mapInPandas`."""
        self.write([int(number) for frame in frames for number in frame["number"]])
        yield pd.DataFrame({"done": [True]})


class SinkSource(DataSource):
    """A Python data source whose tasks keep operator state, with the option ``parallelism``."""

    @classmethod
    def name(cls):
        return "partitioned-sink"

    def streamWriter(self, schema, overwrite):
        return SinkWriter(self.options)


class SinkWriter(DataSourceStreamWriter):
    """Its tasks read the batch id from Spark's local properties."""

    def __init__(self, options):
        self.location = options["checkpointLocation"]
        self.parallelism = int(options["parallelism"])

    def write(self, iterator):
        batch_id = int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))
        Sink(self.location, self.parallelism, batch_id).of_rows(iterator)
        return WriterCommitMessage()

    def commit(self, messages, batchId):
        assert len(messages) == self.parallelism

    def abort(self, messages, batchId):
        pass
