"""The request that gives a query, before its first batch, the number of partitions of its session."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any, Final

from spark_statestore import errors
from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.backend.supervision import Permit

# Below the timeouts of requests.
_ANSWER_SECONDS: Final = 1.0

# A client asks again as soon as it has an answer.
_UNWANTED_SECONDS: Final = 10.0


class PartitionJobs:
    """Rescales of queries that are about to start, each in a process of its own.

    A rescale may take longer than any timeout of a request. So the client asks again until it is done, and
    each answer says how far it is. A rescale whose client asks no more ends at once, and so does one that
    another start of the query finds: the next one completes what was begun.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}

    def settle(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        """Start a rescale, or wait for it; see `settle_partitions`."""
        connection.expect_end()
        path, start = request["path"], request["start"]
        with self._lock:
            job = self._jobs.get(path)
            if job is not None and job.start != start:
                job.stop()
                job = None
            if job is None:
                job = self._jobs[path] = _Job(request)
        job.heartbeat()
        if job.ended.wait(_ANSWER_SECONDS):
            with self._lock:
                if self._jobs.get(path) is job:
                    del self._jobs[path]
        connection.send_json(Kind.CONTROL, job.answer())
        connection.send(Kind.END)


class _Job:
    """One rescale, and how far it is."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.start: str = request["start"]
        """Id of the start of the query that waits for it."""
        self.ended = threading.Event()
        self._last_heartbeat = time.monotonic()
        self._latest: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark_statestore.savepoints"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        threading.Thread(
            target=self._follow, args=(json.dumps(request),), name="partitions", daemon=True
        ).start()

    def heartbeat(self) -> None:
        """Record that its client waits."""
        self._last_heartbeat = time.monotonic()

    def stop(self) -> None:
        """End it, and wait until it has."""
        self._process.kill()
        self.ended.wait()

    def answer(self) -> dict[str, Any]:
        """Return how far the rescale is, and its result once it has ended; raise its error."""
        latest = self._latest
        if self.ended.is_set():
            if (failure := latest.get("error")) is not None:
                raise _error_of(failure)
            if "partitions" not in latest:
                raise errors.BackendError(
                    f"the process that gives the query its partitions has ended with {self._process.poll()} "
                    "before it was done; the log of the driver has its error. Start the query again, "
                    "which completes what was begun."
                )
        return {"done": 0, "total": 0, **latest, "isComplete": self.ended.is_set()}

    def _follow(self, request: str) -> None:
        try:
            # The process ends once nothing can be read from its standard input any more.
            threading.Thread(target=self._watch, name="partitions", daemon=True).start()
            with self._process as process:
                if process.stdin is not None:
                    process.stdin.write(request + "\n")
                    process.stdin.flush()
                for line in process.stdout or ():
                    self._latest = self._latest | json.loads(line)
        finally:
            self.ended.set()

    def _watch(self) -> None:
        while not self.ended.wait(_ANSWER_SECONDS):
            if time.monotonic() - self._last_heartbeat > _UNWANTED_SECONDS:
                self._process.kill()


def _error_of(failure: dict[str, str]) -> errors.StateStoreError:
    """Return an error of another process, of its class as far as it is this package's."""
    kind = getattr(errors, failure["type"], None)
    if isinstance(kind, type) and issubclass(kind, errors.StateStoreError):
        return kind(failure["message"])
    return errors.BackendError(f"{failure['type']}: {failure['message']}")
