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
    names = Counter(mutant.name for mutant in mutants_of(KINDS))
    assert [mutant.name for mutant in mutants_of([kind]) if names[mutant.name] > 1] == []


def test_mutants_change_one_line_that_exists_once(kind: str) -> None:
    for mutant in mutants_of([kind]):
        assert (ROOT / mutant.path).read_text().count(mutant.old) == 1, mutant.name
        old, new = mutant.old.split("\n"), mutant.new.split("\n")
        assert len(old) == len(new), mutant.name
        assert sum(before != after for before, after in zip(old, new, strict=True)) == 1, mutant.name


def test_mutants_name_existing_tests(kind: str) -> None:
    for mutant in mutants_of([kind]):
        named = [argument.split("::") for argument in mutant.tests if argument.startswith("tests/")]
        assert named, mutant.name
        for file, *functions in named:
            assert (ROOT / file).is_file(), mutant.name
            for function in functions:
                name = function.partition("[")[0]
                assert re.search(rf"^ *(def|class) {name}\b", (ROOT / file).read_text(), re.MULTILINE), (
                    mutant.name
                )
