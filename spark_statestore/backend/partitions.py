"""The request that gives a query, before its first batch, the number of partitions of its session."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any, Final

from spark_statestore import errors
from spark_statestore.backend.protocol import FrameSocket, Kind
from spark_statestore.backend.supervision import Permit

# Below the timeouts of requests.
_ANSWER_SECONDS: Final = 1.0


class PartitionJobs:
    """Rescales of queries that are about to start, each in a process of its own.

    A rescale may take longer than any timeout of a request. So the client asks again until it is done, and
    each answer says how far it is. A client that has ended leaves the rescale to the next start of the query,
    which waits for the same one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}

    def settle(self, request: dict[str, Any], connection: FrameSocket, permit: Permit) -> None:
        """Start a rescale, or wait for it; see `settle_partitions`."""
        connection.expect_end()
        path = request["path"]
        with self._lock:
            job = self._jobs.get(path)
            if job is None:
                job = self._jobs[path] = _Job(request)
        if job.ended.wait(_ANSWER_SECONDS):
            with self._lock:
                self._jobs.pop(path, None)
        connection.send_json(Kind.CONTROL, job.answer())
        connection.send(Kind.END)


class _Job:
    """One rescale, and how far it is."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.ended = threading.Event()
        self._latest: dict[str, Any] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark_statestore.rescaling"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        threading.Thread(
            target=self._follow, args=(json.dumps(request),), name="partitions", daemon=True
        ).start()

    def answer(self) -> dict[str, Any]:
        """Return how far the rescale is, and its result once it has ended; raise its error."""
        latest = self._latest
        if self.ended.is_set():
            if (failure := latest.get("error")) is not None:
                raise _error_of(failure)
            if "partitions" not in latest:
                raise errors.BackendError(
                    f"the process that gives the query its partitions has ended with {self._process.poll()} "
                    "before it was done; the log of the driver has its last words. Start the query again, "
                    "which completes what was begun."
                )
        return {"done": 0, "total": 0, **latest, "isComplete": self.ended.is_set()}

    def _follow(self, request: str) -> None:
        try:
            # The process ends once nothing can be read from its standard input any more.
            with self._process as process:
                if process.stdin is not None:
                    process.stdin.write(request + "\n")
                    process.stdin.flush()
                for line in process.stdout or ():
                    self._latest = self._latest | json.loads(line)
        finally:
            self.ended.set()


def _error_of(failure: dict[str, str]) -> errors.StateStoreError:
    """Return an error of another process, of its class as far as it is this package's."""
    kind = getattr(errors, failure["type"], None)
    if isinstance(kind, type) and issubclass(kind, errors.StateStoreError):
        return kind(failure["message"])
    return errors.BackendError(f"{failure['type']}: {failure['message']}")
