"""What the JVM makes of a backend that answers nonsense: an error, within its memory, and it goes on."""

from __future__ import annotations

import copy
import json
import random
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import psutil
import pytest
from hypothesis import given, settings
from py4j.protocol import Py4JJavaError

from spark_statestore.server.protocol import Kind
from tests.checkpoint.stores import message
from tests.effort import EFFORT
from tests.fuzz.mutations import damaged
from tests.spark.counting import jvm_of, messages, runs
from tests.spark.harness import Provider
from tests.spark.impostor import installed

HEADER = struct.Struct("<BBHIQ")
MAGIC = 0x31545353
OURS = "org.apache.spark.sql.statestore."
ROW = bytes(16)


def frame(
    kind: int, payload: bytes = b"", *, length: int | None = None, magic: int = MAGIC, state: int = 0
) -> bytes:
    return HEADER.pack(kind, 0, state, magic, len(payload) if length is None else length) + payload


def control(node: Any) -> bytes:
    return frame(Kind.CONTROL, json.dumps(node).encode())


STATE = {
    "name": "default",
    "rows": 0,
    "keySchema": '{"type":"struct","fields":[]}',
    "valueSchema": '{"type":"struct","fields":[]}',
    "keyEncoder": "hash",
    "prefixColumns": 0,
    "orderingColumns": [],
    "values": None,
    "internal": False,
    "since": 0,
}
LOADED = {
    "attempt": "0123456789abcdef",
    "chainLength": 1,
    "baseVersion": 1,
    "baseBytes": 0,
    "deltaBytes": 0,
    "states": [STATE],
    "bytesRead": 1,
    "memoryBytes": 1,
}
HANDLE = frame(Kind.HANDLE, b"opaque")
END = frame(Kind.END)


@contextmanager
def answers(spark: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sst-", dir="/tmp") as directory:
        yield Path(directory)
        # Else it is there for as long as the session.
        for process in psutil.Process(jvm_of(spark)).children():
            if runs(process, directory):
                process.kill()


@pytest.fixture(scope="module")
def answering(spark: Any) -> Iterator[Path]:
    with answers(spark) as directory:
        yield directory


def load(spark: Any, directory: Path, answer: bytes, location: str = "file:/nowhere") -> Any:
    """What a load that is answered so throws, None if nothing."""
    (directory / "answer").write_bytes(answer)
    provider = Provider(spark, location, backend__python=installed(directory))
    try:
        provider.open_read(1).release()
    except Py4JJavaError as error:
        return error.java_exception
    finally:
        provider.close()
    return None


def kinds(thrown: Any) -> list[str]:
    found = []
    while thrown is not None:
        found.append(thrown.getClass().getName())
        thrown = thrown.getCause()
    return found


def test_an_answer_as_it_should_be_is_taken(spark: Any, answering: Path) -> None:
    # Else the rest would show nothing.
    thrown = load(spark, answering, control(LOADED) + HANDLE + END)
    assert thrown is None, messages(thrown)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (frame(Kind.CONTROL, b"{"), "no JSON"),
        (frame(Kind.CONTROL, b"[" * 100_000), "no JSON"),
        (frame(Kind.CONTROL, b"[]"), "no object"),
        (frame(Kind.CONTROL, b""), "no object"),
        (frame(Kind.CONTROL, b"null"), "no object"),
        (frame(Kind.CONTROL, b"{}", magic=7), "out of step"),
        (frame(99, b"{}"), "out of step"),
        (frame(Kind.CONTROL, length=(16 << 20) + 1), "out of step"),
        (frame(Kind.CONTROL, length=2**63), "out of step"),
        (HANDLE, "out of turn"),
        (END, "out of turn"),
        (frame(Kind.ERROR, b"nonsense"), "no JSON"),
        (control(LOADED) + END, "out of turn"),
        (control(LOADED) + frame(Kind.HANDLE, length=1 << 40), "out of step"),
        (control(LOADED) + HANDLE + HANDLE, "out of turn"),
        (control(LOADED) + HANDLE + frame(Kind.DATA, bytes(64)) + END, "cannot be read"),
        (
            control(LOADED) + HANDLE + frame(Kind.DATA, message({ROW: ROW}).to_pybytes(), state=9) + END,
            "cannot be read",
        ),
        (control(LOADED | {"attempt": None}) + HANDLE + END, "without saying what it is"),
        (control({"states": [STATE]}) + HANDLE + END, "without saying what it is"),
        (control(LOADED | {"states": [STATE | {"rows": 7}]}) + HANDLE + END, "gave 0 keys"),
        (control(LOADED | {"files": {"a": 1}}) + HANDLE + END, "no list"),
        (control(LOADED | {"files": [{}]}) + HANDLE + END, "cannot be read"),
        (control(LOADED | {"files": [{"path": "a\0b", "parts": []}]}) + HANDLE + END, "cannot be read"),
    ],
)
def test_an_answer_that_is_none_is_refused(spark: Any, answering: Path, answer: bytes, told: str) -> None:
    thrown = load(spark, answering, answer)
    assert thrown is not None
    said = messages(thrown)
    assert told in said, said
    assert any(kind.startswith(OURS) for kind in kinds(thrown)), kinds(thrown)


