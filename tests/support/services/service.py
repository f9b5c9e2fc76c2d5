"""Shared parts of the launchers of real storage services: a running service, its process, its cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import fsspec
import pyspark
import pytest

from tests.support.paths import ROOT

CACHE: Final = ROOT / ".services"
"""Directory of the fetched services, one directory for each version."""

PYSPARK_JARS: Final = Path(pyspark.__file__).parent / "jars"

FETCH_SECONDS: Final = float(os.environ.get("FETCH_SECONDS", "1200"))
"""Time limit of fetching a service; 0 to use only what is in the cache. MinIO compiles for minutes."""

START_SECONDS: Final = 120

_LOG_CHARACTERS: Final = 4000


class ServiceUnavailableError(pytest.skip.Exception, Exception):
    """A service cannot be fetched here; the message says why.

    A test that needs it is skipped. To benchmarks it is an error as any other.
    """


@dataclass(frozen=True)
class Service:
    """A running service.

    `environment` has the variables with which a process reaches it, through any driver; `make_container`
    creates a bucket or its like and returns its URL.
    """

    name: str
    scheme: str
    endpoint: str
    environment: Mapping[str, str]
    make_container: Callable[[str], str]

    def new_container(self) -> str:
        """Create an empty bucket, container or directory, and return its URL."""
        return self.make_container(f"test-{uuid.uuid4()}")

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Configure this process and its children for the service until the patch is undone."""
        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(fsspec.config, "conf", {})
        # fsspec does the same when it is imported.
        fsspec.config.set_conf_env(fsspec.config.conf)


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return a directory of the cache, whose name has a version; if it is missing, fill it first."""
    home = CACHE / name
    if not home.exists():
        if not FETCH_SECONDS:
            raise ServiceUnavailableError(f"{name} is not in {CACHE}, where 'make test-storage' keeps it")
        CACHE.mkdir(exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=CACHE))
        try:
            fetch(scratch)
            # It fails if another process was faster; both have the same content.
            with contextlib.suppress(OSError):
                scratch.rename(home)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return home


def run_client(command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a package manager, which may be missing, fail or exceed its time limit."""
    shown = " ".join(command[:4])
    if shutil.which(command[0]) is None:
        raise ServiceUnavailableError(f"{command[0]} is not installed")
    try:
        result = subprocess.run(
            command,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServiceUnavailableError(f"'{shown} ...' took more than {FETCH_SECONDS:.0f} s") from None
    if result.returncode:
        output = result.stdout[-_LOG_CHARACTERS:]
        raise ServiceUnavailableError(f"'{shown} ...' ended with exit code {result.returncode}:\n{output}")


def go_program(package: str, version: str) -> Path:
    """Return a program compiled from a Go module."""
    program = package.rpartition("/")[2]

    def compile_to(directory: Path) -> None:
        run_client(
            ["go", "install", f"{package}@{version}"],
            # Without a C compiler and git.
            {"GOBIN": str(directory), "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"},
        )

    return fetched(f"{program}-{version}", compile_to) / program


def maven_jars(directory: Path, *dependencies: str, transitive: bool = False) -> None:
    """Fetch jars of Maven's repository, if transitive with what they need.

    A dependency is ``group:name:version``, or ``group:name:version:classifier``.
    """
    with tempfile.TemporaryDirectory() as scratch:
        lines = []
        for dependency in dependencies:
            group, name, version, *classifier = dependency.split(":")
            artifact = (
                f'<artifact name="{name}" type="jar" m:classifier="{classifier[0]}"/>' if classifier else ""
            )
            lines.append(
                f'<dependency org="{group}" name="{name}" rev="{version}" '
                f'transitive="{str(transitive).lower()}" '
                f'conf="default->master{",runtime" if transitive else ""}">{artifact}</dependency>'
            )
        Path(scratch, "ivy.xml").write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            '<info organisation="tests" module="service"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
        )
        # PySpark brings Ivy for spark-submit --packages.
        run_client(
            [
                *("java", "-cp", f"{PYSPARK_JARS}/*", "org.apache.ivy.Main", "-warn"),
                *("-cache", f"{scratch}/cache", "-ivy", f"{scratch}/ivy.xml"),
                *("-retrieve", f"{directory}/[artifact]-[revision](-[classifier]).[ext]"),
            ]
        )


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port of an address, by default of the loopback, that no process listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port


def listens(port: int, address: str = "127.0.0.1") -> bool:
    """Return whether a process listens on a port of an address, by default of the loopback."""
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


def answers(url: str) -> bool:
    """Return whether a server answers a request, with whatever status below 500."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code < 500
    except OSError:
        return False


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    ready: Callable[[], bool],
    environment: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
    seconds: float = START_SECONDS,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server for as long as the context, and yield its process; it has to be ready in time.

    It is in the caller's process group, so that signals to the group reach both.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            env=os.environ | dict(environment or {}),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            deadline = time.monotonic() + seconds
            while not ready():
                code = process.poll()
                if code is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                failure = (
                    f"was not ready after {seconds:.0f} s" if code is None else f"ended with exit code {code}"
                )
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_CHARACTERS))
                raise RuntimeError(f"{name} {failure}; its log:\n{log.read().decode(errors='replace')}")
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
