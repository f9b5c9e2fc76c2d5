"""The Spark jobs of a conversion, which run in the JVM."""

from __future__ import annotations

import json
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_statestore.errors import ConversionError, SessionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[str, int, int, int, int], None]
"""Called with the phase, the numbers of tasks done and of all, and the numbers of rows and bytes."""

_POLL_SECONDS: Final = 0.5

_CLASS: Final = "org.apache.spark.sql.statestore.convert.StateConversion"

Ids = dict[int, list[list[str]]]


class Job:
    """A conversion of the stores' version in a session's JVM.

    Its sides are ``source``, and ``target`` where there is one, see `spark_statestore.conversion.plan.side`.
    """

    def __init__(
        self, spark: SparkSession, version: int, sides: Mapping[str, Any], progress: Progress | None
    ) -> None:
        jvm: Any = spark._jvm
        description = json.dumps({"version": version, **sides})
        self._spark = spark
        self._stores = {name: side["stores"] for name, side in sides.items()}
        self._conversion = jvm.org.apache.spark.sql.statestore.convert.StateConversion(
            spark._jsparkSession, description
        )
        self._progress = progress

    def copy(self) -> Ids | None:
        """Copy all stores, and return their checkpoint ids by operator, partition and store.

        Return None in format 1, which has no ids.
        """
        copied_stores = json.loads(self._run("copying", self._conversion.copy))
        written_ids = {
            (copied["operator"], copied["partition"], copied["store"]): copied["id"]
            for copied in copied_stores
        }
        if not any(written_ids.values()):
            return None
        ids: defaultdict[int, list[list[str]]] = defaultdict(list)
        by_operator: defaultdict[int, list[Any]] = defaultdict(list)
        for store in self._stores["source"]:
            by_operator[store["operator"]].append(store)
        for operator, stores in by_operator.items():
            for partition in range(stores[0]["partitions"]):
                ids[operator].append([written_ids[operator, partition, store["name"]] for store in stores])
        return dict(ids)

    def digests(self, side: str) -> list[dict[str, Any]]:
        """Read all rows of a side, and digest each family of each store and partition.

        A digest has count and checksum.
        """
        digests: list[dict[str, Any]] = json.loads(
            self._run(f"reading the {side} back", lambda: self._conversion.digest(side))
        )
        return digests

    def _run(self, phase: str, call: Callable[[], str]) -> str:
        end = threading.Event()
        watcher = None
        if self._progress is not None:
            watcher = threading.Thread(target=self._report, args=(phase, end, self._progress), daemon=True)
            watcher.start()
        try:
            return call()
        except Exception as error:
            raise ConversionError(
                f"{phase} failed: {_cause(error)}. Nothing was changed, and no checkpoint was made."
            ) from error
        finally:
            end.set()
            if watcher is not None:
                watcher.join()

    def _report(self, phase: str, end: threading.Event, progress: Progress) -> None:
        while True:
            ended = end.wait(_POLL_SECONDS)
            tasks, total, rows, size = self._conversion.progress()
            progress(phase, tasks, total, rows, size)
            if ended:
                return


def require_classes(spark: SparkSession, *providers: str) -> None:
    """Raise if the session has not this package's jar, or not the classes of a provider."""
    jvm: Any = getattr(spark, "_jvm", None)
    if jvm is None:
        raise SessionError(
            "a Spark Connect client cannot convert a checkpoint: run the conversion in a session of its own "
            "on the server, or with the command spark-statestore convert."
        )
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in (_CLASS, *providers):
        try:
            jvm.java.lang.Class.forName(name, True, loader)
        except Exception as error:
            if name == _CLASS:
                raise SessionError(
                    "the jar of spark-statestore is not on the session's class path: build the session with "
                    "spark_statestore.configure(SparkSession.builder). Nothing was changed."
                ) from error
            raise ConversionError(
                f"the checkpoint's state is in the state store {name}, whose class this session does not "
                "have. Start the session with the jar of that store (spark.jars); nothing was changed."
            ) from error


def _cause(error: Exception) -> str:
    """Return the message of what caused a failed job, without stack traces."""
    text = str(getattr(error, "java_exception", error))
    causes: list[str] = re.findall(r"^(?:Caused by: |.*?failure: .*?\): )(.+)", text, re.MULTILINE)
    cause = causes[-1] if causes else text.partition("\n")[0]
    return re.sub(r"^[\w.$]+(?:Exception|Error): ", "", cause).strip().rstrip(".")