@pytest.mark.parametrize(
    "parts",
    [[[0, -1]], [[0, 2**31 - 1]], [[0, 2**40]], [[0, 2**63 - 1]] * 3, [[0, 16], [0, -(2**62)]], {"a": 1}],
)
@pytest.mark.parametrize("start", [0, -1, 2**62])
def test_a_file_that_is_shorter_than_is_said_takes_no_memory(
    spark: Any, answering: Path, tmp_path: Path, parts: Any, start: int
) -> None:
    stream = tmp_path / "stream"
    stream.write_bytes(b"\x89SSTS\r\n\x1a\x03\0\0\0\0\0\0\0" + bytes(100))
    told = {"path": str(stream), "start": start, "isWhole": True, "checksum": 0, "parts": parts}
    thrown = load(spark, answering, control(LOADED | {"files": [told]}) + HANDLE + END)
    assert thrown is not None
    assert "java.lang.OutOfMemoryError" not in kinds(thrown)
    assert any(kind.startswith(OURS) for kind in kinds(thrown)), kinds(thrown)


junk = st.one_of(
    st.sampled_from(
        [None, True, "", "x", -1, 0, 2**31, 2**63, 1.5, [], {}, [[]], [None], "../../x", "a" * 9000]
    ),
    st.integers(),
)


@settings(max_examples=25 * EFFORT)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_other_answer_is_taken_or_refused(
    spark: Any, answering: Path, data: st.DataObject, seed: int
) -> None:
    node: Any = copy.deepcopy(LOADED)
    for _ in range(data.draw(st.integers(0, 2))):
        inside = data.draw(
            st.sampled_from([node, *[s for s in node.get("states") or [] if isinstance(s, dict)]])
        )
        inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(junk)
        if not isinstance(node["states"], list):
            break
    chance = random.Random(seed)
    changes = damaged(message({ROW: ROW}).to_pybytes(), chance)
    answer = control(node) + HANDLE + frame(Kind.DATA, changes, state=chance.choice((0, 0, 1, 65535))) + END
    thrown = load(spark, answering, answer)
    assert "java.lang.OutOfMemoryError" not in kinds(thrown)
    assert "java.lang.InternalError" not in kinds(thrown)


def test_room_is_made_for_no_more_rows_than_there_are_bytes(spark: Any, answering: Path) -> None:
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    states = [STATE | {"rows": 1 << 40}]
    before = runtime.totalMemory() - runtime.freeMemory()
    for told in ({"bytesRead": 1000}, {"bytesRead": 1 << 60}):
        thrown = load(spark, answering, control(LOADED | {"states": states} | told) + HANDLE + END)
        assert "gave 0 keys" in messages(thrown)
    # An index of so many rows would take terabytes.
    assert runtime.totalMemory() - runtime.freeMemory() - before < 500 << 20


def test_a_class_that_a_schema_names_is_not_made(spark: Any, answering: Path) -> None:
    planted = f"{OURS}Planted"
    column = {"type": "udt", "class": planted, "pyClass": "a.b", "sqlType": "long"}
    field = {
        "name": "a",
        "type": {"type": "array", "elementType": column, "containsNull": True},
        "nullable": True,
    }
    schema = json.dumps({"type": "struct", "fields": [field | {"metadata": {}}]})
    for name in ("keySchema", "valueSchema"):
        # The schemas of the default state are the operator's own.
        states = [STATE, STATE | {"name": "other", name: schema}]
        thrown = load(spark, answering, control(LOADED | {"states": states}) + HANDLE + END)
        assert f"names the class {planted} as a user-defined type" in messages(thrown)
    assert spark._jvm.org.apache.spark.sql.statestore.Planted.count() == 0


@pytest.mark.slow
def test_a_process_that_does_not_know_the_token_is_told_nothing(spark: Any) -> None:
    with answers(spark) as directory:
        (directory / "stranger").touch()
        thrown = load(spark, directory, control(LOADED) + HANDLE + END)
    said = messages(thrown)
    assert "does not know the token that the backend was given" in said


def test_an_interpreter_that_prints_before_the_backend_does_is_named(spark: Any, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho Welcome to this cluster\nread -r token\n")
    script.chmod(0o755)
    provider = Provider(spark, f"file:{tmp_path}", backend__python=str(script))
    with pytest.raises(Py4JJavaError) as caught:
        provider.open_read(1)
    provider.close()
    said = messages(caught.value.java_exception)
    assert "said 'Welcome to this cluster'" in said
    assert "must print to standard error" in said
