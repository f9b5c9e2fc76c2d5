"""Exports of the package, and its behaviour without optional dependencies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import spark_statestore
from spark_statestore import errors
from tests.support.commands import run

PACKAGE = Path(spark_statestore.__file__).parent

CLASSES = {"EXTENSIONS", "FILE_MANAGER", "PLUGIN", "PROVIDER"}
SESSIONS = {"StateView", "attach", "configure", "jar_path", "progress"}
STATE = {"ConvertedState", "decode_rows", "diff_state", "encode_rows", "iter_state", "read_state"}
STATE |= {"Absence", "Erasure", "erase", "verify_absent"}
STATE |= {"Migration", "WrittenState", "aggregation_state", "bootstrap", "migrate", "write_state"}
SAVEPOINTS = {"Savepoint", "dispose_savepoint", "list_savepoints", "load_savepoint", "savepoint"}
SAVEPOINTS |= {"begin_output", "clone", "restore", "trigger_savepoint"}
MAINTENANCE = {"Conversion", "convert", "gc", "repair", "rescale", "rollback", "verify"}


def modules() -> list[str]:
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = ("spark_statestore", *path.relative_to(PACKAGE).with_suffix("").parts)
        if parts[-1] != "__main__":
            names.append(".".join(parts).removesuffix(".__init__"))
    return names


def output_of(program: str, *paths: Path) -> str:
    path = os.pathsep.join([*map(str, paths), str(PACKAGE.parent)])
    command = [sys.executable, "-W", "error", "-c", program]
    return run(command, env=os.environ | {"PYTHONPATH": path}).stdout


def test_package_exports_exactly_the_documented_names_and_every_error() -> None:
    classes = {f"{name}_CLASS" for name in CLASSES}
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    named = classes | SESSIONS | STATE | SAVEPOINTS | MAINTENANCE | raised | {"__version__"}
    assert sorted(spark_statestore.__all__) == sorted(named)
    assert all(hasattr(spark_statestore, name) for name in named)


# Import-linter shows that the modules have no circles, whichever is imported first.
def test_modules_import_without_spark_and_pandas_and_have_what_they_export(tmp_path: Path) -> None:
    for name in ("pyspark", "pandas", "numpy", "py4j"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not for this test')\n")
    program = f"""
import importlib, sys
for name in {modules()!r}:
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", [])
    assert len(set(listed)) == len(listed), name
    assert all(hasattr(module, entry) for entry in listed), name
assert not {{"pyspark", "pandas", "py4j"}} & set(sys.modules)
"""
    output_of(program, tmp_path)


def test_package_import_loads_no_large_module() -> None:
    loaded = output_of("import sys, spark_statestore; print(*sys.modules)").split()
    assert not {"pyspark", "pandas", "numpy", "pyarrow", "fsspec", "s3fs"} & set(loaded)


def test_jar_without_spark_needs_a_version(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('no pyspark')\n")
    program = """
import spark_statestore
try:
    spark_statestore.jar_path("1.2.3")
except spark_statestore.IncompatibleSparkError as error:
    assert "1.2.3" in str(error)
else:
    raise AssertionError
"""
    output_of(program, tmp_path)
