"""Tests that the mutants of `tests.mutants` fit the sources, which keeps them runnable while both change."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.mutants.__main__ import KINDS, mutants_of
from tests.support.paths import ROOT

pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_mutants_are_enough(kind: str) -> None:
    assert len(mutants_of([kind])) >= 50


def test_mutants_have_names_of_their_own(kind: str) -> None:
    names = Counter(one.name for one in mutants_of(KINDS))
    assert [one.name for one in mutants_of([kind]) if names[one.name] > 1] == []


def test_mutants_change_one_line_that_exists_once(kind: str) -> None:
    for one in mutants_of([kind]):
        assert (ROOT / one.path).read_text().count(one.old) == 1, one.name
        old, new = one.old.split("\n"), one.new.split("\n")
        assert len(old) == len(new), one.name
        assert sum(before != after for before, after in zip(old, new, strict=True)) == 1, one.name


def test_mutants_name_existing_tests(kind: str) -> None:
    for one in mutants_of([kind]):
        named = [argument.split("::") for argument in one.tests if argument.startswith("tests/")]
        assert named, one.name
        for file, *functions in named:
            assert (ROOT / file).is_file(), one.name
            for function in functions:
                name = function.partition("[")[0]
                assert re.search(rf"^ *(def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE), (
                    one.name
                )
