"""The image for Kubernetes: instructions of its Dockerfile, and a query in an image that is really built."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from packaging.specifiers import SpecifierSet

from spark_statestore import __version__
from spark_statestore._version import SUPPORTED_SPARK, minor_of
from tests.support.commands import build, run
from tests.support.paths import ROOT
from tests.system.examples.test_conf import settings

DOCKERFILE = ROOT / "conf/Dockerfile"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROGRAM = Path(__file__).parent / "image_program.py"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# In the likeness of Spark's image; what those have besides, nothing here needs.
PACKAGES = "ca-certificates,openjdk-17-jre-headless,procps,python3,python3-pip,tini"
TOOLS = ("buildah", "debootstrap")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile with their arguments, without comments."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines()) if name]


INSTRUCTIONS = instructions(DOCKERFILE.read_text())
STAGES = [number for number, (name, _) in enumerate(INSTRUCTIONS) if name == "FROM"]
FINAL_STAGE = INSTRUCTIONS[STAGES[-1] :]
DEFAULTS = {rest.partition("=")[0]: rest.partition("=")[2] for name, rest in INSTRUCTIONS if name == "ARG"}
COMMANDS = "\n".join(rest for name, rest in INSTRUCTIONS if name == "RUN")


def variables(stage: list[tuple[str, str]]) -> dict[str, str]:
    pairs = [pair for name, rest in stage if name == "ENV" for pair in rest.split()]
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def test_image_ends_with_the_user_of_spark() -> None:
    # Kubernetes knows a number alone not to be root.
    assert [rest for name, rest in FINAL_STAGE if name == "USER"] == ["185"]


def test_image_adds_only_files_of_the_build_stage() -> None:
    assert [name for name, _ in FINAL_STAGE] == ["FROM", "COPY", "COPY", "ENV", "USER"]
    (interpreter, jar) = (rest.split() for name, rest in FINAL_STAGE if name == "COPY")
    assert interpreter == ["--from=build", "/opt/statestore", "/opt/statestore"]
    assert jar[0] == "--from=build"
    assert jar[2] == "/opt/spark/jars/"
    jars = [f"/opt/spark/jars/spark-statestore-spark-{minor}.jar" for minor in SUPPORTED_SPARK]
    assert fnmatch.filter(jars, jar[1]) == jars


def test_image_has_the_newest_supported_spark() -> None:
    assert minor_of(DEFAULTS["SPARK"]) == SUPPORTED_SPARK[-1]
    assert DEFAULTS["BASE"] == "docker.io/library/spark:${SPARK}-scala2.13-java17-python3-ubuntu"
    assert all(rest.split()[0] == "${BASE}" for name, rest in INSTRUCTIONS if name == "FROM")
    tags = re.findall(r"spark-statestore:([\d.]+)", DOCKERFILE.read_text())
    assert set(tags) == {DEFAULTS["SPARK"]}
    assert settings("kubernetes")["spark.kubernetes.container.image"].endswith(f":{DEFAULTS['SPARK']}")


def test_image_has_a_python_and_extras_of_the_package() -> None:
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{DEFAULTS['PYTHON']}.0")
    assert set(DEFAULTS["EXTRAS"].split(",")) <= PROJECT["optional-dependencies"].keys()


def test_image_installs_the_wheel_of_the_build_context() -> None:
    (pattern,) = re.findall(r"/context/(\S+\.whl)", COMMANDS)
    assert fnmatch.fnmatch(f"spark_statestore-{__version__}-py3-none-any.whl", pattern)
    assert "--wheel-dir dist" in (ROOT / "Makefile").read_text()
    assert re.search(r"docker build -f conf/Dockerfile .* dist$", DOCKERFILE.read_text(), re.MULTILINE)


def test_image_has_the_interpreter_of_the_settings() -> None:
    python = settings("kubernetes")["spark.pyspark.python"]
    environment = variables(FINAL_STAGE)
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == python
    assert environment["PATH"] == f"{Path(python).parent}:$PATH"
    assert f"python={python}" in COMMANDS
    # A directory below root's home would be closed to the user of Spark.
    assert variables(INSTRUCTIONS)["UV_PYTHON_INSTALL_DIR"].startswith("/opt/statestore/")


@dataclass(frozen=True)
class Buildah:
    """Images and containers below a directory, without a daemon and without namespaces."""

    directory: Path

    def __call__(self, command: str, *arguments: str | Path, timeout: float = 900) -> str:
        storage = ["--root", self.directory / "storage", "--runroot", self.directory / "run"]
        program = ["nice", "buildah", *storage, "--storage-driver", "vfs", command, *arguments]
        return run(program, timeout=timeout).stdout.strip()

    def build(self, context: Path, tag: str, **arguments: str) -> None:
        flags = [flag for name, value in arguments.items() for flag in ("--build-arg", f"{name}={value}")]
        self("build", "--isolation", "chroot", "--file", DOCKERFILE, "--tag", tag, *flags, context)

    def run(self, container: str, *command: str, work: Path, **environment: str) -> str:
        """Run a command in a container as its entry point does, as its user, with two directories."""
        flags = [flag for name, value in environment.items() for flag in ("--env", f"{name}={value}")]
        mounts = ["--volume", f"{work}:/work", "--volume", f"{work}/data:/data"]
        return self(
            "run", "--isolation", "chroot", *flags, *mounts, container, "/opt/entrypoint.sh", *command
        )


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        pytest.skip(f"{' and '.join(absent)} not installed: apt-get install {' '.join(TOOLS)}")
    if os.geteuid() != 0:
        pytest.skip("to build an image without a daemon takes root")
    buildah = Buildah(tmp_path_factory.mktemp("buildah"))
    yield buildah
    buildah("rm", "--all")
    shutil.rmtree(buildah.directory)


def copy_spark(target: Path) -> None:
    """Copy the installed PySpark to where Spark's image has the parts of a distribution."""
    source = Path(pyspark.__file__).parent
    parts = ("bin", "jars", "sbin")
    for part in parts:
        shutil.copytree(source / part, target / part)
    shutil.copytree(source / "python/lib", target / "python/lib")
    unused = shutil.ignore_patterns(*parts, "python", "examples", "data", "__pycache__")
    shutil.copytree(source, target / "python/pyspark", ignore=unused)
    (target / "work-dir").mkdir()


