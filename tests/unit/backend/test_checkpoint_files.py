"""Requests for the files that Spark writes itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from spark_statestore.backend.protocol import Kind
from tests.support.effort import EFFORT
from tests.support.trees import files_below
from tests.unit.backend.backends import Answer, Backend, Client

MISSING, EXISTS = "CheckpointNotFoundError", "CheckpointExistsError"


@pytest.fixture
def client(backend: Backend) -> Iterator[Client]:
    with backend.client() as connected:
        yield connected


NEEDED: dict[str, dict[str, Any]] = {
    "readFile": {"start": 0, "size": 1 << 20},
    "createFile": {"overwrite": False, "repeated": False},
    "fileStatus": {"isFile": False},
}


def ask(client: Client, op: str, path: Any, *parts: bytes, **fields: Any) -> Answer:
    request = {"op": op, "path": str(path), "options": {}} | NEEDED.get(op, {}) | fields
    return client.ask(request, *((Kind.OBJECT, part, 0) for part in parts))


def names(answer: Answer) -> dict[str, bool]:
    return {entry["name"]: entry["isDirectory"] for entry in answer.control["entries"]}


def error_of(answer: Answer) -> str:
    assert answer.error is not None
    return str(answer.error["type"])


def test_existing_file_is_an_error_with_its_path(client: Client, tmp_path: Path) -> None:
    ask(client, "createFile", tmp_path / "0", b"first")
    answer = ask(client, "createFile", tmp_path / "0", b"second")
    assert error_of(answer) == EXISTS
    assert "another query" in answer.error["message"]
    assert str(tmp_path / "0") in answer.error["message"]


def test_listing_has_files_and_directories_without_hadoops_checksums(client: Client, tmp_path: Path) -> None:
    ask(client, "makeDirectory", tmp_path / "d" / "below")
    for name in ("0", "1", ".0.crc", "below/2"):
        (tmp_path / "d" / name).write_bytes(b"12")
    answer = ask(client, "listDirectory", tmp_path / "d")
    assert names(answer) == {"0": False, "1": False, "below": True}
    assert {entry["size"] for entry in answer.control["entries"]} == {0, 2}
    assert all(entry["modified"] > 1_000_000_000_000 for entry in answer.control["entries"])


def test_hadoops_checksum_of_a_changed_file_is_removed(client: Client, tmp_path: Path) -> None:
    for name in ("replaced", "removed", "purged", "created"):
        (tmp_path / f".{name}.crc").write_bytes(b"crc")
    for name in ("removed", "purged"):
        (tmp_path / name).write_bytes(b"old")
    ask(client, "createFile", tmp_path / "replaced", b"new", overwrite=True)
    ask(client, "createFile", tmp_path / "created", b"new")
    ask(client, "deleteFile", tmp_path / "removed")
    ask(client, "deleteFiles", tmp_path, names=["purged", "missing"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["created", "replaced"]


def test_unusable_path_is_an_error_with_its_name(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    answer = ask(client, "createFile", tmp_path / "file" / "0", b"x")
    assert error_of(answer) == "CheckpointIOError"
    assert str(tmp_path / "file") in answer.error["message"]
    assert error_of(ask(client, "createFile", "gopher://host/x", b"x")) == "StorageURLError"


def test_path_with_blanks_and_percent_signs(client: Client, tmp_path: Path) -> None:
    assert ask(client, "createFile", f"file:{tmp_path}/a b%20c/0", b"x").error is None
    assert files_below(tmp_path) == {"a b%20c/0": b"x"}


@pytest.mark.parametrize("names", ["0", ["0", 1], ["../0"]])
def test_names_of_another_directory_are_a_protocol_error(client: Client, tmp_path: Path, names: Any) -> None:
    (tmp_path / "0").write_bytes(b"x")
    assert error_of(ask(client, "deleteFiles", tmp_path / "below", names=names)) == "ProtocolError"
    assert (tmp_path / "0").exists()


@pytest.mark.parametrize("field", ["path", "options", "overwrite", "repeated"])
def test_missing_field_is_a_protocol_error(client: Client, tmp_path: Path, field: str) -> None:
    request = {"op": "createFile", "path": f"{tmp_path}/x", "options": {}} | NEEDED["createFile"]
    del request[field]
    assert error_of(client.ask(request)) == "ProtocolError"
    assert list(tmp_path.iterdir()) == []


batches = st.integers(0, 4).map(str)
logs = st.sampled_from(["offsets", "commits", "sources/0"])
contents = st.lists(st.binary(max_size=20), max_size=3)


class LogMachine(RuleBasedStateMachine):
    """Spark's logs as a dict of their files."""

    client: Client
    root: str

    @initialize()
    def begin(self) -> None:
        self.model: dict[str, bytes] = {}
        ask(self.client, "deleteFile", self.root)

    @rule(log=logs, batch=batches, parts=contents, overwrite=st.booleans(), repeated=st.booleans())
    def create(self, log: str, batch: str, parts: list[bytes], overwrite: bool, repeated: bool) -> None:
        name, data = f"{log}/{batch}", b"".join(parts)
        answer = ask(
            self.client, "createFile", f"{self.root}/{name}", *parts, overwrite=overwrite, repeated=repeated
        )
        exists = name in self.model and not overwrite
        if exists and not (repeated and self.model[name] == data):
            assert error_of(answer) == EXISTS
        else:
            assert answer.error is None
            self.model[name] = data

    @rule(log=logs, batch=batches)
    def delete(self, log: str, batch: str) -> None:
        self.model.pop(f"{log}/{batch}", None)
        assert ask(self.client, "deleteFile", f"{self.root}/{log}/{batch}").error is None

    @rule(log=logs, names=st.lists(batches, max_size=4))
    def delete_files(self, log: str, names: list[str]) -> None:
        for name in names:
            self.model.pop(f"{log}/{name}", None)
        assert ask(self.client, "deleteFiles", f"{self.root}/{log}", names=names).error is None

    @rule(log=logs)
    def delete_log(self, log: str) -> None:
        self.model = {name: data for name, data in self.model.items() if not name.startswith(log + "/")}
        assert ask(self.client, "deleteFile", f"{self.root}/{log}").error is None

    @rule(log=logs, batch=batches, is_file=st.booleans())
    def status(self, log: str, batch: str, is_file: bool) -> None:
        answer = ask(self.client, "fileStatus", f"{self.root}/{log}/{batch}", isFile=is_file)
        sizes = [entry["size"] for entry in answer.control["entries"]]
        assert sizes == [len(self.model[name]) for name in [f"{log}/{batch}"] if name in self.model]

    @rule(log=logs, batch=batches, start=st.integers(0, 9), size=st.integers(0, 9))
    def read(self, log: str, batch: str, start: int, size: int) -> None:
        answer = ask(self.client, "readFile", f"{self.root}/{log}/{batch}", start=start, size=size)
        data = self.model.get(f"{log}/{batch}")
        if data is None:
            assert error_of(answer) == MISSING
        else:
            assert b"".join(answer.payloads(Kind.OBJECT)) == data[start : start + size]

    @invariant()
    def files_are_those_of_the_model(self) -> None:
        for log in ("offsets", "commits", "sources/0"):
            answer = ask(self.client, "listDirectory", f"{self.root}/{log}")
            assert answer.error is None or error_of(answer) == MISSING
            listing = {} if answer.error else names(answer)
            inside = {name.rpartition("/")[2] for name in self.model if name.startswith(log + "/")}
            assert set(listing) == inside
            for name in inside:
                answer = ask(self.client, "readFile", f"{self.root}/{log}/{name}")
                assert b"".join(answer.payloads(Kind.OBJECT)) == self.model[f"{log}/{name}"]


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_logs_are_a_dict(client: Client, tmp_path: Path, scheme: str) -> None:
    machine = type("Machine", (LogMachine,), {"client": client, "root": f"{scheme}://{tmp_path}/checkpoint"})
    test = machine.TestCase
    test.settings = settings(max_examples=25 * EFFORT, stateful_step_count=20, deadline=None)
    test().runTest()


def test_backend_of_a_killed_driver_leaves_whole_files(tmp_path: Path) -> None:
    backend = Backend()
    with backend.client() as client:
        for batch in range(3):
            ask(client, "createFile", tmp_path / str(batch), bytes(100_000))
        request = {"op": "createFile", "path": str(tmp_path / "3"), "options": {}}
        client.begin(request | NEEDED["createFile"], (Kind.OBJECT, bytes(200_000), 0))
    backend.stop()
    assert files_below(tmp_path) == {str(batch): bytes(100_000) for batch in range(3)}
