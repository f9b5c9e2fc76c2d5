"""Real storage services for tests and benchmarks, each a context manager that yields a `Service`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from tests.support.services.azurite import azurite
from tests.support.services.hdfs import hdfs
from tests.support.services.minio import minio
from tests.support.services.service import Service, ServiceUnavailableError

__all__ = ["SERVICES", "Service", "ServiceUnavailableError", "azurite", "hdfs", "minio"]

SERVICES: Final[Mapping[str, Callable[[], AbstractContextManager[Service]]]] = {
    "minio": minio,
    "azurite": azurite,
    "hdfs": hdfs,
}
"""The services by the name that `make test-storage` has for them."""
