"""Detection of a running query from its checkpoint location, for operations that need it stopped.

Spark leaves no lock in a checkpoint location. A running query shows by the entries that it adds to its logs:
the newest one is young by the query's own cadence, or another one appears. A query that waits for input adds
nothing and cannot be distinguished from a stopped one.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import statistics
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_statestore.errors import QueryRunningError
from spark_statestore.files import FileSystem, join, open_file_system
from spark_statestore.files.failures import failing_to
from spark_statestore.query.query_checkpoint import COMMITS, OFFSETS, SOURCES, QueryCheckpoint

YOUNG_SECONDS: Final = 30.0
"""Age below which an entry indicates a running query, regardless of its cadence."""

YOUNG_INTERVALS: Final = 3
"""Number of usual intervals between batches below which an entry indicates a running query."""

YOUNG_AT_MOST_SECONDS: Final = 3600.0
"""Age above which an entry never does: a query that is started once a day has intervals of a day."""

OBSERVED_SECONDS: Final = 2.0
"""Minimum time between two listings of the logs, of which the second one must have no new entry."""

# Number of intervals between batches from which the cadence is computed.
_INTERVALS: Final = 10

_LOGS: Final = (COMMITS, OFFSETS, SOURCES)


class ActivityCheck:
    """Check of a query's logs for activity, from the construction on."""

    def __init__(self, checkpoint: QueryCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._begun = time.monotonic()
        self._entries = _log_entries(checkpoint)

    def require_stopped(self, *, stopped: bool) -> None:
        """Raise `QueryRunningError` if an entry is young or appears.

        Asserting `stopped` skips the check of ages.
        """
        require_not_running_here(self._checkpoint)
        wait = 0.0 if stopped else OBSERVED_SECONDS
        if not stopped and self._entries:
            ages = _Ages.measure(self._checkpoint, self._entries)
            if ages is None:
                # Only new entries prove activity: wait for as long as an entry would count as young.
                wait = YOUNG_SECONDS
            elif ages.newest < ages.young_until:
                raise QueryRunningError(
                    f"pass --stopped (stopped=True in Python) if {self._query} is stopped, as directly after "
                    f"a job in a script; otherwise stop it first. It seems to run: {ages.name} was written "
                    f"{_seconds(ages.newest)} ago, and an entry younger than {_seconds(ages.young_until)} "
                    "indicates a running query (3 times its usual interval between batches; at least "
                    f"{_seconds(YOUNG_SECONDS)}, at most {_seconds(YOUNG_AT_MOST_SECONDS)}). Nothing was "
                    "changed."
                )
        time.sleep(max(0.0, self._begun + wait - time.monotonic()))
        if added := self.added():
            raise QueryRunningError(
                f"{self._query} runs: it has just written {', '.join(added)}. Stop it, then try again; "
                "nothing was changed."
            )

    def added(self, own: Collection[str] = (), removed: Collection[str] = ()) -> list[str]:
        """List the entries that were added since the check began, except the caller's own.

        Entries that the caller has removed count if they exist again.
        """
        before = self._entries.keys() - removed
        return sorted(_log_entries(self._checkpoint).keys() - before - set(own))

    @property
    def _query(self) -> str:
        return f"the query {self._checkpoint.query_id} of {self._checkpoint.url}"


def require_not_running_here(checkpoint: QueryCheckpoint) -> None:
    """Raise if the query runs in the Spark application of this process."""
    if _runs_here(checkpoint.query_id):
        raise QueryRunningError(
            f"the query {checkpoint.query_id} of {checkpoint.url} runs in this process. Stop it, then try "
            "again; nothing was changed."
        )


def young_until(times: Iterable[float]) -> float:
    """Return the age in seconds up to which an entry indicates a running query."""
    newest = list(times)[-_INTERVALS - 1 :]
    intervals = [max(0.0, later - earlier) for earlier, later in itertools.pairwise(newest)]
    usual = statistics.median(intervals) if intervals else 0.0
    return min(max(YOUNG_SECONDS, YOUNG_INTERVALS * usual), YOUNG_AT_MOST_SECONDS)


@dataclass(frozen=True, slots=True)
class _Ages:
    """Age of the newest file of a query, and the age up to which it counts as young."""

    name: str
    newest: float
    young_until: float

    @classmethod
    def measure(cls, checkpoint: QueryCheckpoint, entries: Mapping[str, float | None]) -> _Ages | None:
        """Compare the newest file with the storage's clock; None if the storage has no modification times."""
        times = {name: modified for name, modified in entries.items() if modified is not None}
        if not times:
            return None
        numbered = {int(name.rpartition("/")[2]): name for name in times if _is_entry(name, OFFSETS)}
        begun = [times[numbered[batch]] for batch in sorted(numbered)]
        if numbered and f"{COMMITS}/{max(numbered)}" not in entries:
            # During a long batch its tasks write state.
            times |= _newest_state(checkpoint)
        name = max(times, key=lambda log: times[log])
        now = storage_time(checkpoint.files, checkpoint.root)
        return cls(name, now - times[name], young_until(begun))


def _log_entries(checkpoint: QueryCheckpoint) -> dict[str, float | None]:
    """Return modification times of log files by path in the checkpoint location, without hidden ones."""
    entries: dict[str, float | None] = {}
    for log in _LOGS:
        directory = checkpoint.path(log)
        with failing_to("list", checkpoint.files, directory):
            for status in checkpoint.files.list_files(directory):
                if not status.path.rpartition("/")[2].startswith("."):
                    entries[status.path[len(checkpoint.root) + 1 :]] = status.modified
    return entries


def _is_entry(name: str, log: str) -> bool:
    directory, _, number = name.rpartition("/")
    return directory == log and number.isascii() and number.isdigit()


def _newest_state(checkpoint: QueryCheckpoint) -> dict[str, float]:
    files, directory = open_file_system(checkpoint.state_url)
    with failing_to("list", files, directory):
        times = {s.path: s.modified for s in files.list_files(directory) if s.modified is not None}
    newest = max(times, key=lambda path: times[path], default=None)
    return {} if newest is None else {files.url(newest): times[newest]}


def storage_time(files: FileSystem, root: str) -> float:
    """Return the storage's time in seconds since 1970, from the modification time of a probe file.

    Return this machine's time if that fails.
    """
    directory = join(root, f".clock-{secrets.token_hex(8)}")
    path = join(directory, "now")
    modified = None
    with contextlib.suppress(OSError):
        try:
            files.make_directory(directory)
            files.create(path, b"")
            modified = next((status.modified for status in files.list_files(directory)), None)
        finally:
            with contextlib.suppress(OSError):
                files.delete(path)
            files.delete_directory(directory)
    return time.time() if modified is None else modified


def _runs_here(query_id: str) -> bool:
    module: Any = sys.modules.get("pyspark.sql.session")
    if module is None:
        return False
    # A session whose JVM or server has ended runs no query.
    with contextlib.suppress(Exception):
        session = module.SparkSession.getActiveSession() or module.SparkSession._instantiatedSession
        if session is None:
            return False
        jvm_session = getattr(session, "_jsparkSession", None)
        if jvm_session is None:
            return any(query.id == query_id for query in session.streams.active)
        # A session knows its own queries only, and one process can have several.
        identify = session._jvm.java.util.UUID.fromString
        return bool(jvm_session.sharedState().activeStreamingQueries().containsKey(identify(query_id)))
    return False


def _seconds(value: float) -> str:
    return f"{max(0, round(value))} s"
