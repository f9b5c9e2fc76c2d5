"""Test program: Python tasks in a worker as `configure` sets it up, one after the other."""

import spark_statestore
from tests.spark.counting import report, workers_once_known
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
    spark.stop()


if __name__ == "__main__":
    main()
