"""Tests of reading event logs: files, rolling directories, compression, and what is none."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import pyarrow as pa
import pytest

from spark_statestore.assess.event_log import PROGRESS, TASK, EventLog
from spark_statestore.errors import EventLogError
from tests.unit.assess.logs import DATA, HDFS_LOG, events, progress, write


def read(path: Path) -> list[dict[str, object]]:
    return list(EventLog(str(path)).events())


def test_event_log_has_the_events_of_a_real_run() -> None:
    names = [event["Event"] for event in events()]
    assert names.count(PROGRESS) == 41
    # A task of the scan and one of each partition.
    assert names.count(TASK) == 41 * 9


@pytest.mark.parametrize("codec", ["lz4", "snappy"])
def test_codec_of_spark_is_decompressed(codec: str) -> None:
    assert [event["progress"] for event in read(DATA / f"progress.{codec}")] == progress()


def test_gzip_and_plain_files_are_read(tmp_path: Path) -> None:
    plain = write(tmp_path / "log", events())
    (tmp_path / "log.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert read(plain) == read(tmp_path / "log.gz") == events()


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_compressed_log_has_its_first_events(tmp_path: Path, codec: str, share: float) -> None:
    content = (HDFS_LOG if codec == "zstd" else DATA / f"progress.{codec}").read_bytes()
    path = tmp_path / "log"
    path.write_bytes(content[: int(len(content) * share)])
    log = EventLog(str(path))
    whole = events() if codec == "zstd" else [{"Event": PROGRESS, "progress": each} for each in progress()]
    first_events = list(log.events())
    assert first_events == whole[: len(first_events)]
    assert 0 < len(first_events) < len(whole)
    assert not log.is_complete


def test_last_line_may_end_in_the_middle(tmp_path: Path) -> None:
    content = write(tmp_path / "log", events()).read_bytes()
    (tmp_path / "log").write_bytes(content[:-20])
    log = EventLog(str(tmp_path / "log"))
    assert list(log.events()) == events()[:-1]
    assert not log.is_complete
    whole = EventLog(str(write(tmp_path / "log", events())))
    assert list(whole.events()) == events()
    assert whole.is_complete


def test_rolling_log_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    all_events = events()
    directory = tmp_path / "eventlog_v2_local-1"
    directory.mkdir()
    (directory / "appstatus_local-1.inprogress").touch()
    for number in range(1, 12):
        write(directory / f"events_{number}_local-1", all_events[(number - 1) * 50 : number * 50])
    assert read(directory) == all_events[:550]
    # Spark leaves one file for all events up to a number, and may not have deleted the others yet.
    write(directory / "events_3_local-1.compact", all_events[:1])
    assert read(directory) == [*all_events[:1], *all_events[150:550]]


def test_compressed_rolling_log_is_read(tmp_path: Path) -> None:
    text = write(tmp_path / "log", events()).read_bytes()
    middle = text.index(b"\n", len(text) // 2) + 1
    directory = tmp_path / "eventlog_v2_app-1"
    directory.mkdir()
    for number, part in enumerate((text[:middle], text[middle:]), 1):
        content = pa.Codec("zstd").compress(part, asbytes=True)
        (directory / f"events_{number}_app-1.zstd").write_bytes(content)
    assert read(directory) == events()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: the application has written no event"),
        (b"\n\n", "is empty"),
        (b"PAR1\x00\x01\n\x02", "is no event log of Spark and no progress as JSON lines: it has the line"),
        (b"no log", "is no event log of Spark"),
        (b'{"batchId": 1}\n{"batchId": 2}\n', "neither an event nor a StreamingQueryProgress"),
        (b'{"Event": 7', "is empty"),
        (b'{"Event":"x"}\nbroken\n{"Event":"x"}\n', "it has the line 'broken'"),
        (b"LZ4Block" + bytes(40) + b"abc", "is damaged: no block of lz4"),
        (b"\x82SNAPPY\x00" + bytes(7) + b"\x01" + b"\xff" * 9, "is damaged: a block of snappy has"),
        (b"\x82SNAPPY\x00" + bytes(7) + b"\x01" + bytes(3) + b"\x04\x05abc", "is damaged"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 200, "is damaged"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(EventLogError) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_lzf_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        EventLogError, match=r"lzf, which cannot be read here: .*spark\.eventLog\.compression"
    ):
        read(DATA / "progress.lzf")


def test_missing_log_and_directory_without_events_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EventLogError, match=r"there is no event log at .*spark\.eventLog\.enabled"):
        read(tmp_path / "none")
    with pytest.raises(EventLogError, match="without files events_N_"):
        read(tmp_path)


def test_line_of_progress_is_an_event(tmp_path: Path) -> None:
    path = write(tmp_path / "progress", progress())
    assert read(path) == [{"Event": PROGRESS, "progress": each} for each in progress()]
    (tmp_path / "spaces").write_text("".join(json.dumps(each) + "\n" for each in progress()))
    assert read(tmp_path / "spaces") == read(path)


def test_lz4_block_that_does_not_compress_is_read(tmp_path: Path) -> None:
    # LZ4BlockOutputStream then stores the bytes, and a block without bytes ends the stream.
    line = b'{"Event":"SparkListenerLogStart"}\n' + json.dumps({"Event": TASK}).encode() + b"\n"
    stored = struct.pack("<8sBiiI", b"LZ4Block", 0x16, len(line), len(line), 0) + line
    (tmp_path / "log.lz4").write_bytes(stored + struct.pack("<8sBiiI", b"LZ4Block", 0x16, 0, 0, 0))
    assert read(tmp_path / "log.lz4") == [{"Event": TASK}]
