"""Keep operator state in foreachBatch, kill the driver within batches, and still count each order once.

The events of a stream are new limits and orders. A broadcast state has the limit of each customer, one list
state the orders above it, another one the processed ranges of events. The driver is killed with SIGKILL
twice: before a batch's state was checkpointed, and when it was, but Spark had not committed the batch.

    python examples/operator_state.py
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_statestore.operator_state import ListStateDescriptor, MapStateDescriptor, QueryOperatorState

LIMITS = MapStateDescriptor("limits", pa.string(), pa.int64())
ABOVE = ListStateDescriptor("above", pa.int64())
TAKEN = ListStateDescriptor("taken", pa.struct([("first", pa.int64()), ("last", pa.int64())]))

# Number, kind, customer and amount of each event; seven batches of six.
EVENTS = [(n, "order" if n % 4 else "limit", ("ann", "bob", "eve")[n % 3], n * 37 % 100) for n in range(42)]
BATCHES = [EVENTS[first : first + 6] for first in range(0, len(EVENTS), 6)]

BEFORE, AFTER = "before the state's checkpoint", "after the state's checkpoint, before Spark's commit"
KILLS = [(2, BEFORE), (4, AFTER)]


def drive(work: Path, kill: str) -> None:
    """Run the driver on the existing input; at the point named by `kill`, wait to be killed."""
    # The same location as the query's. Operator state needs no settings of the session.
    state = QueryOperatorState(str(work / "checkpoint"), "orders")

    def reach(point: str) -> None:
        print(point, flush=True)
        if point == kill:
            time.sleep(60)

    def process(batch: DataFrame, batch_id: int) -> None:
        events = batch.orderBy("number").collect()
        with state.batch(batch_id) as store:
            limits, above = store.get_broadcast_state(LIMITS), store.get_list_state(ABOVE)
            for event in events:
                if event.kind == "limit":
                    limits.put(event.customer, event.amount)
                elif event.amount > limits.get(event.customer, 0):
                    above.add(event.number)
            store.get_list_state(TAKEN).add({"first": events[0].number, "last": events[-1].number})
            reach(f"{batch_id} {BEFORE}")
        reach(f"{batch_id} {AFTER}")

    tmp = work / "tmp"
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    # The files that a killed driver leaves are removed with the work directory.
    builder = builder.config("spark.local.dir", str(tmp)).config("spark.sql.warehouse.dir", str(tmp))
    spark = builder.config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={tmp}"').getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    events = spark.readStream.schema("number long, kind string, customer string, amount long")
    query = events.option("maxFilesPerTrigger", 1).csv(str(work / "input")).writeStream.foreachBatch(process)
    query.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
    spark.streams.active[0].awaitTermination()
    spark.stop()


def run_driver(work: Path, number: int, kill: tuple[int, str] | None) -> None:
    """Run a driver to its end, or until it is killed, and print the outcome."""
    until = f"{kill[0]} {kill[1]}" if kill else ""
    batches = []
    with subprocess.Popen(
        [sys.executable, __file__, str(work), until],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(work / "tmp")},
        start_new_session=True,
    ) as driver:
        for line in driver.stdout:
            batch, _, point = line.strip().partition(" ")
            if line.strip() == until:
                # The JVM is in the driver's process group.
                os.killpg(driver.pid, signal.SIGKILL)
                assert not (work / "checkpoint" / "commits" / batch).exists()
                break
            if point == AFTER:
                batches.append(batch)
    assert driver.returncode == (-signal.SIGKILL if kill else 0)
    end = f"killed in batch {kill[0]}, {kill[1]}" if kill else "ended"
    print(f"driver {number}: batches {', '.join(batches)}; {end}", flush=True)


def answer() -> tuple[dict[str, int], list[int]]:
    """Compute the limits, and the orders above them, in one pass over the events."""
    limits, above = {}, []
    for number, kind, customer, amount in EVENTS:
        if kind == "limit":
            limits[customer] = amount
        elif amount > limits.get(customer, 0):
            above.append(number)
    return limits, above


def main(work: Path) -> None:
    (work / "input").mkdir()
    (work / "tmp").mkdir()
    for number, batch in enumerate(BATCHES):
        file = work / "input" / f"{number}.csv"
        file.write_text("".join(",".join(map(str, event)) + "\n" for event in batch))
        os.utime(file, (number, number))  # the order in which they are read

    for number, kill in enumerate([*KILLS, None], 1):
        run_driver(work, number, kill)

    store = QueryOperatorState(str(work / "checkpoint"), "orders").read()
    limits, above = dict(store.get_broadcast_state(LIMITS).items()), store.get_list_state(ABOVE).get()
    event_numbers = [
        n for part in store.get_list_state(TAKEN).get() for n in range(part["first"], part["last"] + 1)
    ]
    print("limits:", ", ".join(f"{customer} {limits[customer]}" for customer in sorted(limits)))
    print("orders above the limit:", len(above))
    print(
        f"events taken: {len(event_numbers)}, of them twice: {len(event_numbers) - len(set(event_numbers))}"
    )
    if event_numbers != [number for number, *_ in EVENTS] or (limits, above) != answer():
        sys.exit(f"operator state: {limits}, {above}, {event_numbers} differs from the answer {answer()}")
    print("operator state: the result equals the answer")


if __name__ == "__main__":
    if sys.argv[1:]:
        drive(Path(sys.argv[1]), sys.argv[2])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(Path(directory))
