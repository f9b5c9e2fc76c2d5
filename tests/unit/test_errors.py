"""Tests of the error hierarchy, its exports, and messages that quote others."""

from __future__ import annotations

import builtins
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_statestore
from spark_statestore import errors
from spark_statestore.errors import StateStoreError
from tests.support.paths import ROOT

TWO_STOPS = re.compile(r"(?<![./])\.[.;:](?=\s|$)")
CLASSES = [getattr(errors, name) for name in errors.__all__]


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Parent and builtin base of each class in the module's drawing."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+Error)(?: +\((\w+)\))?(?: {2,}\S|$)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        above = [*above[:depth], match[2]]
        tree[match[2]] = (above[depth - 1] if depth else None, match[3])
    return tree


def test_error_tree_equals_the_module_docstring() -> None:
    tree = {}
    for kind in CLASSES:
        own = [base.__name__ for base in kind.__bases__ if base.__module__ == errors.__name__]
        builtin = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        assert len(own) <= 1
        tree[kind.__name__] = (own[0] if own else None, builtin[0] if builtin and own else None)
    assert drawn() == tree
    assert len(tree) > 20


def test_errors_module_lists_every_error() -> None:
    error_names = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.StateStoreError)
    }
    assert error_names == set(errors.__all__)


def test_errors_are_importable_from_the_package() -> None:
    for kind in CLASSES:
        assert getattr(spark_statestore, kind.__name__) is kind
        assert kind.__name__ in spark_statestore.__all__
        assert kind.__doc__
        assert not hasattr(builtins, kind.__name__)


def test_error_message_does_not_depend_on_its_bases() -> None:
    for kind in CLASSES:
        assert str(kind("what happened")) == "what happened"
        assert str(kind()) == kind.__name__
        again = pickle.loads(pickle.dumps(kind("what happened")))
        assert (type(again), str(again)) == (kind, "what happened")


@given(
    st.sampled_from(CLASSES),
    st.text(alphabet=st.sampled_from("ab /."))
    .map(lambda text: text.rstrip(". /") + "x")
    .filter(lambda text: not TWO_STOPS.search(text)),
    st.sampled_from([". Try again.", ".", "; nothing was changed.", ": see there."]),
)
def test_error_ends_a_quoted_sentence_once(kind: type[StateStoreError], text: str, rest: str) -> None:
    assert str(kind(f"it failed: {kind(text + '.')}{rest}")).endswith(f"{text}{rest}")


@pytest.mark.parametrize(
    "message", ["../a is not ./b.", "as in a... b", "s3://b/.. is no directory", "read ...", "1.5 and a.b."]
)
def test_error_keeps_dots_of_paths_and_ellipses(message: str) -> None:
    assert str(StateStoreError(message)) == message


def test_jar_quotes_messages_without_a_second_full_stop() -> None:
    sources = list((ROOT / "jvm-shim/src/main/scala").rglob("*.scala"))
    assert sources
    for path in sources:
        assert not re.search(r"\$\{\w+\.getMessage\}[.;]", path.read_text()), path
