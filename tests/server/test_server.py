"""The backend process: who may talk to it, what it answers, and when it ends."""

from __future__ import annotations

import os
import re
import secrets
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_statestore._version import __version__
from spark_statestore.checkpoint.metadata import NamedState
from spark_statestore.server.protocol import PROTOCOL_VERSION, Kind
from tests.checkpoint.stores import attempt, message
from tests.server.backends import Answer, Backend, Client, commit, open_files, state, store

HEADER = struct.Struct("<BBHIQ")
MAGIC = 0x31545353


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    running = Backend()
    yield running
    assert running.stop() == 0


def data(rows: dict[bytes, bytes], number: int = 0) -> tuple[Kind, bytes, int]:
    return (Kind.DATA, message(rows), number)


def test_the_first_line_says_where_and_what_it_is(backend: Backend) -> None:
    assert backend.ready["ready"] is True
    assert backend.ready["pid"] == backend.process.pid
    assert (backend.ready["version"], backend.ready["protocol"]) == (__version__, PROTOCOL_VERSION)
    assert backend.ready["port"] is None
    assert Path(backend.ready["location"]).name == "spark_statestore"


def test_only_its_user_can_reach_the_socket(backend: Backend) -> None:
    assert stat.S_IMODE(backend.path.stat().st_mode) == 0o600
    # The token is on no command line.
    command = Path(f"/proc/{backend.process.pid}/cmdline").read_bytes()
    assert b"0123456789abcdef" not in command


def test_a_commit_is_loaded_as_it_was(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        done = client.ask(commit(tmp_path, 1, attempt()), data({b"a": b"1", b"b": b"2"}))
        assert done.error is None
        assert (done.control["chainLength"], done.control["baseVersion"]) == (1, 1)
        assert (done.control["objectsWritten"], done.control["memoryBytes"] > 0) == (1, True)
        (handle,) = done.of(Kind.HANDLE)
        child = commit(tmp_path, 2, attempt(), hasParent=True, parentAttempt=done.control["attempt"])
        assert client.ask(child, (Kind.HANDLE, handle, 0), data({b"a": b"3"})).error is None
        loaded = client.ask({"op": "load", "store": store(tmp_path, "two"), "version": 2})
        assert loaded.error is None
        assert loaded.control["chainLength"] == 2
        assert loaded.control["states"] == [NamedState.from_json(state()).to_json()]
        assert len(loaded.of(Kind.DATA)) == 2


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"token": "f" * 64}, "AuthenticationError", "token"),
        ({"token": ""}, "AuthenticationError", "token"),
        ({"token": "ä"}, "AuthenticationError", "token"),
        ({"challenge": None}, "ProtocolError", "without a challenge"),
        ({"challenge": "ab"}, "ProtocolError", "without a challenge"),
        ({"protocol": 99}, "VersionMismatchError", f"protocol 99.*protocol {PROTOCOL_VERSION}"),
        ({"version": "99.0"}, "VersionMismatchError", f"99.0.*{__version__}.*install the same version"),
        ({"version": "1\nERROR forged"}, "VersionMismatchError", r"'1\\nERROR forged'"),
    ],
)
def test_a_stranger_is_refused(backend: Backend, change: dict[str, Any], error: str, told: str) -> None:
    with backend.connect() as connection:
        client = Client(connection)
        answer = client.greet(**change)
        assert answer.error["type"] == error
        assert re.search(told, answer.error["message"])
        assert "0123456789abcdef" not in answer.error["message"]
        assert client.is_closed()


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "no frame"),
        (HEADER.pack(Kind.CONTROL, 0, 0, MAGIC, 4097) + bytes(4097), "larger than the 4096 allowed"),
        (HEADER.pack(Kind.CONTROL, 0, 0, MAGIC, 2**63), "larger than the 4096 allowed"),
        (HEADER.pack(Kind.CONTROL, 0, 0, MAGIC, 2) + b"[]", "instead of an object"),
        (HEADER.pack(Kind.DATA, 0, 0, MAGIC, 0), "starts with a DATA frame"),
        (HEADER.pack(77, 0, 0, MAGIC, 0), "no frame"),
    ],
    ids=["http", "large", "huge", "no-object", "no-control", "no-kind"],
)
def test_a_greeting_that_cannot_be_read_is_refused(backend: Backend, sent: bytes, told: str) -> None:
    with backend.connect() as connection:
        connection.sendall(sent)
        client = Client(connection)
        error = client.answer().error
        assert error["type"] == "ProtocolError"
        assert told in error["message"]
        assert client.is_closed()


