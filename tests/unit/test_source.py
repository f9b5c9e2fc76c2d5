"""Tests that the sources never deserialise objects, evaluate data or run a shell, and name things."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

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

# Words that stand for a thing instead of naming it.
NO_NAMES = re.compile(
    "_*(one|found|known|of|told|said|asked|given|wanted|theirs|ours|others?|seen|done|kept|made|held|taken|left"
    "|written|what|which|this|that|it|read|sparks)_*"
)
# Keys of the CLI's JSON, and Flink's name.
NAMES_OF_OTHERS = {
    ("spark_statestore/assess/model.py", "other"),
    ("spark_statestore/query/verify.py", "what"),
    ("spark_statestore/storage/snapshot_result.py", "of"),
}


def is_unsafe(module: str) -> bool:
    return MODULES.fullmatch(module.partition(".")[0]) is not None


@cache
def nodes_of(source: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(source)))


def unsafe_parts(source: str) -> Iterator[str]:
    for node in nodes_of(source):
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


def unnamed_things(source: str) -> Iterator[str]:
    """Yield the names that are bound in a module and are none; a function may be called `read`."""
    nodes = nodes_of(source)
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    operators = (node for node in functions if node.name.startswith("__"))
    operands = {arg for node in operators for arg in node.args.args if arg.arg == "other"}
    for node in nodes:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) if name.strip("_") == "read":
                continue
            case ast.arg() if node in operands:
                continue
            case (
                ast.Name(name, ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(name)
                | ast.FunctionDef(name)
                | ast.AsyncFunctionDef(name)
                | ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(str(name))
                | ast.MatchMapping(rest=str(name))
                | ast.alias(asname=str(name))
            ) if NO_NAMES.fullmatch(name):
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


def test_python_names_are_things() -> None:
    unnamed = {
        (path.relative_to(ROOT).as_posix(), name)
        for directory in ("spark_statestore", "benchmarks", "examples")
        for path in (ROOT / directory).rglob("*.py")
        if not path.is_relative_to(ROOT / "spark_statestore/writing")
        for name in unnamed_things(path.read_text())
    }
    assert unnamed == NAMES_OF_OTHERS


def test_unnamed_things_are_recognised() -> None:
    for source in (
        "found = 1",
        "def f(self):\n    self._written, n = 0, 1",
        "def f(*, what): ...",
        "class C:\n    def _made(self, other): ...",
        "[n for one in lists for n in one]",
        "with f() as held: ...",
        "try: ...\nexcept OSError as known: ...",
        "match f():\n    case [*_, {'a': given}]: ...",
        "import numpy as it",
        "read = f()",
    ):
        assert list(unnamed_things(source)), source
    for source in (
        "class C:\n    def __eq__(self, other): ...\n    def read(self): ...",
        "f(what=1).kept.of(1)",
    ):
        assert list(unnamed_things(source)) == [], source


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


# Pronouns, participles and auxiliaries: a value has the name of its thing.
NO_NAMES = (
    "one|found|known|of|told|said|asked|given|wanted|theirs|ours|mine|its|other|others|seen|done|kept|made|held|taken|left"
    "|written|what|which|it|read"
)
# `read` is a verb, `of` a factory as in Java, and `other` a parameter of members that override Spark's.
MAY_BE_NAMES = re.compile(r"def (read|of)\b|other: (Any|AccumulatorV2)\b")
SCALA_NAMES = re.compile(
    rf"\b(val|var|def) +({NO_NAMES})\b"
    rf"|(?<![\w.])({NO_NAMES}) *(: [^\n,)=]*|=>|<-|@)"
    rf"|^ *({NO_NAMES}) *=(?!=)"
    rf"|\b(val|case)\b[^=\n]*(?<![\w.])({NO_NAMES})\b(?!\()[^=\n]*="
    rf"|\(([^()\n]*, *)?({NO_NAMES})(,[^()\n]*)?\) *=>",
    re.MULTILINE,
)


def test_scala_names_are_nouns() -> None:
    paths = sorted((ROOT / "jvm-shim/src").rglob("*.scala"))
    assert len(paths) > len(SCALA)
    for path in paths:
        code = re.sub(r'"(\\.|[^"\\\n])*"|//.*|/\*[\s\S]*?\*/', '""', path.read_text())
        names = [match[0] for match in SCALA_NAMES.finditer(code) if not MAY_BE_NAMES.match(match[0])]
        assert names == [], path
