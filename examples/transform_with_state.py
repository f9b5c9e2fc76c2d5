"""Keep the last reading of each sensor in a room, and report rooms without readings, with timers.

python examples/transform_with_state.py
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import spark_statestore

# A file is a batch. The last reading moves the watermark, and with it the timers' clock.
FILES = [
    (
        "attic,north,2025-01-01 09:00,19.5\nattic,south,2025-01-01 09:10,21.0\n"
        "cellar,door,2025-01-01 09:10,8.0\n"
    ),
    "cellar,door,2025-01-01 09:35,7.5\nattic,north,2025-01-01 09:20,20.0\n",
    "cellar,door,2025-01-01 10:05,7.0\n",
]
SILENCE = 30 * 60 * 1000


class Room(StatefulProcessor):
    """Keep the last readings of a room's sensors, and a timer that expires without new ones."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.last = handle.getMapState("last", "sensor string", "value double")

    def handleInputRows(self, key, rows: Iterator[Row], timerValues) -> Iterator[Row]:
        latest = datetime.min
        for row in sorted(rows, key=lambda row: row.time):
            self.last.updateValue((row.sensor,), (row.value,))
            latest = row.time
        # Every reading postpones the timer.
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(int(latest.timestamp() * 1000) + SILENCE)
        yield Row(room=key[0], event=self.readings())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[Row]:
        readings = self.readings()
        self.last.clear()
        yield Row(room=key[0], event=f"silent for half an hour, after {readings}")

    def readings(self) -> str:
        return ", ".join(f"{sensor} {value}" for (sensor,), (value,) in sorted(self.last.iterator()))


def main(work: Path) -> None:
    (work / "input").mkdir()
    for number, lines in enumerate(FILES):
        file = work / "input" / f"{number}.csv"
        file.write_text(lines)
        os.utime(file, (number, number))  # the order in which they are read

    os.environ["PYSPARK_PYTHON"] = sys.executable  # for the workers that run `Room`
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = spark_statestore.configure(builder).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def show(batch: DataFrame, number: int) -> None:
        for row in batch.orderBy("room", "event").collect():
            print(f"batch {number}: {row.room}: {row.event}")

    schema = "room string, sensor string, time timestamp, value double"
    readings = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(str(work / "input"))
    rooms = readings.withWatermark("time", "10 minutes").groupBy("room")
    events = rooms.transformWithState(Room(), "room string, event string", "update", "eventTime")
    query = events.writeStream.outputMode("update").foreachBatch(show).trigger(availableNow=True)
    query.option("checkpointLocation", str(work / "checkpoint")).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory))
