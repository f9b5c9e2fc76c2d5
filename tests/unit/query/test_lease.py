"""The lease of a checkpoint's logs: one process changes them at a time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from spark_statestore import IllegalStateError, QueryRunningError
from spark_statestore.query import QueryCheckpoint, lease
from spark_statestore.query.lease import Lease
from tests.unit.query.stored_query import StoredQuery


@pytest.fixture
def checkpoint(tmp_path: Path) -> QueryCheckpoint:
    query = StoredQuery(tmp_path / "query")
    query.run(word=1)
    return QueryCheckpoint(query.url)


def leases(checkpoint: QueryCheckpoint) -> list[Path]:
    return list(Path(checkpoint.root, "offsets").glob(".lease-*"))


def test_lease_is_that_of_one_process_at_a_time(checkpoint: QueryCheckpoint) -> None:
    inside = threading.Lock()

    def change(_: int) -> None:
        with Lease(checkpoint):
            assert inside.acquire(blocking=False)
            time.sleep(0.01)
            inside.release()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(8)))
    assert not leases(checkpoint)


def test_lease_ends_with_a_failure(checkpoint: QueryCheckpoint) -> None:
    with suppress(OSError), Lease(checkpoint):
        raise OSError("of the change")
    assert not leases(checkpoint)


def test_lease_of_a_killed_process_passes_to_the_next_one(
    checkpoint: QueryCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.5)
    killed = Path(checkpoint.root, "offsets/.lease-0123456789abcdef")
    killed.touch()
    begun = time.monotonic()
    with Lease(checkpoint) as own_lease:
        assert time.monotonic() - begun >= 0.5
        assert not killed.exists()
        own_lease.renew()
    assert not leases(checkpoint)


def test_lease_that_others_have_for_too_long_is_refused(
    checkpoint: QueryCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.5)

    def renew_all() -> None:
        number = 0
        while not end.wait(0.05):
            number += 1
            Path(checkpoint.root, f"offsets/.lease-{number}").touch()
            Path(checkpoint.root, f"offsets/.lease-{number - 1}").unlink(missing_ok=True)

    end = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(renew_all)
        try:
            time.sleep(0.1)
            with pytest.raises(QueryRunningError, match=r"offsets/\.lease-\d+ is the lease of one"):
                Lease(checkpoint).__enter__()
        finally:
            end.set()
    assert len(leases(checkpoint)) == 1


def test_process_that_was_paused_renews_its_lease(
    checkpoint: QueryCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lease(checkpoint) as own_lease:
        before = leases(checkpoint)
        own_lease.renew()
        assert leases(checkpoint) == before
        monkeypatch.setattr(own_lease, "_created", time.monotonic() - 30)
        own_lease.renew()
        assert len(leases(checkpoint)) == 1
        assert leases(checkpoint) != before
    assert not leases(checkpoint)


@pytest.mark.parametrize("has_ended", [False, True])
def test_process_that_was_paused_while_another_took_its_lease_changes_nothing(
    checkpoint: QueryCheckpoint, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.1)
    with Lease(checkpoint) as own_lease:
        monkeypatch.setattr(own_lease, "_created", time.monotonic() - 30)
        with Lease(checkpoint):
            if not has_ended:
                with pytest.raises(IllegalStateError, match="was paused while it changed file:"):
                    own_lease.renew()
        if has_ended:
            with pytest.raises(IllegalStateError, match="another one may have changed it"):
                own_lease.renew()
    assert not leases(checkpoint)
