"""Tests of sessions: the settings that `configure` adds, the jar, and the archive for executors."""

from __future__ import annotations

import ast
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_statestore
from spark_statestore import IncompatibleSparkError, SessionError, session
from spark_statestore.errors import OptionError
from spark_statestore.options import OPTION_PREFIX
from tests.support.commands import run
from tests.support.paths import ROOT

CUSTOM_METRICS = "spark.sql.streaming.ui.enabledCustomMetricList"
DRIVER_PYTHON = f"{OPTION_PREFIX}driverPython"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
OURS = spark_statestore.PROVIDER_CLASS
PLUGIN = spark_statestore.PLUGIN_CLASS
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SHIM = ROOT / "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"

PACKAGE = Path(spark_statestore.__file__).parent
MODULES = {
    ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
# Entry points: the backend process, operator state in workers of a Python data source, and rescales.
ROOTS = (
    "spark_statestore.backend.__main__",
    "spark_statestore.operator_state",
    "spark_statestore.savepoints.__main__",
)


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new builder, in the environment of spark-submit, where no JVM is required."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr("spark_statestore.spark_settings._submitted_settings", dict)
    fresh = SparkSession.Builder()
    monkeypatch.setattr(fresh, "_options", {}, raising=False)
    return fresh


MEMORY = {"storage": "memory"}


@pytest.mark.parametrize(
    ("before", "arguments", "name", "value"),
    [
        pytest.param({}, MEMORY, "spark.plugins", PLUGIN, id="plugin for memory"),
        pytest.param({"spark.plugins": "A"}, MEMORY, "spark.plugins", f"A,{PLUGIN}", id="other plugins"),
        pytest.param({}, {}, "spark.plugins", None, id="no plugin for files"),
        pytest.param(
            {}, MEMORY | {"checkpoints_dir": "/x"}, "spark.plugins", None, id="no plugin with a directory"
        ),
        pytest.param(
            {f"{OPTION_PREFIX}checkpointsDir": "/x"}, MEMORY, "spark.plugins", None, id="directory was set"
        ),
        pytest.param({CUSTOM_METRICS: "a"}, {}, CUSTOM_METRICS, "a", id="list of metrics was set"),
        pytest.param({}, {}, PROVIDER, OURS, id="provider"),
        pytest.param(
            {}, {}, FILE_MANAGER, spark_statestore.FILE_MANAGER_CLASS, id="files through the backend"
        ),
        pytest.param({}, {}, DRIVER_PYTHON, sys.executable, id="interpreter of the driver"),
        pytest.param({}, {"spark_files": "hadoop"}, FILE_MANAGER, None, id="files through Hadoop"),
        pytest.param({}, {"spark_files": "hadoop"}, DRIVER_PYTHON, None, id="no interpreter for Hadoop"),
        pytest.param({FILE_MANAGER: "A"}, {}, FILE_MANAGER, "A", id="file manager was set"),
        # The master of a submitted application may be a cluster's.
        pytest.param({}, {}, "spark.python.daemon.module", None, id="Python workers of a submitted program"),
    ],
)
def test_configure_adds_what_is_not_set(
    builder: Any, before: Mapping[str, str], arguments: Mapping[str, str], name: str, value: str | None
) -> None:
    builder.config(map=before)
    for _ in range(2):
        spark_statestore.configure(builder, **arguments)
        assert builder._options.get(name) == value


def test_configure_lists_every_custom_metric_for_sparks_page(builder: Any) -> None:
    spark_statestore.configure(builder)
    source = (SHIM / "provider/StoreMetrics.scala").read_text()
    assert builder._options[CUSTOM_METRICS].split(",") == re.findall(r'Metric\(\s*"(\w+)"', source)


@pytest.mark.parametrize(
    ("before", "arguments", "error", "message"),
    [
        ({PROVIDER: "com.example.AnotherProvider"}, {}, SessionError, "AnotherProvider"),
        ({}, {"python_workers": "slow"}, OptionError, "is 'slow', but it must be 'fast' or 'spark'"),
        ({}, {"spark_files": "fsspec"}, OptionError, "is 'fsspec', but it must be 'backend' or 'hadoop'"),
    ],
)
def test_configure_refuses_another_provider_and_unknown_values(
    builder: Any, before: dict[str, str], arguments: dict[str, str], error: type[Exception], message: str
) -> None:
    builder.config(map=before)
    with pytest.raises(error, match=message):
        spark_statestore.configure(builder, **arguments)
    assert builder._options == before


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("3.5.6", r"does not support Spark 3\.5\.6, only Spark 4\.0, 4\.1, 4\.2, 4\.3"),
        ("4.0.0", r"Spark 4\.0\.0 lacks an interface .*pip install 'pyspark>=4\.0\.1,<4\.1'"),
        ("4.4.0", r"does not support Spark 4\.4\.0"),
    ],
)
def test_unsupported_spark_is_rejected(version: str, message: str) -> None:
    with pytest.raises(IncompatibleSparkError, match=message):
        spark_statestore.jar_path(version)


