"""The backend process: its answers to requests, and its end."""

from __future__ import annotations

import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from spark_statestore._version import __version__
from spark_statestore.backend.protocol import PROTOCOL_VERSION, Kind
from spark_statestore.storage.snapshot_plan import SMALL_STATE, UNBOUNDED
from spark_statestore.store.metadata import ColumnFamily
from tests.spark.counting import wait_until
from tests.support.trees import files_below
from tests.unit.backend.backends import (
    HEADER,
    MAGIC,
    Answer,
    Backend,
    cleanup,
    commit,
    data,
    frame,
    open_files,
    state,
    store,
)
from tests.unit.store.stores import attempt_id


def handle_of(answer: Answer) -> tuple[Kind, bytes, int]:
    """Return the frame by which the next commit names its parent or base."""
    return (Kind.HANDLE, answer.payloads(Kind.HANDLE)[0], 0)


def child_of(parent: Answer) -> dict[str, Any]:
    """Return the fields by which a commit names its parent."""
    return {"hasParent": True, "parentAttemptId": parent.control["attemptId"]}


def load(root: Path | str, version: int, **changes: Any) -> dict[str, Any]:
    """Return the request of another store to load a version."""
    return {"op": "load", "store": store(root, "another"), "version": version} | changes


def test_backend_announces_itself_and_its_socket_is_its_users_only(backend: Backend) -> None:
    assert backend.ready["ready"] is True
    assert backend.ready["pid"] == backend.process.pid
    assert (backend.ready["version"], backend.ready["protocol"]) == (__version__, PROTOCOL_VERSION)
    assert Path(backend.ready["location"]).name == "spark_statestore"
    assert stat.S_IMODE(backend.path.stat().st_mode) == 0o600


def test_answers_have_the_plan_of_the_next_snapshot(backend: Backend, tmp_path: Path) -> None:
    described = store(tmp_path) | {"minDeltasForSnapshot": 2}
    rows = {"columnFamilies": [state(rows=1)], "store": described}
    with backend.client() as client:
        answer = client.ask(
            commit(tmp_path, 1, attempt_id()) | rows, data({b"a": secrets.token_bytes(70_000)})
        )
        plans = [answer.control["plan"]]
        for version in range(2, 6):
            request = commit(tmp_path, version, attempt_id()) | rows | child_of(answer) | {"knownSince": 2}
            answer = client.ask(request, handle_of(answer), data({b"a": b"1"}))
            plans.append(answer.control["plan"])
        loaded = client.ask(load(tmp_path, 5, store=described)).control
    assert answer.control["streams"] == [2, 3, 4, 5]
    assert [plan["fullUpTo"] for plan in plans] == [-1, -1, SMALL_STATE, SMALL_STATE, SMALL_STATE]
    # Three streams whose changes the JVM has make a run.
    assert [plan["uploadAtTick"] for plan in plans] == [-1, -1, -1, -1, 2]
    # After a load it has none.
    assert loaded["plan"] == plans[-1] | {"uploadAtTick": -1}


def test_requests_sent_together_are_answered_in_order(backend: Backend, tmp_path: Path) -> None:
    """One that fails changes nothing for the others."""
    changes = [data({b"k": b"%d" % number}) for number in range(4)]
    requests = [commit(tmp_path / str(number), 1, attempt_id()) for number in range(4)]
    requests[2]["version"] = -1
    with backend.client() as client:
        sent = [
            frame(Kind.CONTROL, json.dumps(request).encode()) + frame(*change) + frame(Kind.END)
            for request, change in zip(requests, changes, strict=True)
        ]
        client.socket.sendall(b"".join(sent))
        answers = [client.answer() for _ in requests]
        for number in (0, 1, 3):
            assert answers[number].control["attemptId"] == requests[number]["attemptId"]
        assert answers[2].error["type"] == "ProtocolError"
        for number in (0, 1, 3):
            assert client.ask(load(tmp_path / str(number), 1)).payloads(Kind.DATA) == [changes[number][1]]


