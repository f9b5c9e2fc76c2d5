"""Driver program that runs queries on a cluster to the end of their input, through kills and restarts.

The only argument is a JSON object: ``directory`` to work in, ``master``, ``address`` of the driver,
``confs``, ``options`` for `spark_statestore.configure`, and ``queries`` (for each its kind, and its
settings). In the directory it reads ``input/`` and writes ``out/<query>/<batch>.json``, ``events.jsonl``, and
in the end ``answers/``.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import uuid
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

import spark_statestore
from tests.spark.counting import failure_of
from tests.support.sessions import local_builder
from tests.system.cluster import queries
from tests.system.cluster.data import COLUMNS, FLUSH


def main() -> None:
    arguments = json.loads(sys.argv[1])
    directory = Path(arguments["directory"])
    builder = local_builder("cluster", memory="512m", master=arguments["master"])
    builder.config(map=arguments["confs"])
    spark_statestore.configure(builder, **arguments["options"])
    spark = builder.getOrCreate()
    # Executors cannot import this module.
    cloudpickle.register_pickle_by_value(queries)
    log_event(directory, "session", jvm=spark._jvm.java.lang.ProcessHandle.current().pid())
    running = [Running(spark, directory, name, **settings) for name, settings in arguments["queries"].items()]
    while not (directory / "ended").exists():
        for query in running:
            query.keep_up()
        time.sleep(0.1)
    for query in running:
        query.finish()
    for kind in sorted({query.kind for query in running}):
        answer(spark, directory, kind)
    spark.stop()
    log_event(directory, "done")


class Running:
    """A query that is restarted whenever it fails."""

    def __init__(self, spark: Any, directory: Path, name: str, kind: str, confs: dict[str, str]) -> None:
        self.kind = kind
        self._name = name
        self._directory = directory
        self._out = directory / "out" / name
        self._out.mkdir(parents=True, exist_ok=True)
        self._session = spark.newSession()
        for key, value in confs.items():
            self._session.conf.set(key, value)
        self._query: Any = None

    def keep_up(self) -> None:
        """Start the query unless it runs."""
        if self._query is not None and self._query.isActive:
            return
        if self._query is not None:
            self._log_failure()
            # The cause of the failure persists for a while.
            time.sleep(0.3)
        try:
            self._query = self._start()
        except Exception:  # noqa: BLE001 - logged and retried
            self._require_application()
            self._query = None
            log_event(self._directory, "refused", query=self._name, message=traceback.format_exc())
            time.sleep(0.3)

    def finish(self) -> None:
        while True:
            self.keep_up()
            if self._query is None:
                continue
            try:
                self._query.processAllAvailable()
            except Exception:  # noqa: BLE001 - the failed query is restarted
                self._require_application()
                continue
            if self._query.isActive:
                self._query.stop()
                return

    def _start(self) -> Any:
        source = self._session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        rows = source.parquet(str(self._directory / "input"))
        result = queries.KINDS[self.kind].stream(rows)
        return (
            result.writeStream.outputMode(queries.KINDS[self.kind].mode)
            .option("checkpointLocation", str(self._directory / "checkpoints" / self._name))
            .foreachBatch(self._keep)
            .start()
        )

    def _keep(self, batch: Any, number: int) -> None:
        rows = rows_of(batch)
        path = self._out / f"{number}.json"
        # A repeated batch must have the same output.
        if path.exists() and json.loads(path.read_text()) != rows:
            write(path.with_name(f"{number}.differs-{uuid.uuid4().hex[:8]}"), rows)
        write(path, rows)

    def _require_application(self) -> None:
        # Otherwise this process's supervisor starts another one.
        if self._session.sparkContext._jsc.sc().isStopped():
            raise RuntimeError("the application has ended")

    def _log_failure(self) -> None:
        message = failure_of(self._query) or "it ended without an error"
        log_event(self._directory, "failed", query=self._name, message=message)


def answer(spark: Any, directory: Path, kind: str) -> None:
    """Write the result of the batch query."""
    session = spark.newSession()
    rows = session.read.schema(COLUMNS).parquet(str(directory / "input"))
    (directory / "answers").mkdir(exist_ok=True)
    write(directory / "answers" / f"{kind}.json", rows_of(queries.KINDS[kind].batch(rows)))


def rows_of(result: Any) -> list[list[str]]:
    """Return the rows as text, without those of the end of the input, whose groups stay open."""
    # Spark would push a condition down below the watermark operator, which has to see them.
    rows = (list(map(str, row)) for row in result.collect())
    return sorted(row for row in rows if FLUSH not in row)


def write(path: Path, rows: list[list[str]]) -> None:
    hidden = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    hidden.write_text(json.dumps(rows))
    hidden.replace(path)


def log_event(directory: Path, event: str, **details: Any) -> None:
    with open(directory / "events.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "at": time.time(), "pid": os.getpid(), **details}) + "\n")


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - a thread of the session may keep the process from ending
        traceback.print_exc()
        os._exit(3)
    os._exit(0)
