"""The table of all options.

It validates what a user sets, for `configure` and for the JVM, which asks a backend; and it is the
table of docs/options.md (`as_markdown`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from spark_statestore.errors import OptionError

__all__ = [
    "OPTIONS",
    "OPTION_PREFIX",
    "PASSWORD",
    "PROVIDER_CLASS",
    "PROVIDER_KEY",
    "Option",
    "StorageOptions",
    "check",
    "parse_size",
]

OPTION_PREFIX = "spark.sql.streaming.stateStore.backend."
"""Prefix of the options' keys: only keys below ``spark.sql.streaming.stateStore.`` reach a provider."""

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
"""Spark's setting with the provider of a query's state stores."""

PROVIDER_CLASS: Final = "org.apache.spark.sql.statestore.CheckpointStateStoreProvider"
"""For ``spark.sql.streaming.stateStore.providerClass``."""

MAX_FILE_STATE_THRESHOLD = 256 * 1024 * 1024
"""Upper bound of ``fileStateThreshold`` in bytes; Flink's is 1 MiB.

Flink's metadata goes through one coordinator. Here each store has its own, and one object is cheaper than
two.
"""

DEFAULT_FILE_STATE_THRESHOLD = 20 * 1024
"""Bytes of operator state that a checkpoint keeps inline in its metadata; Flink's default."""

DEFAULT_INLINE_CHANGES = 32 * 1024 * 1024
"""Bytes of a changelog that a commit keeps inline in its metadata, by default."""

DEFAULT_MIN_DELTAS = 10
"""Spark's default of ``minDeltasForSnapshot``, for stores that no session describes."""

DEFAULT_STORAGE_RETRIES = 5
"""Retries of a transient failure of remote storage, by default."""

DEFAULT_STORAGE_TIMEOUT = 120
"""Timeout of one storage call in seconds, by default."""

DEFAULT_SCRUB_INTERVAL = 24 * 60 * 60
"""Seconds between two verifications of stored state, by default."""

MOST_PARTITIONS: Final = 32_768
"""Largest number of state partitions of a query."""

_NUMBER_OF_PARTITIONS: Final = r"0*(?:[1-9]\d{0,3}|[12]\d{4}|3[01]\d{3}|32[0-6]\d{2}|327[0-5]\d|3276[0-8])"
_PARTITIONS: Final = (
    rf"\s*(?:[^,]+=)?\s*{_NUMBER_OF_PARTITIONS}\s*(?:,\s*[^,]+=\s*{_NUMBER_OF_PARTITIONS}\s*)*"
)

_SIZE = re.compile(r"\s*(\d+)\s*(b|[kmg]i?b?)?\s*", re.IGNORECASE)
_UNITS = {"b": 0, "k": 10, "m": 20, "g": 30}

# A password before a host, in a value that may lack its scheme or its slashes: shown nowhere.
_SECRET_PREFIX = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?+[^@]*:(?!\d+/)[^@]*@")

PASSWORD: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/@:]*:(?!\d+/)[^@]*@")
"""A scheme, a user, a colon and a password before the host of a URL; not a host, a port and a path."""

_DIRECTORY_FORM = (
    "an absolute path or a URL, such as s3://bucket/x (the scheme included) or file:///data/x "
    "(three slashes): "
)
_REFUSED_DIRECTORIES = (
    (
        r"(?is)file://[^/].*",
        _DIRECTORY_FORM + "what follows 'file://' is the name of a host, not a part of the path",
    ),
    # Neither an absolute path, with or without file:, nor a URL, whose scheme has at least two letters.
    (
        r"(?is)(?!(file:)?/|(?!file:)[a-z][a-z0-9+.-]+(::[a-z0-9+.-]+)*://).+",
        _DIRECTORY_FORM
        + "this one is relative to the working directory of each process, so each process would use a "
        "directory of its own",
    ),
)
"""Relative paths are refused: driver and executors have different working directories."""


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
        Default value, as the documentation shows it.
    meaning
        Description, one line.
    choices, least, most
        Valid values; sizes are in bytes.
    refused
        Patterns of invalid values, each with a description of a valid one.
    """

    name: str
    type: Literal["text", "choice", "integer", "size", "boolean"]
    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    refused: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Key in Spark's configuration."""
        return OPTION_PREFIX + self.name


