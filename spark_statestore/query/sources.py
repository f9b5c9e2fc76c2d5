"""The log of Spark's file source, cut to the entries that a batch has read.

The log has a file ``<n>`` for each listing that found new files, and at intervals ``<n>.compact`` with all
entries up to it. Each is text: a line with the version, then a line of JSON per input file. The offset log
has the last entry that a batch has read; later entries belong to later batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_statestore.errors import CorruptCheckpointError, restore_from_backup
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.logs import OffsetEntry

_COMPACT: Final = ".compact"
_NAME = re.compile(rf"(\d+)({re.escape(_COMPACT)})?")
_NOTHING: Final = "-"


@dataclass(frozen=True, slots=True)
class FileLogCut:
    """The part of a file source's log that belongs to a batch.

    Attributes
    ----------
    unchanged_files
        Files that belong to it unchanged.
    dropped
        The other files, newest first.
    compact
        Name of a compacted file to create with `compacted`, and of the file to create it from; None if the
        unchanged files have all entries.
    """

    unchanged_files: tuple[str, ...]
    dropped: tuple[str, ...]
    compact: tuple[str, str] | None


def lines_by_name(entry: OffsetEntry) -> dict[str, str]:
    """Return the offset in each line of an entry, by the name or number of the source that is read."""
    if entry.version != "v1":
        # From version 2 on, sources have names, and a line is the name, a colon and the offset.
        return {name: line for name, _, line in (line.partition(":") for line in entry.sources)}
    return {str(number): line for number, line in enumerate(entry.sources)}


def directories(entry: OffsetEntry, exists: Callable[[str], bool]) -> dict[str, str]:
    """Return the offset of each source, by the name of its directory.

    `exists` returns True if there is a source directory with a name.
    """
    numbered = lines_by_name(entry)
    if entry.version != "v1":
        return numbered
    if all(exists(name) for name, line in numbered.items() if is_offset_of_files(line)):
        return numbered
    possible = _where_some_are_shared(entry.sources, {name for name in numbered if exists(name)})
    if len(possible) > 1:
        raise CorruptCheckpointError(
            f"the {len(entry.sources)} offsets of a batch cannot be assigned to its sources, one of which "
            f"the query reads several times: {', '.join(entry.sources)}. Use another batch, whose offsets "
            "differ; nothing was changed."
        )
    # Without an assignment, a directory is missing; the caller that reads it raises the error.
    return {str(number): line for lines in possible for number, line in enumerate(lines)} or numbered


def is_offset_of_files(offset: str) -> bool:
    """Return True if an offset is a file source's, which keeps its files in a log of its own."""
    # A plain number may be another kind of source's offset, which may have no directory.
    return "logOffset" in offset and position(offset) is not None


def _where_some_are_shared(offsets: Sequence[str], there: set[str]) -> set[tuple[str, ...]]:
    """Return the possible assignments of offsets to the existing directories.

    Spark gives a source that a query reads several times, as in a join with itself, one directory, and an
    offset, always the same, for each time.
    """
    ways: set[tuple[str, ...]] = {()}
    for offset in offsets:
        again = {way for way in ways if offset in way}
        is_anywhere = not is_offset_of_files(offset)
        ways = again | {(*way, offset) for way in ways if str(len(way)) in there or is_anywhere}
    return {way for way in ways if all(int(name) < len(way) for name in there)}


def newest_entry(name: str) -> int:
    """Return the number of the newest entry in a file of a log."""
    return int(name.partition(".")[0])


def log_files(names: Iterable[str]) -> list[str]:
    """Filter the names of log files, oldest first."""
    return sorted((name for name in names if _NAME.fullmatch(name)), key=newest_entry)


def is_file_log(data: bytes) -> bool:
    """Return True if the content of a file is that of a file source's log."""
    version, _, entries = data.partition(b"\n")
    if not version.startswith(b"v"):
        return False
    try:
        first = parse_json(entries.partition(b"\n")[0])
    except ValueError:
        # Only the file source writes a log file without entries.
        return not entries
    return isinstance(first, dict) and {"path", "timestamp", "batchId"} <= first.keys()


def is_file_source(log: Sequence[str], read_file: Callable[[str], bytes]) -> bool:
    """Return True if log files belong to a file source."""
    # Older files are read only if the newest one is damaged.
    return any(is_file_log(read_file(name)) for name in reversed(log))


def position(offset: str) -> int | None:
    """Return the last log entry that a batch has read, -1 for none.

    Return None if it is not a file source's offset.
    """
    if offset == _NOTHING:
        return -1
    try:
        node = parse_json(offset)
    except ValueError:
        return None
    number = node.get("logOffset") if isinstance(node, dict) else node
    return number if isinstance(number, int) and not isinstance(number, bool) else None


def cut(names: Iterable[str], last: int, where: str) -> FileLogCut:
    """Cut a log to the entries of a batch."""
    names_by_entry = {newest_entry(name): name for name in log_files(names)}
    newest_first = sorted(names_by_entry, reverse=True)
    before = [entry for entry in newest_first if entry <= last]
    compacts = [entry for entry in before if names_by_entry[entry].endswith(_COMPACT)]
    start = compacts[0] if compacts else 0
    if all(entry in names_by_entry for entry in range(start, last + 1)):
        misleading = set(_misleading(compacts, last))
        unchanged = [entry for entry in before if entry not in misleading]
        dropped = [entry for entry in newest_first if entry > last or entry in misleading]
        return FileLogCut(
            tuple(names_by_entry[entry] for entry in unchanged),
            tuple(names_by_entry[entry] for entry in dropped),
            None,
        )
    # Spark has deleted the files that it compacted, so the next compacted file has the entries.
    later = [entry for entry in newest_first if entry > last and names_by_entry[entry].endswith(_COMPACT)]
    if not later:
        raise CorruptCheckpointError(
            f"the log of the file source at {where} lacks entries up to {last}, it has "
            f"{', '.join(names_by_entry[entry] for entry in sorted(names_by_entry))}. "
            + restore_from_backup("them", "use a later batch")
        )
    origin = names_by_entry[later[-1]]
    return FileLogCut(
        (), tuple(names_by_entry[entry] for entry in newest_first), (f"{last}{_COMPACT}", origin)
    )


def _misleading(compacts: list[int], last: int) -> Iterator[int]:
    """Yield compacted files from which Spark would derive a wrong interval.

    The interval is the distance of the newest two. After an interrupted purge, one between them may be
    missing.
    """
    for older in compacts[1:]:
        interval = compacts[0] - older
        if (compacts[0] + 1) % interval == 0 and last < compacts[0] + interval:
            return
        yield older


def compacted(data: bytes, last: int, where: str) -> bytes:
    """Return a compacted file cut after an entry."""
    version, *entries = data.split(b"\n")
    try:
        retained = [entry for entry in entries if entry and parse_json(entry)["batchId"] <= last]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptCheckpointError(
            f"{where} is not a log of a file source: {error!r}. {restore_from_backup(otherwise=None)}"
        ) from error
    return b"\n".join([version, *retained])
