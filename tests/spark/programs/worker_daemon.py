"""Test program: Python tasks in workers as `configure` sets them up, and a query with pandas state.

The only argument is a JSON object: ``checkpoint``.
"""

import json
import sys

import spark_statestore
from tests.spark.counting import GROUPS, ROWS, expected, report, wait_for_batch, workers_once_known
from tests.support.sessions import local_builder


def load_modules():
    import pandas  # noqa: F401


def count_frozen():
    import gc

    return gc.get_freeze_count()


def keep_cycle():
    import sys
    import weakref

    class Cycle:
        pass

    sys.cycle = Cycle()
    sys.cycle.itself = sys.cycle
    sys.is_alive = weakref.ref(sys.cycle)


def drop_cycle():
    import gc
    import sys

    # So that only the collection after the task finds it.
    gc.disable()
    del sys.cycle
    return sys.is_alive() is not None


def find_cycle():
    import gc
    import sys

    gc.enable()
    return sys.is_alive() is not None


def count(key, frames, state):
    import pandas

    (before,) = state.get if state.exists else (0,)
    state.update((before + sum(map(len, frames)),))
    yield pandas.DataFrame({"k": key, "n": [state.get[0]]})


def counts(spark, checkpoint):
    """Return the number of rows of each group after three batches, and the expected ones."""
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    counted = numbers.selectExpr(f"value % {GROUPS} AS k").groupBy("k")
    query = (
        counted.applyInPandasWithState(count, "k bigint, n bigint", "n bigint", "update", "NoTimeout")
        .writeStream.outputMode("update")
        .format("memory")
        .queryName("counts")
        .option("checkpointLocation", checkpoint)
        .start()
    )
    wait_for_batch(query, 2)
    query.stop()
    group_counts = {
        row.k: row.n for row in spark.sql("SELECT k, max(n) AS n FROM counts GROUP BY k").collect()
    }
    batches = sum(group_counts.values()) // ROWS
    assert batches > 2
    return group_counts, {k: n for k, n, *_ in expected(batches)}


def main():
    builder = local_builder("worker-daemon", memory="512m", master="local[1]")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def run(task):
        [result] = spark.sparkContext.parallelize([0], 1).map(lambda _: task()).collect()
        return result

    workers_once_known(spark, tasks=1)
    run(load_modules)
    report("frozen", run(count_frozen))
    run(keep_cycle)
    report("cycle", [run(drop_cycle), run(find_cycle)])
    report("counts", counts(spark, json.loads(sys.argv[1])["checkpoint"]))
    spark.stop()


if __name__ == "__main__":
    main()
