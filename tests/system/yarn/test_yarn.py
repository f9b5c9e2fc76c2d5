"""Stateful queries on YARN lose no row with an executor: client mode, and cluster mode as the page has it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

import spark_statestore
from tests.support.bare import FOR_S3, bare_python, environment_without_settings
from tests.support.commands import build
from tests.support.commands import run as run_program
from tests.support.paths import ROOT
from tests.support.s3 import environment_of, new_bucket, s3_service
from tests.support.services.service import PYSPARK_JARS
from tests.support.services.yarn import Yarn, yarn
from tests.system.yarn.program import QUERIES
from tests.system.yarn.runs import PROGRAM, Run, merged_files

pytestmark = [pytest.mark.yarn, pytest.mark.timeout(1800)]

SPARK_HOME = PYSPARK_JARS.parent

SHIPPED = "./environment/bin/python"
"""Interpreter of the environment that the page ships, in a container."""


@pytest.fixture(scope="session")
def cluster() -> Iterator[Yarn]:
    with yarn() as running:
        yield running


@pytest.mark.parametrize("storage", ["files", "s3"])
def test_configured_session_in_client_mode_is_exact_through_the_kill_of_an_executor(
    built: Path, cluster: Yarn, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = bare_python(tmp_path / "bare", *FOR_S3)
    with location(storage, tmp_path, monkeypatch) as (checkpoints, environment):
        run = Run(cluster, tmp_path)
        settings = run.confs | {
            "spark.pyspark.python": str(python),
            **{f"spark.executorEnv.{name}": value for name, value in environment.items()},
            "spark.driver.host": "127.0.0.1",
        }
        command = [sys.executable, PROGRAM, tmp_path, checkpoints, json.dumps(settings)]
        with run.started(command, os.environ):
            backends = run.backends()
            assert backends
            for backend in backends:
                assert backend.cmdline()[0] == str(python)
                assert_imports_shipped_files(backend)
            victim = run.kill_an_executor()
        run.check_output(victim)
        check_commits(checkpoints, storage)


def test_configured_session_with_a_shipped_environment_is_exact_through_the_kill_of_an_executor(
    environment: Path, cluster: Yarn, tmp_path: Path
) -> None:
    run = Run(cluster, tmp_path)
    archive = {"spark.archives": f"{environment}/environment.tar.gz#environment"}
    settings = json.dumps(run.confs | archive | {"spark.driver.host": "127.0.0.1"})
    checkpoints = str(tmp_path / "checkpoints")
    command = [sys.executable, PROGRAM, tmp_path, checkpoints, settings]
    with run.started(command, os.environ | {"PYSPARK_PYTHON": SHIPPED}):
        backends = run.backends()
        assert backends
        for backend in backends:
            assert backend.cmdline()[0] == SHIPPED
        victim = run.kill_an_executor()
    run.check_output(victim)
    check_commits(checkpoints, "files")


@pytest.mark.parametrize("storage", ["files", "s3"])
def test_program_submitted_as_the_page_has_it_is_exact_through_the_kill_of_an_executor(
    environment: Path, cluster: Yarn, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with location(storage, tmp_path, monkeypatch) as (checkpoints, variables):
        run = Run(cluster, tmp_path)
        settings = run.confs | {
            f"spark.{process}.{name}": value
            for process in ("executorEnv", "yarn.appMasterEnv")
            for name, value in variables.items()
        }
        options = " ".join(shlex.quote(f"--conf={key}={value}") for key, value in settings.items())
        names = {
            "spark-submit ": f"{SPARK_HOME}/bin/spark-submit {options} ",
            "conf/spark-defaults-s3": f"{ROOT}/conf/spark-defaults-{'s3' if storage == 's3' else 'local'}",
            "--spark 4.3.0": f"--spark {version('pyspark')}",
            " program.py": f" {PROGRAM} {tmp_path} {checkpoints}",
            " environment": f" {environment}/environment",
            "$(environment": f"$({environment}/environment",
        }
        command = ["bash", "-ec", replaced(page_commands()[-1], names)]
        with run.started(command, environment_without_settings() | {"SPARK_HOME": str(SPARK_HOME)}):
            backends = run.backends()
            assert backends
            for backend in backends:
                assert backend.cmdline()[0] == SHIPPED
                assert "statestore" not in backend.environ()["PYTHONPATH"]
            victim = run.kill_an_executor()
        run.check_output(victim)
        check_commits(checkpoints, storage)


@pytest.fixture(scope="session")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the environment of the page, with this checkout in the place of the release."""
    directory = tmp_path_factory.mktemp("environment")
    wheel = build("wheel", directory)
    names = {"python3 ": f"{sys.executable} ", "'spark-statestore[s3]'": f"'{wheel}[s3]'"}
    script = replaced("\n".join(page_commands()[:-1]), names)
    run_program(["bash", "-ec", script], cwd=directory, env=environment_without_settings())
    return directory


def page_commands() -> list[str]:
    """Return the commands of the page by which an environment is shipped; the last one submits a program."""
    section = (ROOT / "docs/clusters.md").read_text().partition("## Submit")[2].partition("\n## ")[0]
    in_cluster_mode = section[section.index("python3 -m venv") : section.index("In client mode the driver")]
    commands = in_cluster_mode.replace("\\\n", "")
    lines = [line.strip() for line in f"       {commands}".splitlines() if line.startswith("       ")]
    assert [re.split(r"[ /]", line)[0] for line in lines] == [
        "python3",
        "environment",
        "environment",
        "spark-submit",
    ]
    return lines


def replaced(command: str, names: Mapping[str, str]) -> str:
    """Return a command of the page with names of this machine, in the place of others that it has."""
    for name, value in names.items():
        assert name in command, (name, command)
        command = command.replace(name, value)
    return command


def assert_imports_shipped_files(backend: psutil.Process) -> None:
    """Check that a backend imports nothing but what its container has."""
    paths = backend.environ()["PYTHONPATH"].split(os.pathsep)
    assert all(Path(entry).is_relative_to(backend.cwd()) for entry in paths)
    assert f"spark_statestore-{spark_statestore.__version__}.zip" in {Path(entry).name for entry in paths}


@contextlib.contextmanager
def location(
    storage: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the location of the checkpoints, and the environment that processes need for it."""
    if storage == "files":
        yield str(directory / "checkpoints"), {}
        return
    with s3_service() as url:
        yield f"s3://{new_bucket(url, monkeypatch)}", environment_of(url)


def check_commits(checkpoints: str, storage: str) -> None:
    """Check that each checkpoint is whole, and what ``commit=auto`` is there."""
    for name in QUERIES:
        checkpoint = f"{checkpoints}/{name}"
        assert spark_statestore.verify(checkpoint).ok
        # By task in local files, else by batch.
        assert bool(merged_files(checkpoint)) == (storage == "s3")
