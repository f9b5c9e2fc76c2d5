"""Tests of a query on a generic driver of fsspec's whose listings fail: nothing is taken for absent."""

from __future__ import annotations

import contextlib
import errno
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from spark_statestore import savepoint
from spark_statestore.errors import StateStoreError, StorageAccessError
from spark_statestore.files import urls
from spark_statestore.operator_state import ListStateDescriptor, QueryOperatorState, query_operator_state
from spark_statestore.query.verify import verify
from tests.support.drivers.plain_driver import PlainDriver
from tests.unit.savepoints.written_query import WrittenQuery

SEEN = ListStateDescriptor("seen", pa.string())
QUERY = "plain:///query"

# How many of the next listings of a directory fail, and directories without access.
_lost: dict[str, int] = {}
_denied: list[str] = []


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage plain://, whose listings and directories can fail."""
    _lost.clear()
    _denied.clear()
    store = PlainDriver()._store

    class Driver(PlainDriver):
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self._store = store

        def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
            require_access(path)
            if _lost.get(path.rstrip("/"), 0) > 0:
                _lost[path.rstrip("/")] -= 1
                raise OSError("Socket is closed")
            return super().ls(path, detail, **options)

        def info(self, path: str, **options: Any) -> dict[str, Any]:
            require_access(path)
            return super().info(path, **options)

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            require_access(path)
            return super()._open(path, mode, **options)

    fsspec.register_implementation("plain", Driver, clobber=True)
    monkeypatch.setattr(urls, "_opened", {})


def require_access(path: str) -> None:
    if any(f"{path}/".startswith(f"{directory}/") for directory in _denied):
        raise PermissionError(errno.EACCES, "Permission denied", path)


def test_operator_state_does_not_start_empty_if_its_directory_cannot_be_listed() -> None:
    state = QueryOperatorState(QUERY, "own")
    for batch, value in enumerate("ab"):
        with state.batch(batch) as store:
            store.get_list_state(SEEN).add(value)
    state = QueryOperatorState(QUERY, "own")
    _lost["/query/operator-state/own"] = 1
    with pytest.raises(StateStoreError, match="cannot be listed: Socket is closed"), state.batch(2) as store:
        store.get_list_state(SEEN).add("c")
    with state.batch(2) as store:
        store.get_list_state(SEEN).add("c")
        assert store.get_list_state(SEEN).get() == ["a", "b", "c"]


def test_operator_state_of_an_unreadable_query_is_not_taken_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    WrittenQuery(QUERY)
    monkeypatch.setattr(query_operator_state, "_running_batch", lambda: ("another-query", "0"))
    _denied.append("/query/metadata")
    with pytest.raises(StateStoreError, match="access to plain:///query/metadata is denied"):
        QueryOperatorState(QUERY, "own").batch(0).__enter__()


@pytest.mark.parametrize("with_ids", [False, True])
def test_checkpoint_whose_state_is_denied_is_neither_intact_nor_copied(with_ids: bool) -> None:
    query = WrittenQuery(QUERY, with_ids)
    for _ in range(2):
        query.run()
    assert verify(QUERY).stores == 4
    _denied.append("/query/state/0")
    with contextlib.suppress(StorageAccessError):
        assert not verify(QUERY).ok
    with pytest.raises(StateStoreError, match="Permission denied"):
        savepoint(QUERY, "plain:///savepoints")
    _denied.clear()
    assert savepoint(QUERY, "plain:///savepoints")