OPTIONS: tuple[Option, ...] = (
    Option(
        "storage",
        "choice",
        "filesystem",
        "checkpoint storage: `filesystem`, or `memory`: state inline in the metadata, which the driver keeps",
        choices=("filesystem", "memory"),
    ),
    Option(
        "checkpointsDir",
        "text",
        "the query's own state directory",
        "fsspec URL or absolute path; each query's state is in a subdirectory named by the query's id. "
        "With `memory`: a directory for metadata, so that the metadata outlives the application",
        refused=_REFUSED_DIRECTORIES,
    ),
    Option(
        "savepointsDir",
        "text",
        "none",
        "default directory of savepoints, an fsspec URL or absolute path",
        refused=_REFUSED_DIRECTORIES,
    ),
    Option(
        "maxStateSize",
        "size",
        "5m",
        "`memory` only: maximum size of one state",
        least=1,
    ),
    Option(
        "fileStateThreshold",
        "size",
        "32m",
        "maximum size of a changelog that a commit stores inline in its metadata object; a larger one is "
        "written to a file of its own. The backend buffers up to this size in memory per concurrent commit",
        least=0,
        most=MAX_FILE_STATE_THRESHOLD,
    ),
    Option(
        "commit",
        "choice",
        "auto",
        "when a commit is durable. `task`: before its task ends, in an object for each partition; `batch`: "
        "before Spark's commit log has the batch, in one object for all partitions, which on a cluster needs "
        "checkpoint format v2; `auto`: `batch` where that is possible and the master is local or the storage "
        "is not local files, else `task`",
        choices=("auto", "task", "batch"),
    ),
    Option(
        "compression",
        "choice",
        "zstd",
        "compression codec of Arrow buffers in storage",
        choices=("none", "zstd"),
    ),
    Option(
        "fsync",
        "boolean",
        "false",
        "local files: fsync files and directories before a commit returns",
    ),
    Option(
        "storageTimeoutSeconds",
        "integer",
        "120",
        "timeout in seconds of one storage call or backend response; the task then fails and Spark may retry "
        "it. "
        "It must suffice to write the largest file",
        least=1,
        most=86_400,
    ),
    Option(
        "storageRetries",
        "integer",
        "5",
        "retries of a transient storage failure (broken connection, HTTP 429, 500, 502, 503, 504), with "
        "exponential backoff from 0.1 s to 10 s. Calls on local files are not retried",
        least=0,
        most=20,
    ),
    Option(
        "localRecovery",
        "text",
        "auto",
        "directory on the disk of each host for local copies of full snapshots, from which a restart loads "
        "the state at once; an absolute path, best on a disk that outlives the executors. `auto`: below "
        "Spark's local directory, unless the storage is local files or that directory a tmpfs; `off`: no "
        "copies",
        refused=(
            (
                r"(?s)(?!/|auto$|off$).*",
                "auto, off, or the absolute path of a directory on each host",
            ),
        ),
    ),
    Option(
        "localRecoveryMaxBytes",
        "size",
        "64g",
        "most bytes of local copies in that directory on one host, after which those that were not used for "
        "longest are removed. None is written where a tenth of the disk would not stay free",
        least=0,
    ),
    Option(
        "scrubIntervalSeconds",
        "integer",
        "86400",
        "seconds between two verifications of a running query's stored state, in the background and at most "
        "16 MiB/s in each executor. After damage the next commit writes the whole state from memory. 0: none",
        least=0,
        most=31_536_000,
    ),
    Option(
        "rebalance",
        "boolean",
        "true",
        "on a cluster: state moves to executors that join, until each has its share, and away from those "
        "that leave. An executor loads a partition while the old one still serves it",
    ),
    Option(
        "maxHeapBytes",
        "size",
        "half of the largest heap",
        "heap that all stores of a JVM may use together, indexes included. They use less while Spark's "
        "cached tables, sorts and joins or other objects need the heap. Rows beyond the limit are moved to "
        "memory-mapped files in Spark's local directory, at the latest when the stores use a quarter more "
        "than it; indexes stay in the heap as far as they fit. Per JVM: the last opened store wins, so set "
        "it alike for all queries of an application",
        least=0,
    ),
    Option(
        "partitions",
        "text",
        "the number of the query's first batch",
        "number of state partitions of the queries that the session starts, from 1 to 32768; or numbers by "
        "name of the query, as in `orders=64,clicks=16`. A query that has another number is "
        "rescaled before its first batch, which needs checkpoint format v2",
        refused=(
            (
                rf"(?s)(?!{_PARTITIONS}$).*",
                f"a number from 1 to {MOST_PARTITIONS}, or such numbers by name: orders=64,clicks=16",
            ),
        ),
    ),
    Option(
        "python",
        "text",
        "spark.pyspark.python, else PYSPARK_PYTHON, else python3",
        "Python interpreter of the backend, at the same path on every executor",
    ),
    Option(
        "driverPython",
        "text",
        "the interpreter that calls `configure`, else that of `python`",
        "Python interpreter of the driver's backend, which reads and writes Spark's own files of a "
        "checkpoint",
    ),
    Option(
        "realTimeMode",
        "boolean",
        "false",
        "use this store for queries in real-time mode, which Spark 4.3 refuses in a session that sets "
        "`providerClass` to this store: such a session leaves `providerClass` as it is",
    ),
)

