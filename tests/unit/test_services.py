"""Tests of the launcher of storage services."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.services import ServiceUnavailableError, service
from tests.support.services.service import fetched, run_client, running


def started() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "say.py" in " ".join(child.cmdline())]


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], list[str]]:
    def write(text: str) -> list[str]:
        (tmp_path / "say.py").write_text(text)
        return [sys.executable, str(tmp_path / "say.py")]

    return write


def test_server_that_ends_fails_with_its_log(program: Callable[[str], list[str]]) -> None:
    command = program("import sys; sys.exit('address in use')")
    with (
        pytest.raises(RuntimeError, match=r"it ended with exit code 1; its log:\naddress in use"),
        running("it", command, lambda: False),
    ):
        pass


def test_server_that_is_never_ready_is_stopped(program: Callable[[str], list[str]]) -> None:
    command = program("import time; print('waiting', flush=True); time.sleep(60)")
    with (
        pytest.raises(RuntimeError, match=r"not ready after 1 s; its log:\nwaiting"),
        running("it", command, lambda: False, seconds=1),
    ):
        pass
    assert started() == []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(service, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.mark.usefixtures("cache")
def test_fetched_fills_the_cache_once() -> None:
    calls: list[Path] = []

    def fetch(directory: Path) -> None:
        calls.append(directory)
        (directory / "file").touch()

    for _ in range(2):
        assert [path.name for path in fetched("it-1", fetch).iterdir()] == ["file"]
    assert len(calls) == 1


@pytest.mark.usefixtures("cache")
def test_nothing_is_fetched_without_time_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FETCH_SECONDS", 0)
    with pytest.raises(ServiceUnavailableError, match=r"it-1 is not in .*cache"):
        fetched("it-1", lambda _: pytest.fail("fetched"))


def test_fetch_that_is_slow_or_lacks_its_client_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "FETCH_SECONDS", 1)
    with pytest.raises(ServiceUnavailableError, match="took more than 1 s"):
        run_client([sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(ServiceUnavailableError, match="no-such-client is not installed"):
        run_client(["no-such-client", "install"])


def test_failed_fetch_leaves_nothing(cache: Path) -> None:
    def fetch(directory: Path) -> None:
        (directory / "half").touch()
        run_client([sys.executable, "-c", "import sys; sys.exit('no network')"])

    with pytest.raises(ServiceUnavailableError, match=r"exit code 1:\nno network"):
        fetched("it-1", fetch)
    assert list(cache.iterdir()) == []
