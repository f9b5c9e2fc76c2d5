"""Every option, in one table.

The table checks what a user sets, is written into the jar so that the JVM checks the same, and is
the table of the documentation (`as_markdown`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spark_statestore.errors import OptionError

__all__ = ["OPTIONS", "OPTION_PREFIX", "Option", "StorageOptions", "check", "parse_size"]

OPTION_PREFIX = "spark.sql.streaming.stateStore.backend."
"""Where the options live: only keys below ``spark.sql.streaming.stateStore.`` reach a provider."""

MAX_FILE_STATE_THRESHOLD = 256 * 1024 * 1024
"""The most bytes of state that can be kept inside the metadata; Flink's bound is 1 MiB.

Flink's metadata goes through one coordinator. Here each store has its own, and one object is cheaper than two.
"""

DEFAULT_FILE_STATE_THRESHOLD = 20 * 1024
"""Flink's default of what is kept inside the metadata, in bytes: that of operator state."""

DEFAULT_INLINE_CHANGES = 32 * 1024 * 1024
"""The default of what a commit of a store keeps inside the metadata, in bytes."""

DEFAULT_STORAGE_RETRIES = 5
"""How often a call of remote storage is made again by default."""

DEFAULT_STORAGE_TIMEOUT = 120
"""Seconds that a call of storage may take by default."""

_SIZE = re.compile(r"\s*(\d+)\s*(b|[kmg]i?b?)?\s*", re.IGNORECASE)
_UNITS = {"b": 0, "k": 10, "m": 20, "g": 30}


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes
    ----------
    name
        The last part of its key, below ``OPTION_PREFIX``.
    type
        ``text``, ``choice``, ``integer``, ``size`` (bytes, with k, m or g for powers of 1024) or
        ``boolean``.
    default
        As the documentation shows it.
    meaning
        One line.
    choices, least, most
        The values it can have; sizes are in bytes.
    """

    name: str
    type: Literal["text", "choice", "integer", "size", "boolean"]
    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None

    @property
    def key(self) -> str:
        """The full name in Spark's configuration."""
        return OPTION_PREFIX + self.name


OPTIONS: tuple[Option, ...] = (
    Option(
        "storage",
        "choice",
        "filesystem",
        "where state is checkpointed: `filesystem`; or `memory`, inside the metadata, which the driver keeps",
        choices=("filesystem", "memory"),
    ),
    Option(
        "checkpointsDir",
        "text",
        "the query's own state directory",
        "fsspec URL; the state of a query lies below it under the query's id. "
        "With `memory`: where metadata is written, so that it outlives the application",
    ),
    Option("savepointsDir", "text", "none", "default target of savepoints, an fsspec URL"),
    Option(
        "maxStateSize",
        "size",
        "5m",
        "`memory` only: the most bytes that one state may take",
        least=1,
    ),
    Option(
        "fileStateThreshold",
        "size",
        "32m",
        "at most so many bytes of what a commit changes lie inside of its metadata object; more goes to a file "
        "of its own. The backend holds so much in memory for each commit under way",
        least=0,
        most=MAX_FILE_STATE_THRESHOLD,
    ),
    Option(
        "snapshotInterval",
        "integer",
        "spark.sql.streaming.stateStore.minDeltasForSnapshot",
        "versions between full snapshots",
        least=1,
        most=1_000_000,
    ),
    Option(
        "numRetained",
        "integer",
        "spark.sql.streaming.minBatchesToRetain",
        "versions kept loadable behind the newest",
        least=1,
        most=1_000_000_000,
    ),
    Option(
        "compression",
        "choice",
        "zstd",
        "of the Arrow buffers in storage",
        choices=("none", "lz4", "zstd"),
    ),
    Option(
        "fsync",
        "boolean",
        "false",
        "local files: sync files and directories before a commit returns",
    ),
    Option(
        "storageTimeoutSeconds",
        "integer",
        "120",
        "so long a call of storage may take, or a backend be silent; then the batch fails, and its task can be run "
        "again. The largest file that is written in one go must fit in",
        least=1,
        most=86_400,
    ),
    Option(
        "storageRetries",
        "integer",
        "5",
        "how often a call of storage is made again that failed for the moment (a connection that broke, 429, 500, "
        "502, 503, 504), with pauses of 0.1 s to 10 s that grow. Local files are never tried again",
        least=0,
        most=20,
    ),
    Option(
        "maxHeapBytes",
        "size",
        "half of the largest heap",
        "what all stores of a JVM together may have of its heap; state beyond that lies in mapped files in Spark's "
        "local directory. Set alike for all queries of an application: the store that was opened last says it",
        least=0,
    ),
    Option(
        "python",
        "text",
        "spark.pyspark.python, else PYSPARK_PYTHON, else python3",
        "interpreter that runs the backend, the same path on every executor",
    ),
)