_BY_NAME = {option.name: option for option in OPTIONS}


def parse_size(value: str) -> int | None:
    """Return the bytes of a size such as ``20k``, ``5MiB`` or ``1048576``; None if it is not a size."""
    match = _SIZE.fullmatch(value)
    if match is None:
        return None
    return int(match[1]) << _UNITS[(match[2] or "b")[0].lower()]


def check(name: str, value: object) -> str:
    """Validate one option and return its value for Spark's configuration.

    Parameters
    ----------
    name
        The option's name without prefix.
    value
        A string as in Spark's configuration, or a Python value of the option's type.

    Returns
    -------
    str
        The value as it goes into Spark's configuration.

    Raises
    ------
    OptionError
        If there is no such option, or the value is invalid.
    """
    option = _BY_NAME.get(name)
    if option is None:
        close = [n for n in _BY_NAME if n.lower() == name.replace("_", "").lower()]
        hint = f"Did you mean {OPTION_PREFIX + close[0]!r}? " if close else ""
        raise OptionError(
            f"{OPTION_PREFIX + name!r} is not an option of spark-statestore. {hint}"
            f"The options are: {', '.join(sorted(_BY_NAME))}."
        )
    text = _as_text(option, value)
    if option.type == "text" and PASSWORD.match(text):
        raise OptionError(
            f"{option.key!r} is a URL that contains a password. Spark shows its settings in its UI: take the "
            "password out. "
            "Credentials come from the environment of the executors, or from fsspec's configuration files."
        )
    problem = _problem(option, text)
    if problem:
        shown = (
            _SECRET_PREFIX.sub(lambda match: (match[1] or "") + "...@", value)
            if isinstance(value, str)
            else value
        )
        raise OptionError(f"{option.key!r} is {shown!r}, but it must be {problem}.")
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
            if not text:
                return "not empty"
            return next((form for pattern, form in option.refused if re.fullmatch(pattern, text)), None)
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
    """The values of the options that the backend uses.

    Attributes
    ----------
    storage
        ``filesystem`` or ``memory``.
    checkpoints_dir
        fsspec URL; None for the query's own directory.
    max_state_size, file_state_threshold
        Bytes.
    compression
        Codec of Arrow buffers; None for no compression.
    fsync
        Sync local files before a commit returns.
    storage_timeout
        Timeout of one storage call in seconds.
    storage_retries
        Retries of a transient failure of remote storage.
    local_recovery
        ``auto``, ``off``, or the directory of local copies.
    local_recovery_max_bytes
        Most bytes of local copies on this host.
    scrub_interval
        Seconds between two verifications of the newest version; 0 for none.
    partitions
        Number of state partitions, or numbers by name of the query; None to keep what queries have.
    """

    storage: str = "filesystem"
    checkpoints_dir: str | None = None
    max_state_size: int = 5 * 1024 * 1024
    file_state_threshold: int = DEFAULT_INLINE_CHANGES
    compression: str | None = "zstd"
    fsync: bool = False
    storage_timeout: int = DEFAULT_STORAGE_TIMEOUT
    storage_retries: int = DEFAULT_STORAGE_RETRIES
    local_recovery: str = "auto"
    local_recovery_max_bytes: int = 64 << 30
    scrub_interval: int = DEFAULT_SCRUB_INTERVAL
    partitions: str | None = None

    @property
    def is_on_driver(self) -> bool:
        """True if Spark's driver keeps state and metadata, and neither is in files."""
        return self.storage == "memory" and self.checkpoints_dir is None

    def partitions_of(self, query: str | None) -> int | None:
        """Return the number of state partitions of a query with a name; None to keep the one that it has."""
        numbers = {}
        for part in self.partitions.split(",") if self.partitions else ():
            name, _, number = part.rpartition("=")
            numbers[name.strip()] = int(number)
        return numbers.get(query or "", numbers.get(""))

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StorageOptions:
        """Parse the options of a request."""
        values = {name: check(name, value) for name, value in options.items()}
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
            local_recovery=values.get("localRecovery", "auto"),
            scrub_interval=int(values.get("scrubIntervalSeconds", DEFAULT_SCRUB_INTERVAL)),
            local_recovery_max_bytes=parse_size(values.get("localRecoveryMaxBytes", "64g")) or 0,
            partitions=values.get("partitions"),
        )


def as_markdown(options: Iterable[Option] = OPTIONS) -> str:
    """Return the table as Markdown, for docs/options.md."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    lines += [f"| {o.name} | {o.default} | {o.meaning} |" for o in options]
    return "\n".join(lines)
