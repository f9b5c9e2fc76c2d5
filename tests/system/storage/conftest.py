"""Fixtures of the tests on real storage services."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.services import SERVICES, Service

NAMES = os.environ.get("SERVICES", "").split() or list(SERVICES)


def pytest_configure() -> None:
    """Check the variable SERVICES."""
    if unknown := set(NAMES) - SERVICES.keys():
        raise pytest.UsageError(f"SERVICES names {', '.join(sorted(unknown))}; known: {', '.join(SERVICES)}")


@pytest.fixture(scope="session", params=NAMES)
def running_service(request: pytest.FixtureRequest) -> Iterator[Service]:
    """Run each of the services that the variable SERVICES names, by default all."""
    with SERVICES[request.param]() as service:
        yield service


@pytest.fixture
def service(running_service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Return a running service, for which this process is configured during a test."""
    running_service.use(monkeypatch)
    return running_service


@pytest.fixture
def container(service: Service) -> str:
    """Return the URL of a new bucket, container or directory."""
    return service.new_container()
