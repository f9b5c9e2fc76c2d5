"""Tests that a variable, parameter, attribute or function has the name of its thing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.paths import ROOT

# Pronouns, participles and auxiliaries, which stand for a thing instead of naming it.
WORDS = (
    "one|found|known|of|told|said|asked|given|wanted|theirs|ours|mine|its|others?|seen|done|kept|made|held|taken|left"
    "|written|what|which|that|it|read|sparks"
)
NO_NAME = re.compile(WORDS)
# Keys of the CLI's JSON, and Flink's name.
NAMES_OF_OTHERS = {
    ("spark_statestore/assess/model.py", "other"),
    ("spark_statestore/query/verify.py", "what"),
    ("spark_statestore/storage/snapshot_result.py", "of"),
    ("spark_statestore/writing/absence.py", "found"),
}
# `read` is a verb, `of` a factory as in Java, `other` a parameter of members that override Spark's, `said`
# a column of the rows that tests/spark/golden has recorded.
MAY_BE_NAMES = re.compile(r"def (read|of)\b|other: (Any|AccumulatorV2)\b|said: String\b")
SCALA_NAMES = re.compile(
    rf"\b(val|var|def) +({WORDS})\b"
    rf"|(?<![\w.])({WORDS}) *(: [^\n,)=]*|=>|<-|@)"
    rf"|^ *({WORDS}) *=(?!=)"
    rf"|\b(val|case)\b[^=\n]*(?<![\w.])({WORDS})\b(?!\()[^=\n]*="
    rf"|\(([^()\n]*, *)?({WORDS})(,[^()\n]*)?\) *=>",
    re.MULTILINE,
)


def unnamed_things(source: str) -> Iterator[str]:
    """Yield the names that are bound in a module and are none.

    A function may be called `read`, and the sides of a join `left` and `right`.
    """
    nodes = list(ast.walk(ast.parse(source)))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef))
    operators = (node for node in functions if node.name.startswith("__"))
    operands = {arg for node in operators for arg in node.args.args if arg.arg == "other"}
    # A variable or a parameter.
    names = {getattr(node, "id", None) or getattr(node, "arg", None) for node in nodes}
    for node in nodes:
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) if name.strip("_") == "read":
                continue
            case ast.arg() if node in operands:
                continue
            case ast.Name("left", ast.Store()) | ast.arg("left") if "right" in names:
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
            ) if NO_NAME.fullmatch(name.strip("_")):
                yield name


def test_python_names_are_things() -> None:
    unnamed = {
        (path.relative_to(ROOT).as_posix(), name)
        for directory in ("spark_statestore", "benchmarks", "examples", "tests")
        for path in (ROOT / directory).rglob("*.py")
        for name in unnamed_things(path.read_text())
    }
    assert unnamed == NAMES_OF_OTHERS


def test_scala_names_are_nouns() -> None:
    paths = sorted((ROOT / "jvm-shim/src").rglob("*.scala"))
    assert len(paths) > 100
    for path in paths:
        code = re.sub(r'"(\\.|[^"\\\n])*"|//.*|/\*[\s\S]*?\*/', '""', path.read_text())
        names = [match[0] for match in SCALA_NAMES.finditer(code) if not MAY_BE_NAMES.match(match[0])]
        assert names == [], path
