"""Events of Spark's event logs, files or rolling directories, and of progress as JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from spark_statestore.assess.compression import TruncatedError, decompress
from spark_statestore.errors import EventLogError
from spark_statestore.files import FileSystem, open_file_system

Event = dict[str, Any]

_LISTENER: Final = "org.apache.spark.sql.streaming.StreamingQueryListener$"

STARTED: Final = f"{_LISTENER}QueryStartedEvent"
PROGRESS: Final = f"{_LISTENER}QueryProgressEvent"
TASK: Final = "SparkListenerTaskEnd"
JOB: Final = "SparkListenerJobStart"
EXECUTION: Final = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
ENVIRONMENT: Final = "SparkListenerEnvironmentUpdate"
EXECUTOR: Final = "SparkListenerExecutorAdded"
EXECUTOR_LOST: Final = "SparkListenerExecutorRemoved"

_READ: Final = frozenset({STARTED, PROGRESS, TASK, JOB, EXECUTION, ENVIRONMENT, EXECUTOR, EXECUTOR_LOST})
"""Events that are decoded; the others are most of a log."""

# Spark writes the name first, and without spaces.
_NAME: Final = re.compile(rb'\{"Event":"([^"]+)"')

_ROLLED: Final = re.compile(r"events_(\d+)_[^/]*?(\.compact)?$")


class EventLog:
    """An event log, or a file with a ``StreamingQueryProgress`` as JSON in each line.

    Attributes
    ----------
    url
        Its path or URL.
    is_complete
        False once `events` has found that the last line ends in the middle: the application runs, or was
        killed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_complete = True

    def events(self) -> Iterator[Event]:
        """Yield the events that tell about queries; a progress that is not in an event as its event.

        Raises
        ------
        EventLogError
            If it does not exist, is empty or damaged, or is something else.
        """
        has_events = False
        for event in self._decoded():
            has_events = True
            if event["Event"] in _READ:
                yield event
        if not has_events:
            raise EventLogError(
                f"{self.url} is empty: the application has written no event. If it runs, wait for a batch."
            )

    def _decoded(self) -> Iterator[Event]:
        unfinished: tuple[bytes, Exception] | None = None
        for line in self._lines():
            if unfinished is not None:
                raise self._foreign(*unfinished)
            if (match := _NAME.match(line)) and match[1].decode() not in _READ:
                yield {"Event": match[1].decode()}
                continue
            try:
                event = _event(json.loads(line))
            except ValueError as error:
                # Unless another line follows, the application has not written the rest yet.
                unfinished = line, error
                continue
            yield event
        if unfinished is not None:
            if not unfinished[0].startswith(b"{"):
                raise self._foreign(*unfinished)
            self.is_complete = False

    def _foreign(self, line: bytes, error: Exception) -> EventLogError:
        shown = line[:40].decode(errors="replace")
        return EventLogError(
            f"{self.url} is no event log of Spark and no progress as JSON lines: it has the line {shown!r} "
            f"({error}). Event logs are in the directory of spark.eventLog.dir."
        )

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines that are not empty; the last one may be a part of one."""
        rest = b""
        for part in self._bytes():
            *lines, rest = (rest + part).split(b"\n")
            yield from filter(None, map(bytes.strip, lines))
        if rest.strip():
            yield rest.strip()

    def _bytes(self) -> Iterator[bytes]:
        files, path = open_file_system(self.url)
        try:
            paths = self._rolled(files, path) if files.is_directory(path) else [path]
            for file in paths:
                with files.open_input(file) as stream:
                    try:
                        yield from decompress(stream, files.url(file))
                    except TruncatedError:
                        self.is_complete = False
        except FileNotFoundError as error:
            raise EventLogError(
                f"there is no event log at {self.url}. Spark writes one if spark.eventLog.enabled is set, to "
                "the directory of spark.eventLog.dir."
            ) from error

    def _rolled(self, files: FileSystem, path: str) -> list[str]:
        """Return the files of a rolling event log in their order, from the newest compacted one on."""
        numbered_files = [
            (int(match[1]), match[2] is not None, status.path)
            for status in files.list_directory(path)
            if (match := _ROLLED.search(status.path))
        ]
        if not numbered_files:
            raise EventLogError(
                f"{self.url} is a directory without files events_N_…, so no rolling event log: pass the log "
                "of an application, such as a directory eventlog_v2_…, or a file."
            )
        # A compacted file has what is needed of the files up to its number.
        compacted = max((number for number, is_compacted, _ in numbered_files if is_compacted), default=None)
        needed_files = [
            (number, file)
            for number, is_compacted, file in numbered_files
            if compacted is None or number > compacted or (is_compacted and number == compacted)
        ]
        return [file for _, file in sorted(needed_files)]


def _event(value: Any) -> Event:
    if isinstance(value, dict):
        if isinstance(value.get("Event"), str):
            return value
        if "batchId" in value and "stateOperators" in value:
            return {"Event": PROGRESS, "progress": value}
    raise ValueError("neither an event nor a StreamingQueryProgress")
