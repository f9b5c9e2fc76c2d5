"""A cluster for the tests on YARN."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.services.yarn import Yarn, yarn


@pytest.fixture(scope="session")
def cluster() -> Iterator[Yarn]:
    """Run a cluster for all tests."""
    with yarn() as running:
        yield running
