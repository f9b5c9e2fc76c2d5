"""Spark's own suites pass with this store, but for known differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.paths import SPARK_MINOR
from tests.support.services.spark_suites import VERSION, fetch
from tests.system.suites import suites
from tests.system.suites.differences import DIFFERENCES
from tests.system.suites.groups import GROUPS, QUICK

pytestmark = [
    pytest.mark.suites,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        not VERSION.startswith(f"{SPARK_MINOR}."), reason=f"the suites are those of {VERSION}"
    ),
]


@pytest.mark.parametrize(
    "group", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.soak) for name in GROUPS]
)
def test_suites_of_spark_pass(group: str, built: Path, tmp_path: Path) -> None:
    results = suites.run(GROUPS[group], fetch(), tmp_path)
    differences = {(suite, test) for suite, test in DIFFERENCES if suite in results}
    failures = {
        (suite, test): message
        for suite, tests in results.items()
        for test, message in tests.items()
        if message is not None
    }
    assert {test: failures[test] for test in failures.keys() - differences} == {}
    # A difference that is gone is to be removed from the list.
    assert differences - failures.keys() == set()


def test_each_difference_is_of_a_suite_that_runs() -> None:
    names = {suite.rpartition(".")[2] for group in GROUPS.values() for suite in group}
    assert {suite for suite, _ in DIFFERENCES} <= names
