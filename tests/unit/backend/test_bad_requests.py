"""Invalid requests of an authenticated client are answered, and affect no store and no other connection."""

from __future__ import annotations

import copy
import random
import socket
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import psutil
import pytest
from hypothesis import given, settings

from spark_statestore.backend.protocol import FrameSocket, Kind
from tests.fuzz.mutations import damaged
from tests.support.effort import EFFORT
from tests.support.trees import files_below
from tests.unit.backend.backends import Backend, Client, commit, open_files, state, store
from tests.unit.store.stores import attempt_id, message

MEMORY = 3 << 30
"""Address space of the backend: half of it is libraries and the stacks of threads."""

RESIDENT = 400 << 20

OUT = [
    "../../../outside/x",
    "/outside/x",
    "x/../../outside",
    "..",
    ".",
    "/",
    "a\0b",
    "chk-1/../../outside",
    "\u017f",
    "\ud800",
]
junk = st.one_of(
    st.sampled_from(
        [None, True, False, [], {}, "", 0, -1, 1.5, 2**31, 2**63, 2**64, -(2**63), 10**40, float("nan")]
    ),
    st.sampled_from(OUT),
    st.sampled_from([["../x"] * 3, [[]], {"a": {}}, ["chk-1/_metadata"] * 5, "x" * 100_000, list(range(9))]),
    st.text(max_size=8),
    st.integers(),
)
frames = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([*list(Kind)[:3], Kind.OBJECT]), st.binary(max_size=60), st.integers(0, 9)),
        st.just((Kind.DATA, message({b"a": b"1"}).to_pybytes(), 0)),
        st.integers(0, 2**32).map(
            lambda seed: (Kind.DATA, damaged(message({b"a": b"1"}).to_pybytes(), random.Random(seed)), 0)
        ),
    ),
    max_size=3,
)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    running = Backend(memory=MEMORY)
    yield running
    assert running.stop() == 0


def resident(backend: Backend) -> int:
    return psutil.Process(backend.process.pid).memory_info().rss


def requests_of(root: Path) -> list[dict[str, Any]]:
    of = {"store": store(root), "version": 1}
    named = of | {"attemptId": "0123456789abcdef", "idInPath": False}
    return [
        of | {"op": "load", "raw": True, "id": None},
        of | {"op": "load", "from": 1, "fromId": "0123456789abcdef"},
        of
        | {
            "op": "load",
            "store": store(root, "m", storage="memory"),
            "metadataPaths": ["chk-1/_metadata"],
            "driverRange": [1, 2],
        },
        of | {"op": "lineage", "oldest": 1, "columnFamily": "default"},
        named | {"op": "changes", "columnFamily": "default"},
        commit(root, 2, "0123456789abcdef", parentAttemptId="0123456789abcdef"),
        commit(root, 2, "0123456789abcdef", idInPath=True, hasParent=True, hasBase=True),
        of | {"op": "snapshot", "columnFamilies": [state()]},
        named | {"op": "cleanup", "retainFrom": 1, "mostVersions": 0},
        {
            "op": "check",
            "directories": True,
            "options": {"checkpointsDir": f"file:{root}", "storageRetries": "5"},
        },
    ]


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
    node[path[-1]] = value


