"""The log that Spark's file source keeps of the files it has taken: how much of it belongs to a batch.

One file for each time that it found new ones, ``<n>``, and from time to time ``<n>.compact`` with all
entries up to there. Text: a line with the version, then one of JSON for each file. The offset log says
how far a batch has come in it. Entries behind that are of files that later batches read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_statestore.checkpoint.query.logs import OffsetEntry
from spark_statestore.errors import CorruptCheckpointError

__all__ = [
    "FileLogCut",
    "compacted",
    "cut",
    "directories",
    "is_file_log",
    "log_files",
    "newest_entry",
    "position",
]

_COMPACT: Final = ".compact"
_NAME = re.compile(rf"(\d+)({re.escape(_COMPACT)})?")
_NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class FileLogCut:
    """What of a file source's log belongs to a batch.

    Attributes
    ----------
    kept
        Files that belong to it as they are.
    dropped
        The other files, the newest first.
    compact
        A file with the entries of all that is not kept but needed, to be made by `compacted`: its name
        and the file whose entries it is made of. None if what is kept is whole.
    """

    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    compact: tuple[str, str] | None


def directories(entry: OffsetEntry, is_there: Callable[[str], bool]) -> dict[str, str]:
    """The offset of each source, by the name of its directory.

    Parameters
    ----------
    entry
        What a batch read.
    is_there
        Whether there is a source's directory of some name.

    Raises
    ------
    CorruptCheckpointError
        If a source that the query reads at several places cannot be told from the others.
    """
    if entry.version != "v1":
        # From version 2 on sources have names, and a line is a name, a colon and the offset.
        return {name: line for name, _, line in (line.partition(":") for line in entry.sources)}
    numbered = {str(number): line for number, line in enumerate(entry.sources)}
    if all(is_there(name) for name, line in numbered.items() if _has_log(line)):
        return numbered
    possible = _where_some_are_shared(entry.sources, {name for name in numbered if is_there(name)})
    if len(possible) > 1:
        raise CorruptCheckpointError(
            f"it cannot be told which of the {len(entry.sources)} offsets of a batch belong to one source that the "
            f"query reads several times: {', '.join(entry.sources)}. Take another batch, whose offsets differ; nothing "
            "was changed."
        )
    # If there is no way, a directory is missing; that is for whoever looks into it to say.
    return {str(number): line for lines in possible for number, line in enumerate(lines)} or numbered


def _has_log(offset: str) -> bool:
    # A number alone may be another source's, which may have no directory.
    return "logOffset" in offset and position(offset) is not None


def _where_some_are_shared(offsets: Sequence[str], there: set[str]) -> set[tuple[str, ...]]:
    """The ways in which offsets can belong to the directories that there are.

    Spark gives a source that a query reads several times, as in a join with itself, one directory, and an
    offset, always the same, for each time.
    """
    ways: set[tuple[str, ...]] = {()}
    for offset in offsets:
        again = {way for way in ways if offset in way}
        ways = again | {(*way, offset) for way in ways if str(len(way)) in there or not _has_log(offset)}
    return {way for way in ways if all(int(name) < len(way) for name in there)}


def newest_entry(name: str) -> int:
    """The number of the newest entry in a file of a log."""
    return int(name.partition(".")[0])


def log_files(names: Iterable[str]) -> list[str]:
    """Those of a directory's files that are named as a file source's log is, oldest first."""
    return sorted((name for name in names if _NAME.fullmatch(name)), key=newest_entry)


def is_file_log(data: bytes) -> bool:
    """Whether a file of a source's directory is one of a file source's log."""
    version, _, entries = data.partition(b"\n")
    if not version.startswith(b"v"):
        return False
    try:
        first = json.loads(entries.partition(b"\n")[0])
    except ValueError:
        # Nothing in it: only the file source writes that.
        return not entries
    return isinstance(first, dict) and {"path", "timestamp", "batchId"} <= first.keys()


def is_file_source(log: Sequence[str], read: Callable[[str], bytes]) -> bool:
    """Whether files named as a log is are a file source's.

    Parameters
    ----------
    log
        Their names, oldest first.
    read
        Reads one of them.
    """
    # The newest one nearly always tells, unless it is damaged.
    return any(is_file_log(read(name)) for name in reversed(log))


def position(offset: str) -> int | None:
    """The last entry of the log that a batch has read, -1 for none; None if it is not a file source's offset."""
    if offset == _NOTHING:
        return -1
    try:
        node = json.loads(offset)
    except ValueError:
        return None
    found = node.get("logOffset") if isinstance(node, dict) else node
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def cut(names: Iterable[str], last: int, where: str) -> FileLogCut:
    """Decide what of a log belongs to a batch that has read up to an entry.

    Raises
    ------
    CorruptCheckpointError
        If entries up to there are missing.
    """
    found = {newest_entry(name): name for name in log_files(names)}
    newest_first = sorted(found, reverse=True)
    before = [entry for entry in newest_first if entry <= last]
    compacts = [entry for entry in before if found[entry].endswith(_COMPACT)]
    start = compacts[0] if compacts else 0
    if all(entry in found for entry in range(start, last + 1)):
        misleading = set(_misleading(compacts, last))
        kept = [entry for entry in before if entry not in misleading]
        dropped = [entry for entry in newest_first if entry > last or entry in misleading]
        return FileLogCut(
            tuple(found[entry] for entry in kept), tuple(found[entry] for entry in dropped), None
        )
    # Spark has removed what it had compacted since, so the next compacted file is where the entries are.
    later = [entry for entry in newest_first if entry > last and found[entry].endswith(_COMPACT)]
    if not later:
        raise CorruptCheckpointError(
            f"the log of the file source at {where} lacks entries up to {last}, it has {', '.join(found[entry] for entry in sorted(found))}. "
            "Take a later batch, or copy them back from a backup; nothing was changed."
        )
    origin = found[later[-1]]
    return FileLogCut((), tuple(found[entry] for entry in newest_first), (f"{last}{_COMPACT}", origin))


def _misleading(compacts: list[int], last: int) -> Iterator[int]:
    """Compacted files that Spark would work out a wrong interval from.

    It is the distance of the newest two. If the removal of old files was cut short, one between them may be gone.
    """
    for older in compacts[1:]:
        interval = compacts[0] - older
        if (compacts[0] + 1) % interval == 0 and last < compacts[0] + interval:
            return
        yield older


def compacted(data: bytes, last: int, where: str) -> bytes:
    """The entries of a compacted file up to one of them, as a compacted file.

    Raises
    ------
    CorruptCheckpointError
        If it cannot be read.
    """
    version, *entries = data.split(b"\n")
    try:
        kept = [entry for entry in entries if entry and json.loads(entry)["batchId"] <= last]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"{where} is not a log of a file source: {error!r}. Copy it back from a backup; nothing was changed."
        ) from error
    return b"\n".join([version, *kept])
