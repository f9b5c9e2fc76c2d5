"""``doctor`` and ``jar``: whether this machine has what the state store needs."""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

import spark_statestore
from spark_statestore._version import __version__
from spark_statestore.cli.output import FAILED, Output, table, with_output
from spark_statestore.errors import StateStoreError

__all__ = ["Check", "doctor", "jar"]

_JAVA: Final = 17
_SECONDS: Final = 60

_IMPORTS: Final = (
    "import json, sys, pyarrow, fsspec, numpy, spark_statestore; "
    "print(json.dumps([sys.version.split()[0], pyarrow.__version__, fsspec.__version__, spark_statestore.__version__]))"
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes
    ----------
    name
        What.
    ok
        Whether it is as it has to be.
    detail
        What was found, and what to do if it does not fit.
    """

    name: str
    ok: bool
    detail: str


class _Failed(Exception):
    """A check that failed, with what to do."""


@click.command("doctor")
@click.argument("storage", required=False)
@click.option(
    "--python", metavar="PATH", help="Interpreter of the backend.  [default: PYSPARK_PYTHON, else this one]"
)
@with_output
def doctor(out: Output, storage: str | None, python: str | None) -> None:
    """Check Java, Spark, the jar, the interpreter of the backend, and a storage.

    STORAGE is a directory or URL in which state is to be kept, as checkpointLocation or checkpointsDir: a state is
    written below it, read, and removed again. By default that is tried in a temporary directory. The exit code is 1
    if anything is not as it has to be.
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
    found = []
    with out.progress("checking") as progress:
        for number, (name, look) in enumerate(checks):
            progress(number, len(checks))
            found.append(_checked(name, look))
    rows = [(check.name, "ok" if check.ok else "FAILED", check.detail) for check in found]
    out.result({"ok": all(check.ok for check in found), "checks": found}, table(["check", "", "found"], rows))
    if not all(check.ok for check in found):
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
    except (_Failed, StateStoreError, OSError, subprocess.SubprocessError) as error:
        return Check(name, False, str(error))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None or not Path(java).exists():
        raise _Failed(
            f"there is no {java or 'java on the PATH'}: install Java {_JAVA}, or set JAVA_HOME to where it is"
        )
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_SECONDS, check=False)
    match = re.search(r'version "(\d+)([^"]*)"', done.stderr)
    if match is None:
        raise _Failed(f"{java} does not say its version: {done.stderr.strip() or done.stdout.strip()}")
    if int(match[1]) < _JAVA:
        raise _Failed(f"{java} is Java {match[1]}{match[2]}: Spark 4 needs Java {_JAVA} or newer")
    return f"Java {match[1]}{match[2]}, {java}"


def _spark() -> str:
    try:
        from pyspark.version import __version__ as version
    except ImportError as error:
        raise _Failed(
            "PySpark is not installed in this interpreter: pip install 'spark-statestore[spark]'. State can be read, and "
            "savepoints can be taken, without it"
        ) from error
    return f"PySpark {version}"


def _jar() -> str:
    path = spark_statestore.jar_path()
    with zipfile.ZipFile(path) as archive:
        properties = archive.read("spark-statestore.properties").decode()
    match = re.search(r"^version=(.+)$", properties, re.MULTILINE)
    if match is None or match[1].strip() != __version__:
        raise _Failed(
            f"{path} is of spark-statestore {match[1].strip() if match else 'unknown'}, and this package is {__version__}: "
            "install the package again"
        )
    return path


def _interpreter(python: str) -> str:
    done = subprocess.run(
        [python, "-c", _IMPORTS],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env=_environment(),
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise _Failed(f"{python} cannot run the backend: {last[0]}: install pyarrow and fsspec for it")
    version, pyarrow, fsspec, package = json.loads(done.stdout)
    if package != __version__:
        raise _Failed(
            f"{python} has spark-statestore {package}, and this one is {__version__}: install the same"
        )
    return f"Python {version}, pyarrow {pyarrow}, fsspec {fsspec}, {python}"


def _backend(python: str) -> str:
    """Start a backend as the JVM does, and end it again."""
    with tempfile.TemporaryDirectory(prefix="spark-statestore-") as directory:
        process = subprocess.Popen(
            [python, "-m", "spark_statestore.server", "--listen", str(Path(directory, "socket"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=_environment(),
        )
        # The token first: the backend is not closed by the end of its input before it has said hello.
        timer = threading.Timer(_SECONDS, process.kill)
        timer.start()
        with process:
            assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
            process.stdin.write(f"{secrets.token_hex()}\n")
            process.stdin.flush()
            line = process.stdout.readline()
            process.stdin.close()
            process.wait()
        timer.cancel()
    said = json.loads(line) if line else {}
    if not said.get("ready"):
        raise _Failed(f"the backend does not start: {said.get('error', 'it says nothing')}")
    return f"version {said['version']}, protocol {said['protocol']}"


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


def _round_trip(url: str) -> str:
    """Commit a version of a store, read it, and remove it."""
    import pyarrow as pa

    from spark_statestore.checkpoint.files import join, open_file_system
    from spark_statestore.checkpoint.metadata import NamedState, StoreId
    from spark_statestore.checkpoint.storage import CheckpointName
    from spark_statestore.checkpoint.versions import VersionStore
    from spark_statestore.options import StorageOptions
    from spark_statestore.state.changes import CHANGE_SCHEMA, PUT

    place = join(url, f"spark-statestore-doctor-{secrets.token_hex(6)}")
    files, path = open_file_system(place)
    row = secrets.token_bytes(32)
    batch = pa.record_batch([[PUT], [row], [row]], schema=CHANGE_SCHEMA)
    empty = '{"type":"struct","fields":[]}'
    states = (NamedState("default", 1, empty, empty, "hash", 0),)
    name = CheckpointName(1, secrets.token_hex(8))
    # Once inside of the metadata, and once in a file of its own.
    for threshold in (1 << 20, 0):
        store = VersionStore(
            StoreId(0, 0), join(place, str(threshold)), StorageOptions(file_state_threshold=threshold)
        )
        try:
            pending = store.begin(name, str(name.id), states)
            pending.write(0, batch.serialize())
            pending.publish(None, None, None)
            read = [change for _, change in store.read(name, store.load(name))]
            if [change.to_pydict() for change in read] != [batch.to_pydict()]:
                raise _Failed(f"{place} gave back something else than what was written there")
        finally:
            files.delete_directory(path, recursive=True)
    if files.exists(path) and any(files.list_files(path)):
        raise _Failed(f"what was written to {place} could not be removed again: delete it by hand")
    return f"written, read and removed: {place}"
