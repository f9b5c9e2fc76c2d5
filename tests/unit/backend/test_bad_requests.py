"""Invalid requests of an authenticated client are answered, and affect no store and no other connection."""

from __future__ import annotations

import copy
import json
import random
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import psutil
import pytest
from hypothesis import given, settings

from spark_statestore.backend.protocol import Kind, check_request
from spark_statestore.errors import ProtocolError
from tests.fuzz.mutations import damaged
from tests.support.effort import EFFORT
from tests.support.trees import files_below
from tests.unit.backend.backends import (
    HEADER,
    MAGIC,
    Backend,
    Client,
    cleanup,
    commit,
    data,
    frame,
    open_files,
    requests_of,
    store,
)
from tests.unit.store.stores import attempt_id

MEMORY = 3 << 30
"""Address space of the backend: half of it is libraries and the stacks of threads."""

RESIDENT = 400 << 20
ROW = data({b"a": b"1"})

OUT = ["../../../outside/x", "/outside/x", "x/../../outside", "..", ".", "/", "a\0b", "chk-1/../../outside"]
REMOVED = ...
junk = st.one_of(
    st.just(REMOVED),
    st.sampled_from([None, True, False, [], {}, "", 0, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 10**40]),
    st.sampled_from([*OUT, float("nan"), "\u017f", "\ud800"]),
    st.sampled_from([["../x"] * 3, [[]], {"a": {}}, ["chk-1/_metadata"] * 5, "x" * 100_000, list(range(9))]),
    st.text(max_size=8),
    st.integers(),
)
frames = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*list(Kind)[:3], Kind.OBJECT]), st.binary(max_size=60), st.integers(0, 9)),
        st.just(ROW),
        st.integers(0, 2**32).map(lambda seed: (Kind.DATA, damaged(ROW[1], random.Random(seed)), 0)),
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    running = Backend(memory=MEMORY)
    yield running
    assert open_files(running.process.pid) < 40
    assert running.stop() == 0


def paths_of(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all fields of a request, except the root of the store: any root is valid."""
    for key in node if isinstance(node, dict) else range(len(node)):
        if key == "root":
            continue
        yield (*path, key)
        if isinstance(node[key], dict | list):
            yield from paths_of(node[key], (*path, key))


def changed(node: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        node = node[key]
    if value is REMOVED:
        del node[path[-1]]
    else:
        node[path[-1]] = value


@settings(max_examples=40 * EFFORT)
@given(values=st.data(), number=st.integers(0, 9), sent=frames)
def test_invalid_request_is_answered_and_changes_nothing(
    backend: Backend, values: st.DataObject, number: int, sent: list[tuple[Kind, bytes, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory, backend.client() as client:
        root = Path(directory, "query", "state", "0", "3")
        root.mkdir(parents=True)
        Path(directory, "outside").mkdir()
        assert client.ask(commit(root, 1, attempt_id()), ROW).error is None
        before = files_below(root)
        request = requests_of(root)[number]
        for _ in range(values.draw(st.integers(0, 3))):
            where = values.draw(st.sampled_from(sorted(paths_of(request), key=repr)))
            with suppress(KeyError, IndexError, TypeError):
                # A copy: a later change may be inside of it, and other examples draw the same object.
                changed(request, where, copy.deepcopy(values.draw(junk)))
        answer = client.ask(request, *sent)
        assert (answer.error is None) == any(frame.kind is Kind.CONTROL for frame in answer.frames)
        if answer.error is not None:
            assert len(answer.error["message"]) < 70_000
            assert before.items() <= files_below(root).items()
        # It serves the next one, on the same connection, and the version is there, by whatever attempt.
        assert client.ask({"op": "load", "store": store(root, "again"), "version": 1}).error is None
        elsewhere = {path for path in Path(directory).rglob("*") if not path.is_relative_to(root)}
        expected = {"query", "state", "0", "outside", "_holds", "horizon-0", "held"}
        assert {path.name for path in elsewhere} <= expected
        assert psutil.Process(backend.process.pid).memory_info().rss < RESIDENT


@settings(max_examples=30 * EFFORT)
@given(seed=st.integers(0, 2**32))
def test_invalid_bytes_close_only_their_connection(backend: Backend, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, backend.connect() as connection:
        request = json.dumps(commit(directory, 1, attempt_id())).encode()
        sound = frame(Kind.CONTROL, request) + frame(*ROW) + frame(Kind.END)
        is_authenticated = chance.random() < 0.7
        if is_authenticated:
            assert Client(connection).handshake().error is None
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(damaged(sound, chance) * chance.choice((1, 3)))
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            while connection.recv(1 << 16):
                pass
        if not is_authenticated:
            assert list(Path(directory).iterdir()) == []


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.OBJECT])
def test_receive_allocates_memory_as_bytes_arrive(backend: Backend, kind: Kind) -> None:
    header = HEADER.pack(kind, 0, MAGIC, (1 << 31) - 1, 0)
    before = psutil.Process(backend.process.pid).memory_info().vms
    with ExitStack() as stack:
        steady = stack.enter_context(backend.client())
        for _ in range(8):
            # 16 GiB are announced, and 8 bytes come.
            waiting = stack.enter_context(backend.client()).socket
            waiting.sendall(header + b"12345678")
            waiting.settimeout(0.2)
            # It waits for the rest, and has not failed for want of memory.
            with pytest.raises(TimeoutError):
                waiting.recv(1)
        assert steady.ask({"op": "explode"}).error["type"] == "ProtocolError"
        assert psutil.Process(backend.process.pid).memory_info().vms - before < 1 << 30


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("store", "commits"), 7),
        (("store", "commits"), "commits\0"),
        (("oldestBaseVersion",), "1"),
        (("oldestBaseVersion",), True),
        (("oldestBaseVersion",), 1 << 63),
        (("hasParent",), REMOVED),
    ],
)
def test_check_request_validates_fields(where: tuple[str, ...], value: Any) -> None:
    request = commit("/x", 1, attempt_id())
    optional = {"commits": "file:/x/commits", "oldestBaseVersion": -1}
    changed(request, where, optional.get(where[-1], True))
    check_request(request)
    changed(request, where, value)
    with pytest.raises(ProtocolError, match=f"(of|lacks) '{where[-1]}'"):
        check_request(request)


def test_cleanup_request_of_the_newest_version_is_refused(backend: Backend, tmp_path: Path) -> None:
    own_id = attempt_id()
    with backend.client() as client:
        assert client.ask(commit(tmp_path, 1, own_id), ROW).error is None
        answer = client.ask(cleanup(tmp_path, 1, own_id, retain_from=2))
        assert answer.error["type"] == "ProtocolError"
        assert "would discard the newest version" in answer.error["message"]
        assert client.ask({"op": "load", "store": store(tmp_path), "version": 1}).error is None


def test_error_message_is_truncated(backend: Backend) -> None:
    elsewhere = store("/x") | {"root": "nonsense:" + "x" * (1 << 20)}
    with backend.client() as client:
        answer = client.ask({"op": "load", "store": elsewhere, "version": 1})
        assert answer.error["type"] == "StorageURLError"
        assert len(answer.error["message"]) < 70_000
        assert answer.error["message"].endswith(" characters)")