@pytest.fixture(scope="module")
def base(buildah: Buildah) -> str:
    """Assemble an image in the likeness of Spark's: user, directories, Java, Python and entry point."""
    container = buildah("from", "scratch")
    root = Path(buildah("mount", container))
    run(["nice", "debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root], timeout=900)
    # Downloaded packages.
    shutil.rmtree(root / "var/cache/apt")
    # A machine behind a proxy has a certificate of its own.
    shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
    copy_spark(root / "opt/spark")
    entrypoint = root / "opt/entrypoint.sh"
    entrypoint.write_text('#!/bin/bash\nexec /usr/bin/tini -s -- "$@"\n')
    entrypoint.chmod(0o755)
    for command in (
        "groupadd --system --gid=185 spark",
        "useradd --system --uid=185 --gid=spark -d /nonexistent spark",
        "chown -R spark:spark /opt/spark",
    ):
        run(["chroot", root, *command.split()])
    buildah("umount", container)
    certificates = [f"--env={name}={CERTIFICATES}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
    configuration = ["--env=SPARK_HOME=/opt/spark", "--user=spark", "--workingdir=/opt/spark/work-dir"]
    buildah("config", *certificates, *configuration, container)
    buildah("commit", "--rm", container, "localhost/base")
    return "localhost/base"


@pytest.fixture(scope="module")
def context(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a build context with the wheel of this checkout."""
    directory = tmp_path_factory.mktemp("context")
    build("wheel", directory)
    return directory


@pytest.fixture(scope="module")
def container(buildah: Buildah, base: str, context: Path) -> str:
    """Build the image with the interpreter of its base, and return a container of it.

    The extra `spark` requires PySpark, which the image must not get a second time.
    """
    python = "/usr/bin/python3.11"
    buildah.build(context, "localhost/statestore", BASE=base, PYTHON=python, EXTRAS="s3,spark")
    return buildah("from", "localhost/statestore")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a directory of the user of the image with program and settings; `data` stands for the volume."""
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    shutil.copy(PROGRAM, work / "program.py")
    shutil.copy(ROOT / "conf/spark-defaults-kubernetes.conf", work)
    for path in (work, work / "data"):
        os.chown(path, 185, 185)
    return work


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_image_has_one_pyspark_and_no_cache(buildah: Buildah, container: str, work: Path) -> None:
    listing = "import importlib.metadata as m; print(*{d.name.lower() for d in m.distributions()})"
    distributions = buildah.run(container, "python", "-c", listing, work=work).split()
    assert {"obstore", "spark-statestore"} <= {*distributions}
    assert {"pip", "pyspark", "uv"} & {*distributions} == set()
    origin = buildah.run(container, "python", "-c", "import pyspark; print(pyspark.__file__)", work=work)
    assert origin == "/opt/spark/python/pyspark/__init__.py"
    root = Path(buildah("mount", container))
    paths = ("context", "overrides", "root/.cache", "root/.local", "uv")
    assert [path for path in paths if (root / path).exists()] == []
    assert [path.name for path in root.glob("opt/spark/jars/spark-statestore*")] == [
        f"spark-statestore-spark-{minor_of(pyspark.__version__)}.jar"
    ]
    # The packages are compiled, as the user of the image cannot write beside them.
    assert list(
        root.glob("opt/statestore/venv/lib/python3.*/site-packages/spark_statestore/__pycache__/*.pyc")
    )
    buildah("umount", container)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_image_runs_a_query_on_executors_with_the_settings(
    buildah: Buildah, container: str, work: Path
) -> None:
    smaller = {
        "spark.executor.cores": "1",
        "spark.executor.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    output = buildah.run(
        container,
        "/opt/spark/bin/spark-submit",
        *("--master", "local-cluster[2,1,1024]"),
        *("--properties-file", "/work/spark-defaults-kubernetes.conf"),
        *(flag for setting in smaller.items() for flag in ("--conf", "=".join(setting))),
        *("/work/program.py", "/work"),
        work=work,
        # As Kubernetes has them, but for the name of the host, which a container without a network has not.
        SPARK_LOCAL_DIRS="/data",
        SPARK_LOCAL_HOSTNAME="localhost",
        SPARK_LOCAL_IP="127.0.0.1",
    )
    answer = json.loads(output.splitlines()[-1])
    assert answer["counts"] == {"one": 4, "two": 2}
    assert answer["metrics"]["checkpointBytesWritten"] > 0
    assert answer["metrics"]["backendRoundTrips"] > 0
    python = settings("kubernetes")["spark.pyspark.python"]
    assert answer["driver"] == answer["task"] == [python, "185"]
    assert answer["pyspark"].startswith("/opt/spark/python/")
    assert answer["spark"] == pyspark.__version__
    assert list(work.glob("checkpoint/state/0/*/chk-*/_metadata"))
