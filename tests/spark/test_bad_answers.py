"""Malformed answers of the backend: the JVM refuses them with an error, within bounded memory."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import psutil
import pytest
from hypothesis import given, settings
from py4j.protocol import Py4JJavaError

from spark_statestore.backend.protocol import Kind
from tests.fuzz.mutations import damaged
from tests.spark.counting import jvm_of, messages, runs
from tests.spark.harness import Provider
from tests.spark.impostor import installed
from tests.support.effort import EFFORT
from tests.unit.store.stores import message

HEADER = struct.Struct("<BxHIQI")
MAGIC = 0x31545353
OURS = "org.apache.spark.sql.statestore."
ROW = bytes(16)


def frame(
    kind: int,
    payload: bytes = b"",
    *,
    length: int | None = None,
    magic: int = MAGIC,
    state: int = 0,
    checksum: int | None = None,
) -> bytes:
    size = len(payload) if length is None else length
    return (
        HEADER.pack(kind, state, magic, size, zlib.crc32(payload) if checksum is None else checksum) + payload
    )


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
    "createdAtVersion": 0,
}
LOADED = {
    "attemptId": "0123456789abcdef",
    "chainLength": 1,
    "baseVersion": 1,
    "streams": [],
    "plan": {"inlineUpTo": 0, "fullUpTo": -1, "upload": -1, "fullUpToAtTick": -1, "uploadAtTick": -1},
    "columnFamilies": [STATE],
    "bytesRead": 1,
    "memoryBytes": 1,
}
HANDLE = frame(Kind.HANDLE, b"opaque")
END = frame(Kind.END)


@contextmanager
def answers(spark: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sst-", dir="/tmp") as directory:
        yield Path(directory)
        # It would otherwise live as long as the session.
        for process in psutil.Process(jvm_of(spark)).children():
            if runs(process, directory):
                process.kill()


@pytest.fixture(scope="module")
def answering(spark: Any) -> Iterator[Path]:
    with answers(spark) as directory:
        yield directory


def load(spark: Any, directory: Path, answer: bytes, location: str = "file:/nowhere") -> Any:
    """Return the exception of a load with this answer, None if it succeeds."""
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
    names = []
    while thrown is not None:
        names.append(thrown.getClass().getName())
        thrown = thrown.getCause()
    return names


def test_load_accepts_a_well_formed_answer(spark: Any, answering: Path) -> None:
    # The control for the other tests.
    thrown = load(spark, answering, control(LOADED) + HANDLE + END)
    assert thrown is None, messages(thrown)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (frame(Kind.CONTROL, b"{"), "not valid JSON"),
        (frame(Kind.CONTROL, b"[" * 100_000), "not valid JSON"),
        (frame(Kind.CONTROL, b"[]"), "not a JSON object"),
        (frame(Kind.CONTROL, b""), "not a JSON object"),
        (frame(Kind.CONTROL, b"null"), "not a JSON object"),
        (frame(Kind.CONTROL, b"{}", magic=7), "out of step"),
        (frame(99, b"{}"), "out of step"),
        (frame(Kind.CONTROL, length=(16 << 20) + 1), "out of step"),
        (frame(Kind.CONTROL, length=2**63), "out of step"),
        (frame(Kind.CONTROL, b"{}", checksum=1), "does not match its checksum"),
        (frame(Kind.END, checksum=1), "does not match its checksum"),
        (control(LOADED) + frame(Kind.HANDLE, b"opaque", checksum=1) + END, "does not match its checksum"),
        (
            control(LOADED) + HANDLE + frame(Kind.DATA, message({ROW: ROW}).to_pybytes(), checksum=1) + END,
            "does not match its checksum",
        ),
        (HANDLE, "an unexpected frame of kind"),
        (END, "an unexpected frame of kind"),
        (frame(Kind.ERROR, b"nonsense"), "not valid JSON"),
        (control(LOADED) + END, "an unexpected frame of kind"),
        (control(LOADED) + frame(Kind.HANDLE, length=1 << 40), "out of step"),
        (control(LOADED) + HANDLE + HANDLE, "an unexpected frame of kind"),
        (control(LOADED) + HANDLE + frame(Kind.DATA, bytes(64)) + END, "cannot be decoded"),
        (
            control(LOADED) + HANDLE + frame(Kind.DATA, message({ROW: ROW}).to_pybytes(), state=9) + END,
            "cannot be decoded",
        ),
        (control(LOADED | {"attemptId": None}) + HANDLE + END, "described a version incompletely"),
        (control({"columnFamilies": [STATE]}) + HANDLE + END, "described a version incompletely"),
        (control(LOADED | {"columnFamilies": [STATE | {"rows": 7}]}) + HANDLE + END, "has 0 keys"),
        (control(LOADED | {"files": {"a": 1}}) + HANDLE + END, "is not a JSON array"),
        (control(LOADED | {"files": [{}]}) + HANDLE + END, "cannot be decoded"),
        (control(LOADED | {"files": [{"path": "a\0b", "parts": []}]}) + HANDLE + END, "cannot be decoded"),
    ],
)
def test_load_rejects_a_malformed_answer(spark: Any, answering: Path, answer: bytes, expected: str) -> None:
    thrown = load(spark, answering, answer)
    assert thrown is not None
    text = messages(thrown)
    assert expected in text, text
    assert any(kind.startswith(OURS) for kind in kinds(thrown)), kinds(thrown)


@pytest.mark.parametrize(
    "parts",
    [[[0, -1]], [[0, 2**31 - 1]], [[0, 2**40]], [[0, 2**63 - 1]] * 3, [[0, 16], [0, -(2**62)]], {"a": 1}],
)
@pytest.mark.parametrize("start", [0, -1, 2**62])
def test_load_allocates_nothing_for_a_file_shorter_than_declared(
    spark: Any, answering: Path, tmp_path: Path, parts: Any, start: int
) -> None:
    stream = tmp_path / "stream"
    stream.write_bytes(b"\x89SSTS\r\n\x1a\x01\0\0\0\0\0\0\0" + bytes(100))
    file = {"path": str(stream), "start": start, "isWhole": True, "checksum": 0, "parts": parts}
    thrown = load(spark, answering, control(LOADED | {"files": [file]}) + HANDLE + END)
    assert thrown is not None
    assert "java.lang.OutOfMemoryError" not in kinds(thrown)
    assert any(kind.startswith(OURS) for kind in kinds(thrown)), kinds(thrown)


junk = st.one_of(
    st.sampled_from(
        [None, True, "", "x", -1, 0, 2**31, 2**63, 1.5, [], {}, [[]], [None], "../../x", "a" * 9000]
    ),
    st.integers(),
)


@settings(max_examples=12 * EFFORT)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_load_survives_any_damaged_answer(
    spark: Any, answering: Path, data: st.DataObject, seed: int
) -> None:
    node: Any = copy.deepcopy(LOADED)
    for _ in range(data.draw(st.integers(0, 2))):
        inside = data.draw(
            st.sampled_from([node, *[s for s in node.get("columnFamilies") or [] if isinstance(s, dict)]])
        )
        inside[data.draw(st.sampled_from(sorted(inside)))] = data.draw(junk)
        if not isinstance(node["columnFamilies"], list):
            break
    chance = random.Random(seed)
    changes = damaged(message({ROW: ROW}).to_pybytes(), chance)
    answer = control(node) + HANDLE + frame(Kind.DATA, changes, state=chance.choice((0, 0, 1, 65535))) + END
    thrown = load(spark, answering, answer)
    assert "java.lang.OutOfMemoryError" not in kinds(thrown)
    assert "java.lang.InternalError" not in kinds(thrown)


def test_load_reserves_no_more_rows_than_there_are_bytes(spark: Any, answering: Path) -> None:
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    column_families = [STATE | {"rows": 1 << 40}]
    before = runtime.totalMemory() - runtime.freeMemory()
    for counts in ({"bytesRead": 1000}, {"bytesRead": 1 << 60}):
        thrown = load(
            spark, answering, control(LOADED | {"columnFamilies": column_families} | counts) + HANDLE + END
        )
        assert "has 0 keys" in messages(thrown)
    # An index of so many rows would take terabytes.
    assert runtime.totalMemory() - runtime.freeMemory() - before < 500 << 20


def test_load_does_not_instantiate_a_class_that_a_schema_names(spark: Any, answering: Path) -> None:
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
        column_families = [STATE, STATE | {"name": "other", name: schema}]
        thrown = load(spark, answering, control(LOADED | {"columnFamilies": column_families}) + HANDLE + END)
        assert f"names the class {planted} as a user-defined type" in messages(thrown)
    assert spark._jvm.org.apache.spark.sql.statestore.Planted.count() == 0


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process of another user")
def test_load_sends_nothing_to_a_process_of_another_user(spark: Any) -> None:
    with answers(spark) as directory:
        (directory / "stranger").touch()
        thrown = load(spark, directory, control(LOADED) + HANDLE + END)
        received = (directory / "stranger").read_bytes()
    assert set(received.splitlines()) == {b"connected"}
    text = messages(thrown)
    assert "is of user nobody instead of root: it is another process" in text


def test_start_error_quotes_an_interpreter_that_prints_to_standard_output(spark: Any, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho Welcome to this cluster\ncat > /dev/null\n")
    script.chmod(0o755)
    provider = Provider(spark, f"file:{tmp_path}", backend__python=str(script))
    with pytest.raises(Py4JJavaError) as caught:
        provider.open_read(1)
    provider.close()
    text = messages(caught.value.java_exception)
    assert "printed 'Welcome to this cluster'" in text
    assert "must print to standard error" in text
