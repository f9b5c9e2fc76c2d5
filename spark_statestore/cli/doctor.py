"""The commands ``doctor`` and ``jar``: checks of the installation, and the jar's path."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa

import spark_statestore
from spark_statestore._version import __version__, minor_of
from spark_statestore.cli import parameters
from spark_statestore.cli.output import FAILED, Output, table, with_output
from spark_statestore.errors import StateStoreError
from spark_statestore.files import join, open_file_system
from spark_statestore.formats.change_batches import CHANGE_SCHEMA
from spark_statestore.options import StorageOptions
from spark_statestore.query.query_checkpoint import METADATA
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.query.upgrades import obstacles_by_spark
from spark_statestore.session import installed_spark
from spark_statestore.storage import CheckpointName
from spark_statestore.store.changelog import PUT
from spark_statestore.store.commit import begin_checkpoint
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import ColumnFamily, StoreId
from spark_statestore.store.reader import read_version

_JAVA: Final = 17
_SECONDS: Final = 60

_IMPORTS: Final = (
    "import json, sys, pyarrow, fsspec, numpy, spark_statestore; "
    "print(json.dumps([sys.version.split()[0], pyarrow.__version__, fsspec.__version__, "
    "spark_statestore.__version__]))"
)


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check: what was found and, after a failure, the remedy."""

    name: str
    ok: bool
    detail: str


class _Failed(Exception):
    """Raised by a check that fails, with the remedy."""


@click.command("doctor")
@click.argument("storage", required=False)
@click.option(
    "--python", metavar="PATH", help="Interpreter of the backend.  [default: PYSPARK_PYTHON, else this one]"
)
@click.option(
    "--spark",
    metavar="VERSION",
    help="Spark that is to continue the checkpoint, as in 4.2.  [default: the installed PySpark's]",
)
@parameters.checkpoints_dir
@with_output
def doctor(
    out: Output, storage: str | None, python: str | None, spark: str | None, checkpoints_dir: str | None
) -> None:
    """Check Java, Spark, the jar, the interpreter of the backend, a storage, and a query's checkpoint.

    STORAGE is a directory or URL for state, such as a checkpointLocation or checkpointsDir: a test state is
    written below it, read and deleted. The default is a temporary directory. For a checkpointLocation, list
    the Spark versions that can continue the query. The exit code is 1 if a check fails.
    """
    interpreter = python or os.environ.get("PYSPARK_PYTHON") or sys.executable
    checks: list[tuple[str, Callable[[], str]]] = [
        ("Java", _java),
        ("Spark", _spark),
        ("jar", _jar),
        ("interpreter", lambda: _interpreter(interpreter)),
        ("backend", lambda: _backend(interpreter)),
        ("storage", lambda: _storage(storage)),
    ]
    continuing: dict[str, Any] = {}
    if storage is not None and _is_checkpoint(storage):
        checks.append(("checkpoint", lambda: _checkpoint(storage, checkpoints_dir, spark, continuing)))
    elif spark is not None:
        raise click.UsageError("--spark needs the checkpointLocation of a query as STORAGE.")
    results = []
    with out.progress("checking") as progress:
        for number, (name, look) in enumerate(checks):
            progress(number, len(checks))
            results.append(_checked(name, look))
    rows = [(check.name, "ok" if check.ok else "FAILED", check.detail) for check in results]
    node = {"ok": all(check.ok for check in results), "checks": results} | continuing
    out.result(node, table(["check", "", "found"], rows))
    if not all(check.ok for check in results):
        raise click.exceptions.Exit(FAILED)


@click.command("jar")
@click.option("--spark", metavar="VERSION", help="As in 4.3.0.  [default: the installed PySpark's]")
@with_output
def jar(out: Output, spark: str | None) -> None:
    """Print the path of the jar, for spark-submit --jars."""
    path = spark_statestore.jar_path(spark)
    out.result({"jar": path}, path)


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, True, look())
    except (_Failed, StateStoreError) as error:
        return Check(name, False, str(error))
    except Exception as error:  # noqa: BLE001 - the other checks are made and printed all the same
        return Check(name, False, " ".join(f"{type(error).__name__}: {error}".split()))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise _Failed(
            f"there is no {java or 'java on the PATH'}: install Java {_JAVA}, or set JAVA_HOME to where it is"
        )
    process = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    match = re.search(r'version "(\d+)([^"]*)"', process.stderr)
    if match is None:
        raise _Failed(
            f"{java} does not print its version: {process.stderr.strip() or process.stdout.strip()}"
        )
    if int(match[1]) < _JAVA:
        raise _Failed(f"{java} is Java {match[1]}{match[2]}: Spark 4 needs Java {_JAVA} or newer")
    return f"Java {match[1]}{match[2]}, {java}"


def _spark() -> str:
    try:
        from pyspark.version import __version__ as version
    except ImportError as error:
        raise _Failed(
            "PySpark is not installed in this interpreter: pip install 'spark-statestore[spark]'. State can "
            "be read, and savepoints can be taken, without it"
        ) from error
    return f"PySpark {version}"