def test_commit_request_refuses_unexpected_frames(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        request = commit(tmp_path, 1, attempt_id())
        for frames in (
            [(Kind.HANDLE, b"", 0)],
            [(Kind.DATA, b"junk", 0)],
            [(Kind.DATA, b"", 0)],
            [(Kind.DATA, bytes(64), 0)],
            [(*data({b"a": b"1"})[:2], 7)],
            [data({b"a": b"1"}), (Kind.CONTROL, b"{}", 0)],
        ):
            answer = client.ask(request, *frames)
            assert answer.error["type"] == "ProtocolError", answer.error
        for announced in ({"hasParent": True}, {"hasBase": True}):
            for frames in ([], [data({b"a": b"1"})]):
                assert client.ask(request | announced, *frames).error["type"] == "ProtocolError"
            broken = client.ask(request | announced, (Kind.HANDLE, b"junk", 0))
            assert broken.error["type"] == "CorruptCheckpointError"
    assert files_below(tmp_path) == {}


def test_failed_load_answers_with_the_error_only(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        files = {"store": store(tmp_path, fileStateThreshold="0")}
        client.ask(commit(tmp_path, 1, attempt_id()) | files, data({b"a": secrets.token_bytes(70_000)}))
        (shared,) = (tmp_path / "shared").iterdir()
        shared.write_bytes(shared.read_bytes()[:-1])
        answer = client.ask(load(tmp_path, 1))
        assert (answer.error["type"], answer.frames) == ("CorruptCheckpointError", [])
        assert shared.name in answer.error["message"]


def test_load_as_stored_returns_file_ranges_or_raw_messages(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        files = {"store": store(tmp_path, fileStateThreshold="0")}
        client.ask(commit(tmp_path, 1, attempt_id()) | files, data({b"a": secrets.token_bytes(70_000)}))
        (shared,) = (tmp_path / "shared").iterdir()
        answer = client.ask(load(tmp_path, 1, raw=True))
        assert answer.control["newestFirst"]
        assert [stream["path"] for stream in answer.control["files"]] == [str(shared)]
        assert answer.payloads(Kind.DATA) == []
        elsewhere = {"store": store(tmp_path, "elsewhere") | {"root": "memory://elsewhere"}}
        first = client.ask(commit(tmp_path, 1, attempt_id(), **elsewhere), data({b"a": b"1"}))
        second = commit(tmp_path, 2, attempt_id(), hasParent=True, **elsewhere)
        client.ask(second, handle_of(first), data({b"a": b"2"}))
        sent = client.ask(load(tmp_path, 2, raw=True, **elsewhere))
        assert "files" not in sent.control
        assert [frame.kind for frame in sent.frames[2:]] == [Kind.DATA, Kind.STREAM] * 2
        assert sent.payloads(Kind.DATA) == [data({b"a": value})[1] for value in (b"2", b"1")]


def test_load_answers_from_other_streams_than_damaged_ones(backend: Backend, tmp_path: Path) -> None:
    """Here the deltas since the first version are the same state as a damaged base."""
    options = {"store": store(tmp_path, fileStateThreshold="0", compression="none")}
    with backend.client() as client:
        first = client.ask(commit(tmp_path, 1, attempt_id()) | options, data({b"a": b"1"}))
        request = commit(tmp_path, 2, attempt_id(), **child_of(first)) | options
        second = client.ask(request, handle_of(first), data({b"b": b"2"}))
        upload = {"op": "snapshot", "version": 2, "columnFamilies": [state()]} | options
        base = client.ask(upload, data({b"a": b"1", b"b": b"2"}))
        request = commit(tmp_path, 3, attempt_id(), hasBase=True, **child_of(second)) | options
        client.ask(request, handle_of(second), handle_of(base), data({b"c": b"3"}))
        path = max((tmp_path / "shared").glob("2-*"), key=lambda path: path.stat().st_size)
        path.write_bytes(path.read_bytes()[:-1])
        located = client.ask(load(tmp_path, 3, raw=True) | options)
        assert str(path) in [stream["path"] for stream in located.control["files"]]
        assert located.control["plan"]["fullUpTo"] != UNBOUNDED
        answer = client.ask(load(tmp_path, 3) | options)
        assert (answer.error, answer.control["streamsRepaired"]) == (None, 1)
        assert (answer.control["baseVersion"], answer.control["streams"]) == (1, [2, 3])
        assert answer.control["plan"]["fullUpTo"] == UNBOUNDED
        expected = [data({key: value})[1] for key, value in ((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))]
        assert answer.payloads(Kind.DATA) == expected
        intact = client.ask(load(tmp_path, 2) | options)
        assert "streamsRepaired" not in intact.control
        assert intact.control["plan"]["fullUpTo"] != UNBOUNDED


def test_snapshot_is_a_base_and_cleanup_discards_old_versions(backend: Backend, tmp_path: Path) -> None:
    own_id = attempt_id()
    with backend.client() as client:
        first = client.ask(commit(tmp_path, 1, own_id), data({b"a": b"1"}))
        assert (first.error, [frame.kind for frame in first.frames]) == (None, [Kind.CONTROL, Kind.HANDLE])
        assert (first.control["chainLength"], first.control["baseVersion"]) == (1, 1)
        assert (first.control["objectsWritten"], first.control["memoryBytes"] > 0) == (1, True)
        request = commit(tmp_path, 2, own_id, **child_of(first))
        second = client.ask(request, handle_of(first), data({b"b": b"2"}))
        assert second.control["chainLength"] == 2
        upload = {"op": "snapshot", "store": store(tmp_path), "version": 2, "columnFamilies": [state()]}
        base = client.ask(upload, data({b"a": b"1", b"b": b"2"}))
        assert base.control["bytesWritten"] > 0
        request = commit(tmp_path, 3, own_id, hasBase=True, **child_of(second))
        third = client.ask(request, handle_of(second), handle_of(base), data({b"c": b"3"}))
        assert (third.control["chainLength"], third.control["baseVersion"]) == (2, 2)
        clean = cleanup(tmp_path, 3, own_id, retain_from=3)
        assert client.ask(clean, data({b"a": b"1"})).error["type"] == "ProtocolError"
        assert client.ask(clean).control["deleted"] == 2
        assert [path.parent.name for path in tmp_path.glob("chk-*/_metadata")] == ["chk-3"]
        loaded = client.ask(load(tmp_path, 3))
        assert (loaded.error, len(loaded.payloads(Kind.DATA))) == (None, 2)
        assert loaded.control["columnFamilies"] == [ColumnFamily.from_json(state()).to_json()]


def test_lineage_and_changes_requests_return_the_history(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as client:
        parent: list[tuple[Kind, bytes, int]] = []
        changed = [{b"a": b"1"}, {b"b": b"2"}, {b"a": b"3"}]
        for version, rows in enumerate(changed, 1):
            request = commit(tmp_path, version, f"{version:016x}", hasParent=bool(parent))
            answer = client.ask(request, *parent, data(rows))
            parent = [handle_of(answer)]
        request = {"store": store(tmp_path), "columnFamily": "default"}
        past = client.ask(request | {"op": "lineage", "version": 3, "oldest": 2})
        assert past.control["attempts"] == [f"{2:016x}", f"{3:016x}"]
        assert past.control["columnFamily"].items() >= state().items()
        assert past.control["columnFamilies"] == [past.control["columnFamily"]] * 2
        attempt = {"attemptId": past.control["attempts"][0], "idInPath": False}
        answer = client.ask(request | attempt | {"op": "changes", "version": 2})
        assert answer.payloads(Kind.DATA) == [data(changed[1])[1]]
        for start in (1, 3):
            assert client.ask(load(tmp_path, 3, **{"from": start})).control["chainLength"] == 3
        replayed = client.ask(load(tmp_path, 3, **{"from": 2, "fromId": "0"}))
        assert replayed.error["type"] == "CheckpointNotFoundError"


def test_broken_connection_affects_no_other_and_leaves_nothing(backend: Backend, tmp_path: Path) -> None:
    with backend.client() as steady:
        before = open_files(backend.process.pid)
        for cut in ("header", "payload", "request"):
            with backend.client() as broken:
                # What does not compress, so that it is on its way to a file.
                changes = data({b"a": secrets.token_bytes(2_000_000)})
                broken.begin(commit(tmp_path, 1, attempt_id()), changes)
                header = HEADER.pack(Kind.DATA, 0, MAGIC, 100, 0)
                broken.socket.sendall({"header": header[:7], "payload": header + b"1", "request": b""}[cut])
        assert steady.ask({"op": "explode"}).error["type"] == "ProtocolError"
        # Connections of earlier tests may have been closing at the first count.
        assert wait_until(lambda: open_files(backend.process.pid) <= before, 20)
        assert files_below(tmp_path) == {}
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
        client.begin(commit(tmp_path, 2, attempt_id()), data({b"a": bytes(70_000)}))
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

    def has_ended() -> bool:
        # A process that nothing reaps stays as a zombie.
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().split()[2] == "Z"

    assert wait_until(has_ended, 20)


def test_output_of_libraries_does_not_block_the_backend(tmp_path: Path) -> None:
    marker = tmp_path / "done"
    (tmp_path / "sitecustomize.py").write_text(
        "import pathlib, sys, threading, time\n"
        "def much():\n"
        "    time.sleep(1)\n"
        "    for _ in range(1000):\n"
        "        print('x' * 1000)\n"
        f"    pathlib.Path({str(marker)!r}).touch()\n"
        "if 'spark_statestore.backend' in str(sys.orig_argv):\n"
        "    threading.Thread(target=much, daemon=True).start()\n"
    )
    running = Backend(environment={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"})
    reader = threading.Thread(target=running.process.stderr.read, daemon=True)
    reader.start()
    assert wait_until(marker.exists, 20)
    with running.client() as client:
        assert client.ask({"op": "explode"}).error["type"] == "ProtocolError"
    running.process.stdin.close()
    assert running.process.wait(20) == 0
    reader.join(20)
    running.stop()


def test_backend_error_names_missing_packages(tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError(\"No module named 'pyarrow'\")\n")
    process = subprocess.run(
        [sys.executable, "-m", "spark_statestore.backend", "--listen", "/nowhere/socket"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    assert process.returncode == 1
    for text in ("No module named 'pyarrow'", "pip install pyarrow fsspec", sys.executable, "backend.python"):
        assert text in process.stdout


# State that is in no file: its objects come and go with the requests


MEMORY = {"storage": "memory"}


def load_memory(paths: list[str], **changes: Any) -> dict[str, Any]:
    return load("/kept", 2, store=store("/kept", "another", **MEMORY), metadataPaths=paths, **changes)


def test_memory_storage_sends_objects_with_the_requests(backend: Backend) -> None:
    with backend.client() as client:
        request = {"store": store("/kept", **MEMORY)}
        first = client.ask(commit("/kept", 1, attempt_id(), **request), data({b"a": b"1"}))
        changes = commit("/kept", 2, attempt_id(), **child_of(first), **request)
        second = client.ask(changes, handle_of(first), data({b"b": b"2"}))
        assert [frame.kind for frame in second.frames] == [Kind.CONTROL, Kind.HANDLE, Kind.OBJECT]
        objects = [(Kind.OBJECT, answer.payloads(Kind.OBJECT)[0], 0) for answer in (first, second)]
        # The first attempt is not the one that counts at its version: a later version builds on it anyway.
        paths = [f"chk-1/_metadata.{first.control['attemptId']}", "chk-2/_metadata"]
        loaded = client.ask(load_memory(paths), *objects)
        assert loaded.error is None
        assert len(loaded.payloads(Kind.DATA)) == 2

        # Nothing of it is left in the backend.
        assert client.ask(load_memory([])).error["type"] == "StateLostError"
        old = client.ask(load_memory([], driverRange=[7, 9]))
        assert old.error["type"] == "CheckpointNotFoundError"
        assert "the versions 7 to 9" in old.error["message"]
        incomplete = client.ask(load_memory(["chk-2/_metadata"]), objects[1])
        assert incomplete.error["type"] == "CorruptCheckpointError"
        unsent = client.ask(load_memory(["chk-2/_metadata"]))
        assert unsent.error["type"] == "ProtocolError"
        assert "chk-2/_metadata was announced" in unsent.error["message"]
