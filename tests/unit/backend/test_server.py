"""The backend process: its handshake, its answers to requests, and its end."""

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
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_statestore._version import __version__
from spark_statestore.backend.protocol import PROTOCOL_VERSION, Kind
from spark_statestore.storage.snapshot_plan import SMALL_STATE
from spark_statestore.store.metadata import ColumnFamily
from tests.unit.backend.backends import Answer, Backend, Client, commit, open_files, state, store
from tests.unit.store.stores import attempt_id, message

HEADER = struct.Struct("<BxHIQI")
MAGIC = 0x31545353


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    running = Backend()
    yield running
    assert running.stop() == 0


def data(rows: dict[bytes, bytes], number: int = 0) -> tuple[Kind, bytes, int]:
    return (Kind.DATA, message(rows), number)


def test_backend_announces_its_process_and_version(backend: Backend) -> None:
    assert backend.ready["ready"] is True
    assert backend.ready["pid"] == backend.process.pid
    assert (backend.ready["version"], backend.ready["protocol"]) == (__version__, PROTOCOL_VERSION)
    assert Path(backend.ready["location"]).name == "spark_statestore"


def test_socket_is_accessible_to_its_user_only(backend: Backend) -> None:
    assert stat.S_IMODE(backend.path.stat().st_mode) == 0o600


def test_load_returns_what_commits_wrote(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        done = client.ask(commit(tmp_path, 1, attempt_id()), data({b"a": b"1", b"b": b"2"}))
        assert done.error is None
        assert (done.control["chainLength"], done.control["baseVersion"]) == (1, 1)
        assert (done.control["objectsWritten"], done.control["memoryBytes"] > 0) == (1, True)
        (handle,) = done.of(Kind.HANDLE)
        child = commit(tmp_path, 2, attempt_id(), hasParent=True, parentAttemptId=done.control["attemptId"])
        assert client.ask(child, (Kind.HANDLE, handle, 0), data({b"a": b"3"})).error is None
        loaded = client.ask({"op": "load", "store": store(tmp_path, "two"), "version": 2})
        assert loaded.error is None
        assert loaded.control["chainLength"] == 2
        assert loaded.control["columnFamilies"] == [ColumnFamily.from_json(state()).to_json()]
        assert len(loaded.of(Kind.DATA)) == 2


def test_answers_have_the_plan_of_the_next_snapshot(backend: Backend, tmp_path: Path) -> None:
    described = store(tmp_path) | {"snapshotInterval": 2}
    rows = {"columnFamilies": [state(rows=1)], "store": described}
    with backend.client() as client:
        done = client.ask(commit(tmp_path, 1, attempt_id()) | rows, data({b"a": secrets.token_bytes(70_000)}))
        plans = [done.control["plan"]]
        for version in range(2, 6):
            (handle,) = done.of(Kind.HANDLE)
            parent = {"hasParent": True, "parentAttemptId": done.control["attemptId"], "knownSince": 2}
            request = commit(tmp_path, version, attempt_id()) | rows | parent
            done = client.ask(request, (Kind.HANDLE, handle, 0), data({b"a": b"1"}))
            plans.append(done.control["plan"])
        loaded = client.ask({"op": "load", "store": described, "version": 5}).control
    assert done.control["streams"] == [2, 3, 4, 5]
    assert [plan["fullUpTo"] for plan in plans] == [-1, -1, SMALL_STATE, SMALL_STATE, SMALL_STATE]
    # Three streams whose changes the JVM has make a run.
    assert [plan["uploadAtTick"] for plan in plans] == [-1, -1, -1, -1, 2]
    # After a load it has none.
    assert loaded["plan"] == plans[-1] | {"uploadAtTick": -1}


def test_requests_sent_together_are_answered_in_order(backend: Backend, tmp_path: Path) -> None:
    """One that fails changes nothing for the others."""
    changes = [data({b"k": b"%d" % number}) for number in range(4)]
    asked = [commit(tmp_path / str(number), 1, attempt_id()) for number in range(4)]
    asked[2]["version"] = -1
    with backend.client() as client:
        answers = client.ask_together(*((one, [change]) for one, change in zip(asked, changes, strict=True)))
        assert [answer.control.get("attemptId") for answer in answers] == [
            None if number == 2 else asked[number]["attemptId"] for number in range(4)
        ]
        assert answers[2].error["type"] == "ProtocolError"
        for number in (0, 1, 3):
            loaded = client.ask({"op": "load", "store": store(tmp_path / str(number), "two"), "version": 1})
            assert loaded.of(Kind.DATA) == [changes[number][1].to_pybytes()]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"protocol": 99}, f"protocol 99.*protocol {PROTOCOL_VERSION}"),
        ({"protocol": None}, f"protocol None.*protocol {PROTOCOL_VERSION}"),
        ({"version": "99.0"}, f"99.0.*{__version__}.*install the same version"),
        ({"version": "1\nERROR forged"}, r"'1\\nERROR forged'"),
    ],
)
def test_handshake_refuses_another_version(backend: Backend, change: dict[str, Any], expected: str) -> None:
    with backend.connect() as connection:
        client = Client(connection)
        answer = client.handshake(**change)
        assert answer.error["type"] == "VersionMismatchError"
        assert re.search(expected, answer.error["message"])
        assert client.is_closed()


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a frame"),
        (HEADER.pack(Kind.CONTROL, 0, MAGIC, 4097, 0) + bytes(4097), "larger than the 4096 allowed"),
        (HEADER.pack(Kind.CONTROL, 0, MAGIC, 2**63, 0), "larger than the 4096 allowed"),
        (HEADER.pack(Kind.CONTROL, 0, MAGIC, 2, zlib.crc32(b"[]")) + b"[]", "instead of an object"),
        (HEADER.pack(Kind.DATA, 0, MAGIC, 0, 0), "starts with a DATA frame"),
        (HEADER.pack(77, 0, MAGIC, 0, 0), "not a frame"),
    ],
    ids=["http", "large", "huge", "no-object", "no-control", "no-kind"],
)
def test_handshake_refuses_unreadable_frames(backend: Backend, sent: bytes, expected: str) -> None:
    with backend.connect() as connection:
        connection.sendall(sent)
        client = Client(connection)
        error = client.answer().error
        assert error["type"] == "ProtocolError"
        assert expected in error["message"]
        assert client.is_closed()


