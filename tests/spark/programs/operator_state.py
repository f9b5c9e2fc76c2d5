"""A query whose `foreachBatch` function has operator state, and the plain computation of its result."""

import os

import pyarrow as pa

from spark_statestore.operator_state import ListStateDescriptor, MapStateDescriptor

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
    rated = [rating for batch in batches for number in sorted(batch) if (rating := change(rules, number))]
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