def _jar() -> str:
    path = spark_statestore.jar_path()
    with zipfile.ZipFile(path) as archive:
        properties = archive.read("spark-statestore.properties").decode()
    match = re.search(r"^version=(.+)$", properties, re.MULTILINE)
    if match is None or match[1].strip() != __version__:
        raise _Failed(
            f"{path} is of spark-statestore {match[1].strip() if match else 'unknown'}, but this package is "
            f"{__version__}: "
            "install the package again"
        )
    return path


def _interpreter(python: str) -> str:
    process = subprocess.run(
        [python, "-c", _IMPORTS],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env=_environment(),
    )
    if process.returncode:
        last = process.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
        raise _Failed(f"{python} cannot run the backend: {last[0]}: install pyarrow and fsspec for it")
    version, pyarrow, fsspec, package = json.loads(process.stdout)
    if package != __version__:
        raise _Failed(
            f"{python} has spark-statestore {package}, but this one is {__version__}: install the same"
        )
    return f"Python {version}, pyarrow {pyarrow}, fsspec {fsspec}, {python}"


def _backend(python: str) -> str:
    """Start a backend as the JVM does, and stop it."""
    with tempfile.TemporaryDirectory(prefix="spark-statestore-") as directory:
        process = subprocess.Popen(
            [python, "-m", "spark_statestore.backend", "--listen", str(Path(directory, "socket"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(),
        )
        timer = threading.Timer(_SECONDS, process.kill)
        timer.start()
        with process:
            assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
            line = process.stdout.readline()
            process.stdin.close()
            process.wait()
        timer.cancel()
    answer = json.loads(line) if line else {}
    if not answer.get("ready"):
        raise _Failed(f"the backend does not start: {answer.get('error', 'it printed nothing')}")
    return f"version {answer['version']}, protocol {answer['protocol']}"


def _environment() -> dict[str, str]:
    root = str(Path(spark_statestore.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{path}" if path else root}


def _storage(url: str | None) -> str:
    with _directory(url) as directory:
        return _round_trip(directory)


@contextmanager
def _directory(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="spark-statestore-") as directory:
        yield directory


def _is_checkpoint(url: str) -> bool:
    try:
        files, path = open_file_system(url)
        return files.exists(join(path.rstrip("/"), METADATA))
    except (OSError, StateStoreError):
        # The check of the storage has the error.
        return False


def _checkpoint(
    url: str, checkpoints_dir: str | None, version: str | None, continuing: dict[str, Any]
) -> str:
    """Tell which Spark versions can continue a query, and fail if the wanted one cannot."""
    obstacles = obstacles_by_spark(open_checkpoint(url, checkpoints_dir=checkpoints_dir))
    continuing["spark"] = {
        spark: {"continues": not reasons, "reasons": reasons} for spark, reasons in obstacles.items()
    }
    able = [spark for spark, reasons in obstacles.items() if not reasons]
    obstacle_texts = _grouped({spark: reasons for spark, reasons in obstacles.items() if reasons})
    summary = "; ".join([f"continues on Spark {', '.join(able) or 'none'}", *obstacle_texts])
    version = version or installed_spark()
    if version is not None and (minor := minor_of(version)) not in able:
        if minor not in obstacles:
            summary += f"; spark-statestore {__version__} does not support Spark {minor}"
        raise _Failed(f"Spark {minor} cannot continue this query: {summary}")
    if not able:
        raise _Failed(summary)
    return summary


def _grouped(obstacles: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return a sentence for all versions that have the same reasons."""
    versions_by_reasons: dict[tuple[str, ...], list[str]] = {}
    for spark, reasons in obstacles.items():
        versions_by_reasons.setdefault(reasons, []).append(spark)
    return [
        f"not on {', '.join(names)}: {'; '.join(reasons)}" for reasons, names in versions_by_reasons.items()
    ]


def _round_trip(url: str) -> str:
    """Commit a version of a store, read it, and delete it."""
    directory = join(url, f"spark-statestore-doctor-{secrets.token_hex(6)}")
    files, path = open_file_system(directory)
    row = secrets.token_bytes(32)
    batch = pa.record_batch([[PUT], [row], [row]], schema=CHANGE_SCHEMA)
    empty = '{"type":"struct","fields":[]}'
    column_families = (ColumnFamily("default", 1, empty, empty, "hash", 0),)
    name = CheckpointName(1, secrets.token_hex(8))
    # Once inline in the metadata, and once in a file of its own.
    for threshold in (1 << 20, 0):
        store = StoreDirectory(
            StoreId(0, 0), join(directory, str(threshold)), StorageOptions(file_state_threshold=threshold)
        )
        try:
            pending = begin_checkpoint(store, name, str(name.id), column_families)
            pending.write(0, batch.serialize())
            pending.publish(None, None, None)
            changes = [change for _, change in read_version(store, name, store.load(name))]
            if [change.to_pydict() for change in changes] != [batch.to_pydict()]:
                raise _Failed(f"{directory} returned other bytes than were written there")
        finally:
            files.delete_directory(path, recursive=True)
    if files.exists(path) and any(files.list_files(path)):
        raise _Failed(f"the files written to {directory} could not be deleted: delete them by hand")
    return f"written, read and removed: {directory}"
