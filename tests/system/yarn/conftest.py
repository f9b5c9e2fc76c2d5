"""A cluster for the tests on YARN."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.services import ServiceUnavailableError
from tests.support.services.yarn import Yarn, yarn


@pytest.fixture(scope="session")
def cluster() -> Iterator[Yarn]:
    """Run a cluster for all tests."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(yarn())
        except ServiceUnavailableError as error:
            pytest.skip(f"YARN cannot be fetched: {error}")
        yield running
