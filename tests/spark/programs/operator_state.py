"""Runs a query whose `foreachBatch` function has operator state, and kills itself with SIGKILL if asked to.

The only argument is a JSON object: ``directory`` with the input and the checkpoint, and ``kill``, a point in the
course of a batch and the batch. What the query does, and the plain computation of it, serve the tests too.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa

from spark_statestore.state.operator import ListStateDescriptor, MapStateDescriptor, QueryOperatorState, query

RULES = MapStateDescriptor("rules", pa.string(), pa.int64())
RANGES = ListStateDescriptor("ranges", pa.struct([("first", pa.int64()), ("last", pa.int64())]))
RATED = ListStateDescriptor("rated", pa.list_(pa.int64()))
PADDING = ListStateDescriptor("padding", pa.binary())


def change(rules, number):
    """What an event does to the rules: set one, remove one, or nothing; what it does is up to its number."""
    rule = "abc"[number % 3]
    if number % 4 == 0:
        rules[rule] = number
        return None
    if number % 7 == 0:
        rules.pop(rule, None)
        return None
    return [number, rules.get(rule, -1)]


def process(store, numbers):
    """Apply events to the state. Nothing of it may be done twice, or left out, or be in another order."""
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
    # Too large to lie in the metadata.
    store.get_list_state(PADDING).update([b"%d" % max(numbers) * 20_000])


def answer(batches):
    """What the state must be after these batches of events."""
    rules = {}
    rated = [found for batch in batches for number in sorted(batch) if (found := change(rules, number))]
    ranges = [{"first": min(batch), "last": max(batch)} for batch in batches]
    return {"rules": rules, "rated": rated, "ranges": ranges}


def content(store):
    """What the state is."""
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
        # Files are taken in the order of their times.
        os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
        hidden.rename(directory / f"{number}.csv")


def start(spark, directory, checkpoint, function):
    """Start a query that takes a file in each batch, to the end of what there is."""
    events = spark.readStream.schema("number long").option("maxFilesPerTrigger", 1).csv(str(directory))
    writer = events.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def main():
    from tests.sessions import local_builder
    from tests.spark.counting import say

    asked = json.loads(sys.argv[1])
    directory = Path(asked["directory"])
    point, last = asked.get("kill") or (None, None)
    state = QueryOperatorState(str(directory / "checkpoint"), "events", num_retained=2)

    def killed_at(here, batch_id):
        if (here, batch_id) == (point, last):
            say("killed", (directory / "checkpoint" / "commits" / str(batch_id)).exists())
            os.killpg(0, signal.SIGKILL)

    encode, retain = query.encode_operators, QueryOperatorState._retain

    def encode_unless_killed(metadata, context):
        killed_at("in the checkpoint", metadata.checkpoint_id)
        return encode(metadata, context)

    def retain_unless_killed(self, earlier, name):
        killed_at("after the checkpoint", name.version)
        retain(self, earlier, name)

    query.encode_operators, QueryOperatorState._retain = encode_unless_killed, retain_unless_killed

    def function(batch, batch_id):
        numbers = [row.number for row in batch.collect()]
        with state.batch(batch_id) as store:
            process(store, numbers)
        say("batch", batch_id)

    spark = local_builder("operator-state", memory="512m").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    start(spark, directory / "input", directory / "checkpoint", function).awaitTermination()
    say("state", content(state.read()))
    say("batches", state.batches())
    spark.stop()
    say("stopped")
    sys.stdin.readline()


if __name__ == "__main__":
    main()
