"""Requests that give a query, before its first batch, the number of partitions of its session."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.backend.backends import Answer, Backend, Client
from tests.unit.savepoints.written_query import SMALL, WrittenQuery, content, row_key

# So many that their stores take some seconds.
MANY = 1500


@pytest.fixture
def query(tmp_path: Path) -> WrittenQuery:
    query = WrittenQuery(str(tmp_path / "checkpoint"), True, operators=SMALL, key=row_key)
    query.run(put={b"large": bytes(700)})
    return query


def ask(client: Client, path: str, partitions: int, start: str, **fields: Any) -> Answer:
    options = {"partitions": str(partitions)}
    request = {"op": "settlePartitions", "path": path, "options": options, "start": start, "canHaveIds": True}
    return client.ask(request | fields)


def settled(client: Client, path: str, partitions: int, start: str) -> dict[str, Any]:
    """Ask until the answer is complete."""
    for _ in range(60):
        answer = ask(client, path, partitions, start)
        assert answer.error is None, answer.error
        if answer.control["isComplete"]:
            return dict(answer.control)
    raise AssertionError("the rescale does not end")


def children(backend: Backend) -> list[str]:
    listed = subprocess.run(
        ["ps", "-o", "args=", "--ppid", str(backend.process.pid)], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if "spark_statestore.savepoints" in line]


def test_query_has_the_number_of_the_request(backend: Backend, query: WrittenQuery) -> None:
    with backend.client() as client:
        assert settled(client, query.url, 3, "a")["partitions"] == 3
    assert len(content(query.checkpoint)) == 3


@pytest.mark.slow
def test_another_start_does_not_get_the_result_of_the_first(backend: Backend, query: WrittenQuery) -> None:
    rows = {key: value for store in query.rows.values() for key, value in store.items()}
    with backend.client() as client:
        assert not ask(client, query.url, MANY, "a").control["isComplete"]
        assert len(children(backend)) == 1
        assert settled(client, query.url, 3, "b")["partitions"] == 3
        # A result without a waiting client is dropped.
        ask(client, query.url, 5, "c")
        while children(backend):
            time.sleep(0.1)
        assert settled(client, query.url, 4, "d")["partitions"] == 4
    rows_by_store = content(query.checkpoint)
    assert len(rows_by_store) == 4
    assert {key: value for store in rows_by_store.values() for key, value in store.items()} == rows


@pytest.mark.slow
def test_rescale_without_a_waiting_client_ends(backend: Backend, query: WrittenQuery) -> None:
    with backend.client() as client:
        assert not ask(client, query.url, 32_000, "a").control["isComplete"]
        assert len(children(backend)) == 1
        time.sleep(13)
        assert children(backend) == []
    assert len(content(query.checkpoint)) == 2


def test_error_has_the_class_and_the_message_of_the_rescale(backend: Backend, tmp_path: Path) -> None:
    query = WrittenQuery(str(tmp_path / "v1"), False, operators=SMALL, key=row_key)
    query.run(put={b"large": b"1"})
    with backend.client() as client:
        for _ in range(60):
            answer = ask(client, query.url, 3, "a", canHaveIds=False)
            if answer.error is not None:
                break
    assert answer.error is not None
    assert answer.error["type"] == "OptionError"
    assert "has checkpoint format v1" in answer.error["message"]