@settings(max_examples=40 * EFFORT)
@given(data=st.data(), number=st.integers(0, 9), sent=frames)
def test_invalid_request_is_answered_and_changes_nothing(
    backend: Backend, data: st.DataObject, number: int, sent: list[tuple[Kind, bytes, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory, backend.client() as client:
        root = Path(directory, "query", "state", "0", "3")
        root.mkdir(parents=True)
        Path(directory, "outside").mkdir()
        whole = client.ask(commit(root, 1, attempt_id()), (Kind.DATA, message({b"a": b"1"}), 0))
        assert whole.error is None
        before = files_below(root)
        request = requests_of(root)[number]
        for _ in range(data.draw(st.integers(0, 3))):
            where = data.draw(st.sampled_from(sorted(paths_of(request), key=repr)))
            with suppress(KeyError, IndexError, TypeError):
                # A copy: a later change may be inside of it, and other examples draw the same object.
                changed(request, where, copy.deepcopy(data.draw(junk)))
        answer = client.ask(request, *sent)
        assert (answer.error is None) == any(frame.kind is Kind.CONTROL for frame in answer.frames)
        if answer.error is not None:
            assert len(answer.error["message"]) < 70_000
            assert before.items() <= files_below(root).items()
        # It serves the next one, on the same connection, and the version is there, by whatever attempt.
        assert client.ask({"op": "load", "store": store(root, "again"), "version": 1}).error is None
        elsewhere = {path for path in Path(directory).rglob("*") if not path.is_relative_to(root)}
        assert {path.name for path in elsewhere} <= {
            "query",
            "state",
            "0",
            "outside",
            "_holds",
            "horizon-0",
            "held",
        }
        assert resident(backend) < RESIDENT


@settings(max_examples=30 * EFFORT)
@given(seed=st.integers(0, 2**32))
def test_invalid_bytes_close_only_their_connection(backend: Backend, seed: int) -> None:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, backend.connect() as connection:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            client = Client(ours)
            client.frames.send_json(Kind.CONTROL, commit(directory, 1, attempt_id()))
            client.frames.send(Kind.DATA, message({b"a": b"1"}))
            client.frames.send(Kind.END)
            sound = theirs.recv(1 << 16)
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


def test_backend_leaks_no_files_and_memory_after_invalid_requests(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        for version in (1, 2, 3):
            request = commit(tmp_path, version, attempt_id())
            assert client.ask(request, (Kind.DATA, message({b"a": b"1"}), 0)).error is None
    assert open_files(backend.process.pid) < 40
    assert resident(backend) < RESIDENT


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.OBJECT])
def test_receive_allocates_memory_as_bytes_arrive(backend: Backend, kind: Kind) -> None:
    header = struct.pack("<BxHIQI", kind, 0, 0x31545353, (1 << 31) - 1, 0)
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


@pytest.mark.parametrize("size", [1, (16 << 20) - 1, 16 << 20, (16 << 20) + 1, (33 << 20) + 5])
def test_receive_returns_payloads_of_any_size(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        payload = random.Random(size).randbytes(size)

        def send() -> None:
            frames = FrameSocket(ours)
            frames.send(Kind.OBJECT, payload)
            frames.send(Kind.END)

        sender = threading.Thread(target=send)
        sender.start()
        frame = FrameSocket(theirs).receive()
        sender.join()
        assert (len(frame.payload), zlib.crc32(frame.payload)) == (size, zlib.crc32(payload))


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("store", "commits"), 7),
        (("store", "commits"), "commits\0"),
        (("oldestBaseVersion",), "1"),
        (("oldestBaseVersion",), True),
        (("oldestBaseVersion",), 1 << 63),
    ],
)
def test_check_request_validates_optional_fields(
    backend: Backend, tmp_path: Path, where: tuple[str, ...], value: Any
) -> None:
    request = commit(tmp_path, 1, attempt_id())
    sound = (Kind.DATA, message({b"a": b"1"}), 0)
    changed(request, where, value)
    with backend.client() as client:
        error = client.ask(request, sound).error
        assert error["type"] == "ProtocolError", error
        assert where[-1] in error["message"]
        changed(request, where, {"commits": str(tmp_path / "commits"), "oldestBaseVersion": -1}[where[-1]])
        assert client.ask(request, sound).error is None


def test_cleanup_request_of_the_newest_version_is_refused(backend: Backend, tmp_path: Path) -> None:
    mine = attempt_id()
    with backend.client() as client:
        assert client.ask(commit(tmp_path, 1, mine), (Kind.DATA, message({b"a": b"1"}), 0)).error is None
        clean = {
            "op": "cleanup",
            "store": store(tmp_path),
            "version": 1,
            "attemptId": mine,
            "idInPath": False,
            "retainFrom": 2,
            "mostVersions": 0,
        }
        answer = client.ask(clean)
        assert answer.error["type"] == "ProtocolError"
        assert "would discard the newest version" in answer.error["message"]
        assert client.ask({"op": "load", "store": store(tmp_path), "version": 1}).error is None


def test_error_message_is_truncated(backend: Backend) -> None:
    with backend.client() as client:
        answer = client.ask(
            {"op": "load", "store": store("/x") | {"root": "nonsense:" + "x" * (1 << 20)}, "version": 1}
        )
        assert answer.error["type"] == "StorageURLError"
        assert len(answer.error["message"]) < 70_000
        assert answer.error["message"].endswith(" characters)")