@pytest.mark.parametrize("change", [{"op": "explode"}, {"op": None}, {"op": "load"}, {"op": "commit"}, {}])
def test_a_request_that_makes_no_sense_is_answered_and_the_next_one_served(
    backend: Backend, tmp_path: Path, change: dict[str, Any]
) -> None:
    with backend.client() as client:
        for rest in ([], [data({b"a": b"1"})] * 3):
            answer = client.ask(change, *rest)
            assert answer.error["type"] == "ProtocolError"
        assert client.ask(commit(tmp_path, 1, attempt()), data({b"a": b"1"})).error is None


def test_what_does_not_belong_into_a_request_is_refused(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        one = commit(tmp_path, 1, attempt())
        for frames in (
            [(Kind.HANDLE, b"", 0)],
            [(Kind.DATA, b"junk", 0)],
            [(Kind.DATA, b"", 0)],
            [(Kind.DATA, bytes(64), 0)],
            [(Kind.DATA, message({b"a": b"1"}), 7)],
            [data({b"a": b"1"}), (Kind.CONTROL, b"{}", 0)],
        ):
            answer = client.ask(one, *frames)
            assert answer.error["type"] == "ProtocolError", answer.error
        for announced in ({"hasParent": True}, {"hasBase": True}):
            assert client.ask(one | announced, data({b"a": b"1"})).error["type"] == "ProtocolError"
            assert client.ask(one | announced).error["type"] == "ProtocolError"
            broken = client.ask(one | announced, (Kind.HANDLE, b"junk", 0))
            assert broken.error["type"] == "CorruptCheckpointError"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_errors_come_with_their_type_and_message(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        client.ask(commit(tmp_path, 1, attempt()), data({b"a": b"1"}))
        missing = client.ask({"op": "load", "store": store(tmp_path), "version": 7})
        assert missing.error["type"] == "CheckpointNotFoundError"
        assert "version 7" in missing.error["message"]
        unknown = client.ask({"op": "load", "store": store(tmp_path, "x", colour="blue"), "version": 1})
        assert unknown.error["type"] == "OptionError"
        elsewhere = store(tmp_path, "y") | {"root": "nonsense://host/x"}
        nowhere = client.ask({"op": "load", "store": elsewhere, "version": 1})
        assert nowhere.error["type"] == "StorageURLError"


def test_a_load_that_fails_in_its_midst_answers_with_the_error_alone(
    backend: Backend, tmp_path: Path
) -> None:
    with backend.client() as client:
        files = {"store": store(tmp_path, fileStateThreshold="0")}
        client.ask(commit(tmp_path, 1, attempt()) | files, data({b"a": secrets.token_bytes(70_000)}))
        (shared,) = (tmp_path / "shared").iterdir()
        shared.write_bytes(shared.read_bytes()[:-1])
        answer = client.ask({"op": "load", "store": store(tmp_path), "version": 1})
        assert (answer.error["type"], answer.frames) == ("CorruptCheckpointError", [])
        assert shared.name in answer.error["message"]


def test_streams_are_told_where_they_lie_or_sent_as_they_are(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        files = {"store": store(tmp_path, fileStateThreshold="0")}
        client.ask(commit(tmp_path, 1, attempt()) | files, data({b"a": secrets.token_bytes(70_000)}))
        (shared,) = (tmp_path / "shared").iterdir()
        told = client.ask({"op": "load", "store": store(tmp_path), "version": 1, "asStored": True})
        assert told.control["newestFirst"]
        assert [stream["path"] for stream in told.control["files"]] == [str(shared)]
        assert told.of(Kind.DATA) == []
        elsewhere = store(tmp_path, "elsewhere") | {"root": "memory://elsewhere"}
        made = client.ask(commit(tmp_path, 1, attempt(), store=elsewhere), data({b"a": b"1"}))
        changed = commit(tmp_path, 2, attempt(), store=elsewhere, hasParent=True)
        client.ask(changed, (Kind.HANDLE, made.of(Kind.HANDLE)[0], 0), data({b"a": b"2"}))
        sent = client.ask({"op": "load", "store": elsewhere, "version": 2, "asStored": True})
        assert "files" not in sent.control
        assert [frame.kind for frame in sent.frames[2:]] == [Kind.DATA, Kind.STREAM] * 2
        assert sent.of(Kind.DATA) == [message({b"a": b"2"}).to_pybytes(), message({b"a": b"1"}).to_pybytes()]


def test_a_snapshot_becomes_the_base_of_a_commit_and_old_versions_go(
    backend: Backend, tmp_path: Path
) -> None:
    def after(parent: Answer, version: int, by: str) -> dict[str, Any]:
        return commit(tmp_path, version, by, hasParent=True, parentAttempt=parent.control["attempt"])

    def handle(answer: Answer) -> tuple[Kind, bytes, int]:
        return (Kind.HANDLE, answer.of(Kind.HANDLE)[0], 0)

    mine = attempt()
    with backend.client() as client:
        one = client.ask(commit(tmp_path, 1, mine), data({b"a": b"1"}))
        two = client.ask(after(one, 2, mine), handle(one), data({b"b": b"2"}))
        materialise = {"op": "materialise", "store": store(tmp_path), "version": 2, "states": [state()]}
        base = client.ask(materialise, data({b"a": b"1", b"b": b"2"}))
        assert base.control["bytesWritten"] > 0
        three = client.ask(
            after(two, 3, mine) | {"hasBase": True}, handle(two), handle(base), data({b"c": b"3"})
        )
        assert (three.control["chainLength"], three.control["baseVersion"]) == (2, 2)
        clean = {
            "op": "cleanup",
            "store": store(tmp_path),
            "version": 3,
            "attempt": mine,
            "idInPath": False,
            "retainFrom": 3,
            "mostVersions": 0,
        }
        assert client.ask(clean, data({b"a": b"1"})).error["type"] == "ProtocolError"
        assert client.ask(clean).control["deleted"] == 2
        assert [path.parent.name for path in tmp_path.glob("chk-*/_metadata")] == ["chk-3"]
        loaded = client.ask({"op": "load", "store": store(tmp_path, "two"), "version": 3})
        assert (loaded.error, len(loaded.of(Kind.DATA))) == (None, 2)


def test_the_past_of_a_version_is_told(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        parent: list[tuple[Kind, bytes, int]] = []
        changed = [{b"a": b"1"}, {b"b": b"2"}, {b"a": b"3"}]
        for version, rows in enumerate(changed, 1):
            request = commit(tmp_path, version, f"{version:016x}", hasParent=bool(parent))
            answer = client.ask(request, *parent, data(rows))
            parent = [(Kind.HANDLE, answer.of(Kind.HANDLE)[0], 0)]
        asked = {"store": store(tmp_path), "state": "default"}
        past = client.ask(asked | {"op": "lineage", "version": 3, "oldest": 2})
        assert past.control["attempts"] == [f"{2:016x}", f"{3:016x}"]
        assert past.control["state"].items() >= state().items()
        asked |= {"op": "changes", "version": 2, "attempt": past.control["attempts"][0], "idInPath": False}
        assert client.ask(asked).of(Kind.DATA) == [message(changed[1]).to_pybytes()]
        replayed = {"op": "load", "store": store(tmp_path), "version": 3, "from": 2}
        assert [client.ask(replayed | {"from": start}).control["chainLength"] for start in (1, 3)] == [3, 3]
        assert client.ask(replayed | {"fromId": "0"}).error["type"] == "CheckpointNotFoundError"


def test_requests_are_served_side_by_side(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as slow:
        # Half a commit: its thread waits for the rest.
        slow.frames.send_json(Kind.CONTROL, commit(tmp_path / "slow", 1, attempt()))
        slow.frames.send(Kind.DATA, message({b"a": bytes(70_000)}))
        failures: list[object] = []

        def work(number: int) -> None:
            with backend.client() as client:
                for version in range(1, 6):
                    root = tmp_path / str(number)
                    request = commit(root, version, attempt(), store=store(root, f"thread-{number}"))
                    answer = client.ask(request, data({b"a": b"%d" % number}))
                    if answer.error:
                        failures.append(answer.error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert failures == []
        assert not any(thread.is_alive() for thread in threads)
        slow.frames.send(Kind.END)
        assert slow.answer().error is None
    assert len(list(tmp_path.glob("*/chk-5/_metadata"))) == 8


def test_a_connection_that_breaks_disturbs_no_other_and_leaves_nothing(
    backend: Backend, tmp_path: Path
) -> None:
    with backend.client() as steady:
        before = open_files(backend.process.pid)
        for cut in ("header", "payload", "request"):
            with backend.client() as broken:
                broken.frames.send_json(Kind.CONTROL, commit(tmp_path, 1, attempt()))
                # What does not compress, so that it is on its way to a file.
                broken.frames.send(Kind.DATA, message({b"a": secrets.token_bytes(2_000_000)}))
                header = HEADER.pack(Kind.DATA, 0, 0, MAGIC, 100)
                broken.socket.sendall({"header": header[:7], "payload": header + b"1", "request": b""}[cut])
        assert steady.ask({"op": "explode"}).error["type"] == "ProtocolError"
        deadline = time.monotonic() + 20
        while open_files(backend.process.pid) > before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert open_files(backend.process.pid) == before
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert steady.ask(commit(tmp_path, 1, attempt()), data({b"a": b"1"})).error is None


def test_a_frame_that_is_too_large_ends_its_connection_alone(backend: Backend) -> None:
    with backend.client() as steady, backend.client() as broken:
        broken.socket.sendall(HEADER.pack(Kind.CONTROL, 0, 0, MAGIC, 17 << 20))
        answer = broken.answer()
        assert (answer.error["type"], broken.is_closed()) == ("ProtocolError", True)
        assert steady.ask({"op": "explode"}).error["type"] == "ProtocolError"


def test_it_listens_on_the_loopback_interface_where_it_is_told() -> None:
    running = Backend(tcp=True)
    try:
        assert running.ready["port"] > 0
        with running.client() as client:
            assert client.ask({"op": "explode"}).error["type"] == "ProtocolError"
        with running.connect() as connection:
            assert Client(connection).greet(token="").error["type"] == "AuthenticationError"
        listening = Path(f"/proc/{running.process.pid}/net/tcp").read_text()
        assert f"0100007F:{running.ready['port']:04X} 00000000:0000 0A" in listening
    finally:
        assert running.stop() == 0


def test_an_interrupt_is_not_for_it_and_the_end_of_its_input_is(tmp_path: Path) -> None:
    running = Backend()
    with running.client() as client:
        os.kill(running.process.pid, signal.SIGINT)
        assert client.ask(commit(tmp_path, 1, attempt()), data({b"a": b"1"})).error is None
        # Also while a connection is open and a request is half sent.
        client.frames.send_json(Kind.CONTROL, commit(tmp_path, 2, attempt()))
        client.frames.send(Kind.DATA, message({b"a": bytes(70_000)}))
        assert running.stop() == 0


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    parent = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'spark_statestore.server', '--listen', sys.argv[1]],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "p.stdin.write(b'token\\n'); p.stdin.flush(); p.stdout.readline()\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_without_a_token_it_does_not_start() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_statestore.server", "--listen", "tcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == '{"error": "no token arrived on standard input"}\n'


def test_what_its_interpreter_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError(\"No module named 'pyarrow'\")\n")
    done = subprocess.run(
        [sys.executable, "-m", "spark_statestore.server", "--listen", "tcp"],
        input="token\n",
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    for told in ("No module named 'pyarrow'", "pip install pyarrow fsspec", sys.executable, "backend.python"):
        assert told in done.stdout


# State that is in no file: its objects come and go with the requests


MEMORY = {"storage": "memory"}


def load_memory(paths: list[str], **changes: Any) -> dict[str, Any]:
    of = store("/kept", "another", **MEMORY)
    return {"op": "load", "store": of, "version": 2, "objects": paths} | changes


def test_state_in_no_file_travels_with_the_requests(backend: Backend) -> None:
    with backend.client() as client:
        request = {"store": store("/kept", **MEMORY)}
        first = client.ask(commit("/kept", 1, attempt(), **request), data({b"a": b"1"}))
        changes = commit(
            "/kept", 2, attempt(), hasParent=True, parentAttempt=first.control["attempt"], **request
        )
        second = client.ask(changes, (Kind.HANDLE, first.of(Kind.HANDLE)[0], 0), data({b"b": b"2"}))
        assert [frame.kind for frame in second.frames] == [Kind.CONTROL, Kind.HANDLE, Kind.OBJECT]
        objects = [(Kind.OBJECT, answer.of(Kind.OBJECT)[0], 0) for answer in (first, second)]
        # The first one is not the one that counts at its version: a later version builds on it anyway.
        paths = [f"chk-1/_metadata.{first.control['attempt']}", "chk-2/_metadata"]
        loaded = client.ask(load_memory(paths), *objects)
        assert loaded.error is None
        assert len(loaded.of(Kind.DATA)) == 2

        # Nothing of it is left in the backend.
        lost = client.ask(load_memory([]))
        assert lost.error["type"] == "StateLostError"
        old = client.ask(load_memory([], kept=[7, 9]))
        assert old.error["type"] == "CheckpointNotFoundError"
        assert "the versions 7 to 9" in old.error["message"]
        incomplete = client.ask(load_memory(["chk-2/_metadata"]), objects[1])
        assert incomplete.error["type"] == "CorruptCheckpointError"


def test_an_object_that_was_announced_must_follow(backend: Backend) -> None:
    with backend.client() as client:
        answer = client.ask(load_memory(["chk-2/_metadata"]))
        assert answer.error["type"] == "ProtocolError"
        assert "chk-2/_metadata was announced" in answer.error["message"]


def test_a_commit_to_files_sends_no_object(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        done = client.ask(commit(tmp_path, 1, attempt()), data({b"a": b"1"}))
        assert [frame.kind for frame in done.frames] == [Kind.CONTROL, Kind.HANDLE]
