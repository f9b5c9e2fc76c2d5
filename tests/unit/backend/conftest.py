"""A backend process that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.backend.backends import Backend


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    running = Backend()
    yield running
    assert running.stop() == 0
