"""Tests that the sources never deserialise objects, evaluate data or run a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.paths import ROOT

PYTHON = sorted((ROOT / "spark_statestore").rglob("*.py"))
SCALA = sorted((ROOT / "jvm-shim/src/main/scala").rglob("*.scala"))

# Each creates objects or code from bytes.
MODULES = re.compile(r"(c|_)?[pP]ickle|cloudpickle|dill|marshal|shelve|jsonpickle|joblib|yaml")
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = re.compile(r"os\.(system|popen)|subprocess\.get(output|statusoutput)|pty\.spawn|commands")
# Unsafe entry points of Arrow and pandas.
ATTRIBUTES = {"read_pickle", "to_pickle", "deserialize_pandas", "PyExtensionType", "unpickle", "loads_pickle"}

# Modules that may start processes, by a list of arguments.
MAY_START = {"backend/partitions.py", "cli/doctor.py"}


def is_unsafe(module: str) -> bool:
    return MODULES.fullmatch(module.partition(".")[0]) is not None


def unsafe_parts(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names if is_unsafe(name.name))
            case ast.ImportFrom(module=str(module)) if is_unsafe(module):
                yield module
            case ast.Call(func=ast.Name(name)) if name in BUILTINS:
                yield name
            case ast.Call(func=ast.Attribute() as called) if CALLS.fullmatch(ast.unparse(called)):
                yield ast.unparse(called)
            case ast.Attribute(attr=name) if name in ATTRIBUTES:
                yield name
            case ast.keyword(arg="shell" | "allow_pickle" as name):
                yield name


def test_python_sources_have_no_pickle_eval_or_shell() -> None:
    assert PYTHON
    for path in PYTHON:
        source = path.read_text()
        assert list(unsafe_parts(source)) == [], path
        if str(path.relative_to(ROOT / "spark_statestore")) not in MAY_START:
            starts = re.search(r"^\s*(import|from) (subprocess|multiprocessing|pty)\b", source, re.MULTILINE)
            assert not starts, path


def test_unsafe_python_is_found() -> None:
    for source in (
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "os.system('x')",
        "subprocess.run('x', shell=True)",
        "numpy.load(f, allow_pickle=True)",
        "pandas.read_pickle(f)",
        "def f():\n    import marshal as m",
    ):
        assert len(list(unsafe_parts(source))) == 1, source


def test_scala_sources_have_no_java_serialisation_or_shell() -> None:
    forbidden = re.compile(
        r"ObjectInputStream|readObject|ObjectOutputStream|writeObject|ScriptEngine|Runtime\.getRuntime\.exec|sys\.process"
        r"|ToolBox|enableDefaultTyping|activateDefaultTyping|\"sh\"|\"-c\"|Kryo|JavaSerializer"
    )
    for path in SCALA:
        source = path.read_text()
        assert not forbidden.search(source), path
    starts = [path.name for path in SCALA if "ProcessBuilder" in path.read_text()]
    assert starts == ["BackendProcess.scala", "PythonWorkers.scala"]