def test_jar_that_was_not_built_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-statestore-spark-4.3.jar").touch()
    monkeypatch.setattr("spark_statestore.session.__file__", str(tmp_path / "session.py"))
    assert spark_statestore.jar_path("4.3.0").startswith(str(tmp_path))
    missing = r"jars for Spark 4\.3 alone, not for Spark 4\.1\.4.*make wheel"
    with pytest.raises(IncompatibleSparkError, match=missing):
        spark_statestore.jar_path("4.1.4")


@pytest.fixture
def unlaunched(builder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A new builder, in a process that has not launched a JVM."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    monkeypatch.setattr("pyspark.core.context.SparkContext._gateway", None)
    monkeypatch.setattr("spark_statestore.session._shipped_directories", {})
    return builder


@pytest.mark.parametrize("name", ["a#b", "a,b", "a*b", "a?b", "a[b]", "a{b}", "a\\b"])
def test_configure_ships_a_copy_of_a_jar_whose_path_spark_cannot_take(
    unlaunched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    jar = tmp_path / name / "jars" / Path(spark_statestore.jar_path()).name
    jar.parent.mkdir(parents=True)
    jar.write_bytes(name.encode())
    monkeypatch.setattr("spark_statestore.session.__file__", str(tmp_path / name / "session.py"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    spark_statestore.configure(unlaunched)
    shipped = Path(unlaunched._options["spark.jars"])
    assert shipped.read_bytes() == name.encode()
    assert re.fullmatch(r"[\w/.-]+", str(shipped.relative_to(tmp_path)))


def test_configure_ships_the_jar_itself_from_other_paths(unlaunched: Any) -> None:
    spark_statestore.configure(unlaunched)
    assert unlaunched._options["spark.jars"] == spark_statestore.jar_path()


def test_configure_refuses_temporary_files_below_a_path_that_spark_cannot_take(
    unlaunched: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = tmp_path / "a,b"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    with pytest.raises(SessionError, match=r"a,b, has one of .*set the environment variable TMPDIR"):
        spark_statestore.configure(unlaunched)


def test_configure_continues_the_extensions_of_spark_submit(
    builder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "spark_statestore.spark_settings._submitted_settings", lambda: {"spark.sql.extensions": "A,B"}
    )
    spark_statestore.configure(builder)
    assert builder._options["spark.sql.extensions"] == f"A,B,{spark_statestore.EXTENSIONS_CLASS}"


@pytest.mark.parametrize("flag", ["--conf", "-c"])
def test_configure_continues_the_extensions_of_submit_arguments(
    unlaunched: Any, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    arguments = f"{flag} 'spark.sql.extensions=A,B' pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    spark_statestore.configure(unlaunched)
    assert unlaunched._options["spark.sql.extensions"] == f"A,B,{spark_statestore.EXTENSIONS_CLASS}"


# The archive of this package that a session ships to executors


def imports(module: str) -> Iterator[str]:
    """Yield what a module imports when it runs: not what it imports ``if TYPE_CHECKING``."""
    nodes: list[ast.AST] = [ast.parse(MODULES[module].read_text())]
    while nodes:
        match node := nodes.pop():
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                nodes += node.orelse
            case ast.Import(names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(source), names=names, level=level):
                assert level == 0, f"{module}: relative import"
                yield source
                yield from (f"{source}.{name.name}" for name in names)
            case _:
                nodes += ast.iter_child_nodes(node)


def closure() -> set[str]:
    modules: set[str] = set()
    remaining = list(ROOTS)
    while remaining:
        module = remaining.pop()
        if module in MODULES and module not in modules:
            modules.add(module)
            remaining += [*imports(module), module.rpartition(".")[0]]
    return modules


@pytest.fixture(scope="module")
def archive() -> Path:
    return Path(session._package_archive())


def run_with(archive: Path, program: str) -> str:
    """Run a program with the archive alone: not this package, and no working directory, on the path."""
    environment = os.environ | {"PYTHONPATH": str(archive), "PYTHONSAFEPATH": "1"}
    return run([sys.executable, "-c", program], env=environment, cwd=archive.parent).stdout


def test_archive_packages_are_the_import_closure_of_executor_code() -> None:
    top = {module.split(".")[1] for module in closure() if "." in module}
    assert set(session._SHIPPED) == {name for name in top if (PACKAGE / name).is_dir()}


def test_archive_holds_shipped_packages_and_top_modules_alone(archive: Path) -> None:
    names = set(zipfile.ZipFile(archive).namelist())
    assert {str(MODULES[module].relative_to(PACKAGE.parent)) for module in closure()} <= names
    folders = {name.split("/")[1] for name in names if name.count("/") > 1}
    assert folders == set(session._SHIPPED)
    assert all(name.endswith(".py") for name in names)


def test_archive_modules_import_without_the_installed_package(archive: Path) -> None:
    names = sorted(closure() - {ROOTS[0]})
    program = f"""
import importlib, sys
for name in {names!r}:
    module = importlib.import_module(name)
    assert module.__file__.startswith({str(archive)!r}), module.__file__
print(*(name for name in sys.modules if name.startswith("spark_statestore.")))
"""
    loaded = set(run_with(archive, program).split())
    assert loaded <= closure()


def test_executor_code_imports_neither_click_nor_rich() -> None:
    for name in sorted(closure()):
        assert not {module.partition(".")[0] for module in imports(name)} & {"click", "rich"}, name


def test_archive_operator_state_is_checkpointed_and_restored(archive: Path, tmp_path: Path) -> None:
    program = f"""
import pyarrow as pa
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState
numbers = ListStateDescriptor("numbers", pa.int64())
for batch in range(3):
    with QueryOperatorState({str(tmp_path)!r}, "sink").batch(batch) as store:
        state = store.get_list_state(numbers)
        state.add(batch)
        print(*state.get())
"""
    assert run_with(archive, program).splitlines() == ["0", "0 1", "0 1 2"]


def test_driver_only_function_names_itself_and_the_remedy(archive: Path) -> None:
    program = """
import spark_statestore
for name in spark_statestore.__all__:
    try:
        getattr(spark_statestore, name)
    except ModuleNotFoundError as error:
        assert f"spark_statestore.{name} " in str(error)
        assert "on the driver" in str(error)
        print(name)
"""
    assert "write_state" in run_with(archive, program).split()
    assert "configure" not in run_with(archive, program).split()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_archive_ends_with_its_process_and_not_with_a_forked_child() -> None:
    program = """
import os, sys
from spark_statestore import session
archive = session._package_archive()
assert session._package_archive() == archive
if os.fork() == 0:
    assert session._package_archive() != archive
    sys.exit()
assert os.wait()[1] == 0
print(archive, os.path.exists(archive))
"""
    archive, exists = run([sys.executable, "-c", program]).stdout.split()
    assert exists == "True"
    assert not Path(archive).parent.exists()