_BY_NAME = {option.name: option for option in OPTIONS}


def parse_size(value: str) -> int | None:
    """Bytes of a size such as ``20k``, ``5MiB`` or ``1048576``; None if it is no size."""
    match = _SIZE.fullmatch(value)
    if match is None:
        return None
    return int(match[1]) << _UNITS[(match[2] or "b")[0].lower()]


def check(name: str, value: object) -> str:
    """Check one option.

    Parameters
    ----------
    name
        The option's name without prefix.
    value
        A string as in Spark's configuration, or a fitting Python value.

    Returns
    -------
    str
        The value as it goes into Spark's configuration.

    Raises
    ------
    OptionError
        If there is no such option, or the value does not fit it.
    """
    option = _BY_NAME.get(name)
    if option is None:
        close = [n for n in _BY_NAME if n.lower() == name.replace("_", "").lower()]
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise OptionError(
            f"{name!r} is not an option of spark-statestore. {hint}"
            f"The options are: {', '.join(sorted(_BY_NAME))}."
        )
    text = _as_text(option, value)
    problem = _problem(option, text)
    if problem:
        raise OptionError(f"{option.key!r} is {value!r}, but it must be {problem}.")
    return text


def _as_text(option: Option, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value).strip()
    raise OptionError(
        f"{option.key!r} is {value!r} of type {type(value).__name__}, "
        "but it must be a string, a number or a boolean."
    )


def _problem(option: Option, text: str) -> str | None:
    match option.type:
        case "text":
            return None if text else "not empty"
        case "choice":
            return None if text in option.choices else f"one of {', '.join(option.choices)}"
        case "boolean":
            return None if text in ("true", "false") else "true or false"
        case "integer":
            number = int(text) if re.fullmatch(r"[+-]?\d+", text) else None
            form = "a whole number"
        case "size":
            number = parse_size(text)
            form = "a size such as 20k, 5m or 1048576"
    if number is None:
        return form
    if option.least is not None and number < option.least:
        return f"{form} of at least {option.least}"
    if option.most is not None and number > option.most:
        return f"{form} of at most {option.most}"
    return None


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """The options that decide how the backend stores state, with their values.

    Attributes
    ----------
    storage
        ``filesystem`` or ``memory``.
    checkpoints_dir
        fsspec URL, None for the query's own directory.
    max_state_size, file_state_threshold
        Bytes.
    compression
        Codec of the Arrow buffers, None for none.
    fsync
        Whether local files are synced before a commit returns.
    storage_timeout
        Seconds that a call of storage may take.
    storage_retries
        How often a call of remote storage is made again.
    """

    storage: str = "filesystem"
    checkpoints_dir: str | None = None
    max_state_size: int = 5 * 1024 * 1024
    file_state_threshold: int = DEFAULT_INLINE_CHANGES
    compression: str | None = "zstd"
    fsync: bool = False
    storage_timeout: int = DEFAULT_STORAGE_TIMEOUT
    storage_retries: int = DEFAULT_STORAGE_RETRIES

    @property
    def is_kept_elsewhere(self) -> bool:
        """Whether neither state nor metadata lies in files: then Spark's driver keeps both."""
        return self.storage == "memory" and self.checkpoints_dir is None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StorageOptions:
        """Take the storage options out of checked or unchecked strings.

        Raises
        ------
        OptionError
            If one is unknown or does not fit.
        """
        values = {name: check(name, value) for name, value in given.items()}
        compression = values.get("compression", "zstd")
        return cls(
            storage=values.get("storage", "filesystem"),
            checkpoints_dir=values.get("checkpointsDir"),
            max_state_size=parse_size(values.get("maxStateSize", "5m")) or 0,
            file_state_threshold=parse_size(values.get("fileStateThreshold", "32m")) or 0,
            compression=None if compression == "none" else compression,
            fsync=values.get("fsync", "false") == "true",
            storage_timeout=int(values.get("storageTimeoutSeconds", DEFAULT_STORAGE_TIMEOUT)),
            storage_retries=int(values.get("storageRetries", DEFAULT_STORAGE_RETRIES)),
        )


def as_json(options: Iterable[Option] = OPTIONS) -> str:
    """The table as the jar carries it."""
    rows: list[dict[str, Any]] = []
    for option in options:
        row: dict[str, Any] = {"name": option.name, "type": option.type}
        if option.choices:
            row["choices"] = list(option.choices)
        if option.least is not None:
            row["least"] = option.least
        if option.most is not None:
            row["most"] = option.most
        rows.append(row)
    return json.dumps(rows, indent=1)


def as_markdown(options: Iterable[Option] = OPTIONS) -> str:
    """The table as the documentation shows it."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    lines += [f"| {o.name} | {o.default} | {o.meaning} |" for o in options]
    return "\n".join(lines)