@pytest.mark.parametrize("change", [{"op": "explode"}, {"op": None}, {"op": "load"}, {"op": "commit"}, {}])
def test_unknown_request_is_answered_and_the_next_one_served(
    backend: Backend, tmp_path: Path, change: dict[str, Any]
) -> None:
    with backend.client() as client:
        for rest in ([], [data({b"a": b"1"})] * 3):
            answer = client.ask(change, *rest)
            assert answer.error["type"] == "ProtocolError"
        assert client.ask(commit(tmp_path, 1, attempt_id()), data({b"a": b"1"})).error is None


def test_commit_request_refuses_unexpected_frames(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        one = commit(tmp_path, 1, attempt_id())
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


def test_error_answer_has_type_and_message(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        client.ask(commit(tmp_path, 1, attempt_id()), data({b"a": b"1"}))
        missing = client.ask({"op": "load", "store": store(tmp_path), "version": 7})
        assert missing.error["type"] == "CheckpointNotFoundError"
        assert "version 7" in missing.error["message"]
        unknown = client.ask({"op": "load", "store": store(tmp_path, "x", colour="blue"), "version": 1})
        assert unknown.error["type"] == "OptionError"
        elsewhere = store(tmp_path, "y") | {"root": "nonsense://host/x"}
        nowhere = client.ask({"op": "load", "store": elsewhere, "version": 1})
        assert nowhere.error["type"] == "StorageURLError"


def test_failed_load_answers_with_the_error_only(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        files = {"store": store(tmp_path, fileStateThreshold="0")}
        client.ask(commit(tmp_path, 1, attempt_id()) | files, data({b"a": secrets.token_bytes(70_000)}))
        (shared,) = (tmp_path / "shared").iterdir()
        shared.write_bytes(shared.read_bytes()[:-1])
        answer = client.ask({"op": "load", "store": store(tmp_path), "version": 1})
        assert (answer.error["type"], answer.frames) == ("CorruptCheckpointError", [])
        assert shared.name in answer.error["message"]


def test_load_as_stored_returns_file_ranges_or_raw_messages(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        files = {"store": store(tmp_path, fileStateThreshold="0")}
        client.ask(commit(tmp_path, 1, attempt_id()) | files, data({b"a": secrets.token_bytes(70_000)}))
        (shared,) = (tmp_path / "shared").iterdir()
        answer = client.ask({"op": "load", "store": store(tmp_path), "version": 1, "raw": True})
        assert answer.control["newestFirst"]
        assert [stream["path"] for stream in answer.control["files"]] == [str(shared)]
        assert answer.of(Kind.DATA) == []
        elsewhere = store(tmp_path, "elsewhere") | {"root": "memory://elsewhere"}
        made = client.ask(commit(tmp_path, 1, attempt_id(), store=elsewhere), data({b"a": b"1"}))
        changed = commit(tmp_path, 2, attempt_id(), store=elsewhere, hasParent=True)
        client.ask(changed, (Kind.HANDLE, made.of(Kind.HANDLE)[0], 0), data({b"a": b"2"}))
        sent = client.ask({"op": "load", "store": elsewhere, "version": 2, "raw": True})
        assert "files" not in sent.control
        assert [frame.kind for frame in sent.frames[2:]] == [Kind.DATA, Kind.STREAM] * 2
        assert sent.of(Kind.DATA) == [message({b"a": b"2"}).to_pybytes(), message({b"a": b"1"}).to_pybytes()]


def test_snapshot_request_gives_a_base_and_cleanup_discards_old_versions(
    backend: Backend, tmp_path: Path
) -> None:
    def after(parent: Answer, version: int, by: str) -> dict[str, Any]:
        return commit(tmp_path, version, by, hasParent=True, parentAttemptId=parent.control["attemptId"])

    def handle(answer: Answer) -> tuple[Kind, bytes, int]:
        return (Kind.HANDLE, answer.of(Kind.HANDLE)[0], 0)

    mine = attempt_id()
    with backend.client() as client:
        one = client.ask(commit(tmp_path, 1, mine), data({b"a": b"1"}))
        two = client.ask(after(one, 2, mine), handle(one), data({b"b": b"2"}))
        upload_snapshot = {
            "op": "snapshot",
            "store": store(tmp_path),
            "version": 2,
            "columnFamilies": [state()],
        }
        base = client.ask(upload_snapshot, data({b"a": b"1", b"b": b"2"}))
        assert base.control["bytesWritten"] > 0
        three = client.ask(
            after(two, 3, mine) | {"hasBase": True}, handle(two), handle(base), data({b"c": b"3"})
        )
        assert (three.control["chainLength"], three.control["baseVersion"]) == (2, 2)
        clean = {
            "op": "cleanup",
            "store": store(tmp_path),
            "version": 3,
            "attemptId": mine,
            "idInPath": False,
            "retainFrom": 3,
            "mostVersions": 0,
        }
        assert client.ask(clean, data({b"a": b"1"})).error["type"] == "ProtocolError"
        assert client.ask(clean).control["deleted"] == 2
        assert [path.parent.name for path in tmp_path.glob("chk-*/_metadata")] == ["chk-3"]
        loaded = client.ask({"op": "load", "store": store(tmp_path, "two"), "version": 3})
        assert (loaded.error, len(loaded.of(Kind.DATA))) == (None, 2)


def test_lineage_and_changes_requests_return_the_history(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        parent: list[tuple[Kind, bytes, int]] = []
        changed = [{b"a": b"1"}, {b"b": b"2"}, {b"a": b"3"}]
        for version, rows in enumerate(changed, 1):
            request = commit(tmp_path, version, f"{version:016x}", hasParent=bool(parent))
            answer = client.ask(request, *parent, data(rows))
            parent = [(Kind.HANDLE, answer.of(Kind.HANDLE)[0], 0)]
        request = {"store": store(tmp_path), "columnFamily": "default"}
        past = client.ask(request | {"op": "lineage", "version": 3, "oldest": 2})
        assert past.control["attempts"] == [f"{2:016x}", f"{3:016x}"]
        assert past.control["columnFamily"].items() >= state().items()
        assert past.control["columnFamilies"] == [past.control["columnFamily"]] * 2
        request |= {
            "op": "changes",
            "version": 2,
            "attemptId": past.control["attempts"][0],
            "idInPath": False,
        }
        assert client.ask(request).of(Kind.DATA) == [message(changed[1]).to_pybytes()]
        replayed = {"op": "load", "store": store(tmp_path), "version": 3, "from": 2}
        assert [client.ask(replayed | {"from": start}).control["chainLength"] for start in (1, 3)] == [3, 3]
        assert client.ask(replayed | {"fromId": "0"}).error["type"] == "CheckpointNotFoundError"


def test_backend_serves_requests_concurrently(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as slow:
        # Half a commit: its thread waits for the rest.
        slow.frames.send_json(Kind.CONTROL, commit(tmp_path / "slow", 1, attempt_id()))
        slow.frames.send(Kind.DATA, message({b"a": bytes(70_000)}))
        failures: list[object] = []

        def work(number: int) -> None:
            with backend.client() as client:
                for version in range(1, 6):
                    root = tmp_path / str(number)
                    request = commit(root, version, attempt_id(), store=store(root, f"thread-{number}"))
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


def test_broken_connection_affects_no_other_and_leaves_nothing(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as steady:
        before = open_files(backend.process.pid)
        for cut in ("header", "payload", "request"):
            with backend.client() as broken:
                broken.frames.send_json(Kind.CONTROL, commit(tmp_path, 1, attempt_id()))
                # What does not compress, so that it is on its way to a file.
                broken.frames.send(Kind.DATA, message({b"a": secrets.token_bytes(2_000_000)}))
                header = HEADER.pack(Kind.DATA, 0, MAGIC, 100, 0)
                broken.socket.sendall({"header": header[:7], "payload": header + b"1", "request": b""}[cut])
        assert steady.ask({"op": "explode"}).error["type"] == "ProtocolError"
        deadline = time.monotonic() + 20
        while open_files(backend.process.pid) > before and time.monotonic() < deadline:
            time.sleep(0.02)
        # Connections of earlier tests may have been closing at the first count.
        assert open_files(backend.process.pid) <= before
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
        assert steady.ask(commit(tmp_path, 1, attempt_id()), data({b"a": b"1"})).error is None


def test_oversized_frame_closes_only_its_connection(backend: Backend) -> None:
    with backend.client() as steady, backend.client() as broken:
        broken.socket.sendall(HEADER.pack(Kind.CONTROL, 0, MAGIC, 17 << 20, 0))
        answer = broken.answer()
        assert (answer.error["type"], broken.is_closed()) == ("ProtocolError", True)
        assert steady.ask({"op": "explode"}).error["type"] == "ProtocolError"


def test_backend_ignores_interrupts_and_ends_with_its_input(tmp_path: Path) -> None:
    running = Backend()
    with running.client() as client:
        os.kill(running.process.pid, signal.SIGINT)
        assert client.ask(commit(tmp_path, 1, attempt_id()), data({b"a": b"1"})).error is None
        # Also while a connection is open and a request is half sent.
        client.frames.send_json(Kind.CONTROL, commit(tmp_path, 2, attempt_id()))
        client.frames.send(Kind.DATA, message({b"a": bytes(70_000)}))
        assert running.stop() == 0


def test_backend_ends_with_its_parent_process(tmp_path: Path) -> None:
    parent = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'spark_statestore.backend', '--listen', sys.argv[1]],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "p.stdout.readline()\n"
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


def test_backend_error_names_missing_packages(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError(\"No module named 'pyarrow'\")\n")
    done = subprocess.run(
        [sys.executable, "-m", "spark_statestore.backend", "--listen", "/nowhere/socket"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 1
    for expected in (
        "No module named 'pyarrow'",
        "pip install pyarrow fsspec",
        sys.executable,
        "backend.python",
    ):
        assert expected in done.stdout


# State that is in no file: its objects come and go with the requests


MEMORY = {"storage": "memory"}


def load_memory(paths: list[str], **changes: Any) -> dict[str, Any]:
    of = store("/kept", "another", **MEMORY)
    return {"op": "load", "store": of, "version": 2, "metadataPaths": paths} | changes


def test_memory_storage_sends_objects_with_the_requests(backend: Backend) -> None:
    with backend.client() as client:
        request = {"store": store("/kept", **MEMORY)}
        first = client.ask(commit("/kept", 1, attempt_id(), **request), data({b"a": b"1"}))
        changes = commit(
            "/kept", 2, attempt_id(), hasParent=True, parentAttemptId=first.control["attemptId"], **request
        )
        second = client.ask(changes, (Kind.HANDLE, first.of(Kind.HANDLE)[0], 0), data({b"b": b"2"}))
        assert [frame.kind for frame in second.frames] == [Kind.CONTROL, Kind.HANDLE, Kind.OBJECT]
        objects = [(Kind.OBJECT, answer.of(Kind.OBJECT)[0], 0) for answer in (first, second)]
        # The first one is not the one that counts at its version: a later version builds on it anyway.
        paths = [f"chk-1/_metadata.{first.control['attemptId']}", "chk-2/_metadata"]
        loaded = client.ask(load_memory(paths), *objects)
        assert loaded.error is None
        assert len(loaded.of(Kind.DATA)) == 2

        # Nothing of it is left in the backend.
        lost = client.ask(load_memory([]))
        assert lost.error["type"] == "StateLostError"
        old = client.ask(load_memory([], driverRange=[7, 9]))
        assert old.error["type"] == "CheckpointNotFoundError"
        assert "the versions 7 to 9" in old.error["message"]
        incomplete = client.ask(load_memory(["chk-2/_metadata"]), objects[1])
        assert incomplete.error["type"] == "CorruptCheckpointError"


def test_load_request_requires_the_announced_objects(backend: Backend) -> None:
    with backend.client() as client:
        answer = client.ask(load_memory(["chk-2/_metadata"]))
        assert answer.error["type"] == "ProtocolError"
        assert "chk-2/_metadata was announced" in answer.error["message"]


def test_commit_answer_to_files_has_no_object(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        done = client.ask(commit(tmp_path, 1, attempt_id()), data({b"a": b"1"}))
        assert [frame.kind for frame in done.frames] == [Kind.CONTROL, Kind.HANDLE]
