"""Test program: a query whose `foreachBatch` function has operator state, with an optional SIGKILL to itself.

The only argument is a JSON object: ``directory`` with the input and the checkpoint, and ``kill``, a point in
a batch and the number of the batch. Tests share its update function, and the plain computation of the result.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa

from spark_statestore.operator_state import (
    ListStateDescriptor,
    MapStateDescriptor,
    QueryOperatorState,
    state_directory,
)

RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
RANGES = ListStateDescriptor("ranges", pa.struct([("first", pa.int64()), ("last", pa.int64())]))
RATED = ListStateDescriptor("rated", pa.list_(pa.int64()))
PADDING = ListStateDescriptor("padding", pa.binary())


def change(rules, number):
    """Apply an event to the rules: set one, remove one, or nothing, depending on its number."""
    rule = "abc"[number % 3]
    if number % 4 == 0:
        rules[rule] = number
        return None
    if number % 7 == 0:
        rules.pop(rule, None)
        return None
    return [number, rules.get(rule, -1)]


def process(store, numbers):
    """Apply events to the state. The result shows any repeated, lost or reordered event."""
    rules = store.get_broadcast_state(RULES)
    table = dict(rules.items())
    for number in sorted(numbers):
        rated = change(table, number)
        if rated is not None:
            store.get_list_state(RATED).add(rated)
    for rule in rules.immutable_entries.keys() - table.keys():
        rules.remove(rule)
    rules.put_all(table)
    store.get_list_state(RANGES).add({"first": min(numbers), "last": max(numbers)})
    # Too large to be inside the metadata.
    store.get_list_state(PADDING).update([b"%d" % max(numbers) * 20_000])


def answer(batches):
    """Return the expected state after these batches of events."""
    rules = {}
    rated = [found for batch in batches for number in sorted(batch) if (found := change(rules, number))]
    ranges = [{"first": min(batch), "last": max(batch)} for batch in batches]
    return {"rules": rules, "rated": rated, "ranges": ranges}


def content(store):
    """Return the content of the state."""
    return {
        "rules": dict(store.get_broadcast_state(RULES).items()),
        "rated": store.get_list_state(RATED).get(),
        "ranges": store.get_list_state(RANGES).get(),
    }


def write_batches(directory, batches, first=0):
    """Write a file for each batch of events."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, first):
        hidden = directory / f".{number}.csv"
        hidden.write_text("".join(f"{event}\n" for event in batch))
        # Files are read in the order of their modification times.
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(directory / f"{number}.csv")


def start(spark, directory, checkpoint, function):
    """Start a query that reads one file in each batch, to the end of the available input."""
    events = spark.readStream.schema("number long").option("maxFilesPerTrigger", 1).csv(str(directory))
    writer = events.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def main():
    from tests.spark.counting import report
    from tests.support.sessions import local_builder

    asked = json.loads(sys.argv[1])
    directory = Path(asked["directory"])
    point, last = asked.get("kill") or (None, None)
    state = QueryOperatorState(str(directory / "checkpoint"), "events", num_retained=2)

    def killed_at(here, batch_id):
        if (here, batch_id) == (point, last):
            report("killed", (directory / "checkpoint" / "commits" / str(batch_id)).exists())
            os.killpg(0, signal.SIGKILL)

    encode, retain = state_directory.encode_operators, QueryOperatorState._retain

    def encode_unless_killed(metadata, context):
        killed_at("in the checkpoint", metadata.checkpoint_id)
        return encode(metadata, context)

    def retain_unless_killed(self, found, part):
        killed_at("after the checkpoint", part.batch)
        retain(self, found, part)

    state_directory.encode_operators = encode_unless_killed
    QueryOperatorState._retain = retain_unless_killed

    def function(batch, batch_id):
        numbers = [row.number for row in batch.collect()]
        with state.batch(batch_id) as store:
            process(store, numbers)
        report("batch", batch_id)

    spark = local_builder("operator-state", memory="512m").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    start(spark, directory / "input", directory / "checkpoint", function).awaitTermination()
    report("state", content(state.read()))
    report("batches", state.batches())
    spark.stop()
    report("stopped")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
