"""Stores with column families, of this provider and of Spark's own; storage that is slow or hangs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.spark.counting import backend_pid
from tests.spark.families import OURS, open_provider
from tests.spark.golden import Recordings
from tests.spark.harness import ROCKSDB, Open, Provider, Store
from tests.support.slow import SlowStorage


# Spark's own provider is pinned: only a new version of Spark can behave otherwise.
@pytest.fixture(params=[OURS, pytest.param(ROCKSDB, marks=pytest.mark.soak)], ids=["ours", "rocksdb"])
def provider_class(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def instance(spark: Any, tmp_path: Path, provider_class: str) -> Iterator[Open]:
    """Return a function that opens instances of one store, as several executors do."""
    opened = []

    def open_instance(**options: Any) -> Provider:
        opened.append(open_provider(spark, tmp_path, provider_class, **options))
        return opened[-1]

    yield open_instance
    for provider in opened:
        provider.end_stores()
        provider.close()


@pytest.fixture
def store(instance: Open) -> Store:
    return instance().open(0)


@pytest.fixture
def recordings(request: pytest.FixtureRequest) -> Recordings:
    """Return the recorded outcomes of Spark's own stores for the test's module."""
    return Recordings(request.path.stem.removeprefix("test_"))


@pytest.fixture
def no_other_tables(spark: Any) -> None:
    """Close the stores that earlier tests left, for tests that measure the memory of all tables."""
    spark._jvm.org.apache.spark.sql.statestore.BackgroundWork.closeStores()


@pytest.fixture
def slow(spark: Any, tmp_path: Path) -> Iterator[SlowStorage]:
    """Return storage that can be slow or hang, with an interpreter whose backend uses it.

    The backend ends with the test.
    """
    storage = SlowStorage(tmp_path)
    yield storage
    if (pid := backend_pid(spark, storage.interpreter())) > 0:
        psutil.Process(pid).kill()
