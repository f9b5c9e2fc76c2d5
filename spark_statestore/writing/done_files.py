"""The log of Spark's file source after a batch that has read given files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from spark_statestore.errors import OptionError
from spark_statestore.files import FileStatus, join, open_file_system, parent_of
from spark_statestore.files.failures import failing_to, read_file
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.query_checkpoint import SOURCES, QueryCheckpoint
from spark_statestore.query.sources import log_files

_NOTHING_READ: Final = "-"

# ASCII characters that java.net.URI leaves in a path.
_SAFE: Final = "/:@&=+$,;_-!.~'()*"


@dataclass(frozen=True, slots=True)
class SourceLog:
    """A source's offset, and the files of its log by their names."""

    offset: str
    files: Mapping[str, bytes]


def log_of_done_files(checkpoint: QueryCheckpoint, name: str, urls: Sequence[Any]) -> SourceLog:
    """Return what a file source has after it has read files, and those that directories have now.

    Its first batch has read all of them, as that of a query without ``maxFilesPerTrigger``.
    """
    names = checkpoint.files_below(SOURCES, name)
    times: dict[str, int] = {}
    listings: dict[str, dict[str, FileStatus]] = {}
    for url in urls:
        if not isinstance(url, str):
            raise OptionError(
                f"the files of the source {name!r} have {url!r} among them, but each must be the path or the "
                "URL of a file or directory, as text. No checkpoint was written."
            )
        times |= _modified(url, listings)
    if not times:
        return SourceLog(_NOTHING_READ, {})
    places = _places(checkpoint, name, names)
    for uri in times:
        if _place(uri) not in places:
            raise OptionError(
                f"the file {uri} is not where the source {name!r} reads, which is "
                f"{', '.join(sorted(places))}. Give paths as the query has them, with the same scheme and "
                "bucket. No checkpoint was written."
            )
    entries = [
        json.dumps(
            {"path": uri, "timestamp": modified, "batchId": 0}, separators=(",", ":"), ensure_ascii=False
        )
        for uri, modified in sorted(times.items(), key=lambda file: (file[1], file[0]))
    ]
    # With an interval of 1 Spark compacts the first entry, too.
    file = "0.compact" if "0.compact" in names else "0"
    return SourceLog('{"logOffset":0}', {file: "\n".join(["v1", *entries]).encode()})


def _modified(url: str, listings: dict[str, dict[str, FileStatus]]) -> dict[str, int]:
    """Return times of files in milliseconds by URI, as Spark lists a file or what is below a directory."""
    files, path = open_file_system(url)
    path = path.rstrip("/")
    with failing_to("list", files, path):
        if files.is_directory(path):
            statuses = [status for status in files.list_files(path) if _is_read(status.path[len(path) + 1 :])]
        else:
            directory = parent_of(path)
            if directory not in listings:
                listings[directory] = {status.path: status for status in _listing(files, directory)}
            statuses = [listings[directory][path]] if path in listings[directory] else []
    if not statuses:
        raise OptionError(
            f"there is no file {url}, and no directory with files. Give the paths that the query reads, and "
            "an empty list if no file is done. No checkpoint was written."
        )
    start = f"file://{path}" if files.scheme == "file" else url.strip().rstrip("/")
    times = {}
    for status in statuses:
        if status.modified is None:
            raise OptionError(
                f"the storage of {url} has no times of modification, by which Spark tells files that it has "
                "read. Run the query over these files instead. No checkpoint was written."
            )
        # A float has no exact milliseconds.
        times[_as_uri(start + status.path[len(path) :])] = round(status.modified * 1_000_000) // 1000
    return times


def _listing(files: Any, directory: str) -> list[FileStatus]:
    try:
        listing: list[FileStatus] = files.list_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return listing


def _is_read(relative: str) -> bool:
    """Return False for files that Spark hides."""
    return not any(
        part.startswith(".") or (part.startswith("_") and "=" not in part) or part.endswith("._COPYING_")
        for part in relative.split("/")
    )


def _as_uri(url: str) -> str:
    """Return the URI that Hadoop's class Path makes of a URL: characters beyond ASCII stay."""
    scheme, colon, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{colon}{authority}{slash}{''.join(map(_escaped, path))}"


def _escaped(character: str) -> str:
    return character if character.isprintable() and not character.isascii() else quote(character, _SAFE)


def _place(uri: str) -> str:
    """Return scheme and authority of a URI."""
    scheme, _, rest = uri.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _places(checkpoint: QueryCheckpoint, name: str, names: Sequence[str]) -> set[str]:
    """Return the schemes and authorities of the files that the run has read."""
    return {
        _place(parse_json(line)["path"])
        for data in _logs(checkpoint, name, names)
        for line in data.decode().split("\n")[1:]
        if line
    }


def _logs(checkpoint: QueryCheckpoint, name: str, names: Sequence[str]) -> Iterator[bytes]:
    for file in log_files(names):
        yield read_file(checkpoint.files, join(checkpoint.path(SOURCES, name), file))
