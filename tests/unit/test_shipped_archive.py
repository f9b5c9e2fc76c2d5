"""Tests of the archive of this package that a session ships to executors."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_statestore
from spark_statestore import session

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


def run(archive: Path, program: str) -> str:
    """Run a program with the archive alone: not this package, and no working directory, on the path."""
    environment = os.environ | {"PYTHONPATH": str(archive), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", program]
    process = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=archive.parent
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


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
    loaded = set(run(archive, program).split())
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
    assert run(archive, program).splitlines() == ["0", "0 1", "0 1 2"]


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
    assert "write_state" in run(archive, program).split()
    assert "configure" not in run(archive, program).split()


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
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    archive, exists = process.stdout.split()
    assert exists == "True"
    assert not Path(archive).parent.exists()
