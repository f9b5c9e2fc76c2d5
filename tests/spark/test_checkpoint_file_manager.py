"""Spark's own files of a checkpoint, read and written through the backend."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest
from py4j.protocol import Py4JJavaError

import spark_statestore
from spark_statestore.options import OPTION_PREFIX
from tests.spark.backend_faults import FaultyBackend
from tests.spark.counting import run_to, start_counting, wait_for_batch
from tests.spark.queries import configured
from tests.support.slow import SlowStorage
from tests.support.spark_versions import is_since

KEY = "spark.sql.streaming.checkpointFileManagerClass"
OURS = spark_statestore.FILE_MANAGER_CLASS
HADOOPS = "org.apache.spark.sql.execution.streaming.{}FileContextBasedCheckpointFileManager".format(
    "checkpointing." if is_since("4.1") else ""
)

CHUNK = 8 << 20
"""Bytes of one request."""


def session_of(spark: Any) -> Any:
    """Return a new session with the file manager."""
    session = spark.newSession()
    session.conf.set(KEY, OURS)
    return session


class Manager:
    """The file manager of a directory, called as Spark calls it."""

    def __init__(self, spark: Any, directory: str) -> None:
        self._spark = spark
        self._jvm = spark._jvm
        hadoop = spark._jsparkSession.sessionState().newHadoopConf()
        self.directory = directory
        self.jvm_manager = self._jvm.org.apache.spark.sql.statestore.BackendCheckpointFileManager(
            self.path(""), hadoop
        )

    def path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.directory}/{name}" if name else self.directory)

    def write(self, name: str, *parts: bytes, overwrite: bool = False, cancel: bool = False) -> None:
        out = self.jvm_manager.createAtomic(self.path(name), overwrite)
        for part in parts:
            out.write(bytearray(part))
        if cancel:
            out.cancel()
        out.close()

    def read(self, name: str, start: int = 0) -> bytes:
        source = self.jvm_manager.open(self.path(name))
        source.seek(start)
        return bytes(source.readAllBytes())

    def names(self) -> dict[str, int]:
        statuses = self.jvm_manager.list(self.path(""))
        return {
            status.getPath().getName(): -1 if status.isDirectory() else status.getLen() for status in statuses
        }


@pytest.fixture
def manager(spark: Any, tmp_path: Path) -> Manager:
    return Manager(spark, f"file:{tmp_path}/offsets")


def test_file_appears_whole_when_it_is_closed(manager: Manager, tmp_path: Path) -> None:
    manager.jvm_manager.mkdirs(manager.path(""))
    out = manager.jvm_manager.createAtomic(manager.path("0"), False)
    out.write(bytearray(b"one"))
    assert manager.names() == {}
    out.close()
    out.close()
    assert manager.names() == {"0": 3}
    assert manager.read("0", 1) == b"ne"
    manager.write("1", b"never", cancel=True)
    assert [path.name for path in (tmp_path / "offsets").iterdir()] == ["0"]


def test_existing_file_is_replaced_only_if_allowed(manager: Manager) -> None:
    manager.write("0", b"first")
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        manager.write("0", b"second")
    assert manager.read("0") == b"first"
    manager.write("0", b"third", overwrite=True)
    assert manager.read("0") == b"third"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "kill_after"])
def test_file_is_created_once_whenever_its_backend_is_killed(
    spark: Any, tmp_path: Path, kind: Literal["kill", "kill_after"]
) -> None:
    backend = FaultyBackend(tmp_path)
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "driverPython", backend.python)
    manager = Manager(session, f"file:{backend.files}/offsets")
    calls, fired = 0, "something"
    while fired:
        calls += 1
        backend.strike(kind, calls)
        manager.write(str(calls), b"entry")
        fired = backend.stop()
        assert (backend.files / "offsets" / str(calls)).read_bytes() == b"entry"
    assert calls > 3


def test_next_batch_is_asked_about_only_when_it_is_created(manager: Manager, tmp_path: Path) -> None:
    manager.write("0", b"first")
    # Another query is faster.
    (tmp_path / "offsets" / "1").write_bytes(b"of another query")
    assert not manager.jvm_manager.exists(manager.path("1"))
    with pytest.raises(Py4JJavaError, match="FileAlreadyExistsException"):
        manager.write("1", b"second")
    assert (tmp_path / "offsets" / "1").read_bytes() == b"of another query"
    # Spark removes old batches meanwhile.
    manager.jvm_manager.delete(manager.path("-1"))
    assert not manager.jvm_manager.exists(manager.path("1"))
    (tmp_path / "offsets" / "2").write_bytes(b"of another query")
    assert manager.jvm_manager.exists(manager.path("2"))


def test_created_batches_are_known_until_they_are_deleted(manager: Manager, tmp_path: Path) -> None:
    contents = {"0": b"zero", "1": b"one", "2.compact": b"two"}
    for name, data in contents.items():
        manager.write(name, data)
        (tmp_path / "offsets" / name).unlink()
    for name, data in contents.items():
        assert manager.jvm_manager.exists(manager.path(name))
        assert manager.read(name, 1) == data[1:]
    for name in ("1", "2.compact"):
        manager.jvm_manager.delete(manager.path(name))
        assert not manager.jvm_manager.exists(manager.path(name))
    assert manager.read("0") == b"zero"


def test_log_is_listed_once(manager: Manager, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"of the run before")
    assert manager.names() == {"0": 17}
    (tmp_path / "offsets" / "1").write_bytes(b"also")
    assert manager.names() == {"0": 17, "1": 4}
    manager.write("2", b"first")
    (tmp_path / "offsets" / "ignored").write_bytes(b"")
    assert manager.names() == {"0": 17, "1": 4, "2": 5}
    manager.jvm_manager.delete(manager.path("0"))
    manager.write("3.compact", b"third!")
    assert manager.names() == {"1": 4, "2": 5, "3.compact": 6}
    manager.write("other", b"no batch")
    assert set(manager.names()) == {"1", "2", "3.compact", "ignored", "other"}


def test_contents_of_a_mebibyte_are_known(manager: Manager, tmp_path: Path) -> None:
    for batch in range(4):
        manager.write(str(batch), bytes(400_000))
        (tmp_path / "offsets" / str(batch)).unlink()
    batches_in_memory = [batch for batch in range(4) if manager.jvm_manager.exists(manager.path(str(batch)))]
    assert batches_in_memory == [2, 3]
    manager.write("4", bytes(1_100_000))
    assert [manager.jvm_manager.exists(manager.path(name)) for name in "234"] == [True, True, True]
    (tmp_path / "offsets" / "0").write_bytes(b"of the run before")
    assert manager.jvm_manager.exists(manager.path("0"))
    (tmp_path / "offsets" / "4").unlink()
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        manager.read("4")


def test_removed_batches_wait_for_others_on_remote_storage(spark: Any) -> None:
    manager = Manager(spark, f"memory://removed-{os.getpid()}/offsets")
    manager.jvm_manager.mkdirs(manager.path(""))
    assert manager.names() == {}
    for batch in range(13):
        manager.write(str(batch), b"x")
    for batch in range(9):
        manager.jvm_manager.delete(manager.path(str(batch)))

    def stored() -> set[str]:
        return set(Manager(spark, manager.directory).names())

    assert set(manager.names()) == {"9", "10", "11", "12"}
    assert len(stored()) == 13
    # One that is created again is not removed any more.
    manager.write("8", b"again", overwrite=True)
    manager.jvm_manager.delete(manager.path("9"))
    assert len(stored()) == 13
    manager.jvm_manager.delete(manager.path("10"))
    assert stored() == {"8", "11", "12"}
    manager.jvm_manager.delete(manager.path("11"))
    # The newest one goes at once, and what waits with it.
    manager.jvm_manager.delete(manager.path("12"))
    assert stored() == {"8"}


def test_path_without_a_scheme_has_that_of_the_checkpoint(spark: Any) -> None:
    manager = Manager(spark, f"memory://schemes-{os.getpid()}/here")
    manager.write("file", b"one")
    # As operator metadata of a restored checkpoint names schema files.
    path = spark._jvm.org.apache.hadoop.fs.Path("/here/file")
    assert bytes(manager.jvm_manager.open(path).readAllBytes()) == b"one"


def test_missing_files(manager: Manager) -> None:
    assert not manager.jvm_manager.exists(manager.path("0"))
    manager.jvm_manager.delete(manager.path("0"))
    for call in (manager.jvm_manager.open, manager.jvm_manager.list):
        with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
            call(manager.path("0"))


def test_directory_with_a_number_for_its_name_exists(manager: Manager) -> None:
    log = Manager(manager._spark, manager.directory.replace("offsets", "sources/0"))
    assert not log.jvm_manager.exists(log.path(""))
    log.write("0", b"x")
    assert log.jvm_manager.exists(log.path(""))
    assert log.jvm_manager.exists(log.path("0"))
    log.jvm_manager.delete(log.path(""))
    assert not log.jvm_manager.exists(log.path(""))


@pytest.mark.parametrize("size", [0, CHUNK, CHUNK + 5])
def test_file_of_any_size(manager: Manager, size: int) -> None:
    data = os.urandom(size)
    out = manager.jvm_manager.createAtomic(manager.path("0"), False)
    for part in (data[: size // 2], data[size // 2 :]):
        out.write(bytearray(part))
    # Unlinked while it is used, a temporary file needs no hook that deletes it when the JVM exits.
    temporary = Path(manager._jvm.java.lang.System.getProperty("java.io.tmpdir"))
    assert not list(temporary.glob("spark-statestore-*.file"))
    out.close()
    assert manager.read("0") == data
    assert manager.read("0", size // 3) == data[size // 3 :]


def test_paths_without_a_scheme_are_those_of_hadoops_default(manager: Manager, tmp_path: Path) -> None:
    plain = Manager(manager._spark, f"{tmp_path}/a b%20c")
    assert plain.jvm_manager.createCheckpointDirectory().toString() == f"file:{tmp_path}/a b%20c"
    assert plain.jvm_manager.isLocal()
    plain.write("0", b"x")
    assert (tmp_path / "a b%20c" / "0").read_bytes() == b"x"


@pytest.mark.spark
def test_query_goes_on_with_either_file_manager(spark: Any, tmp_path: Path) -> None:
    session = session_of(spark)
    newest = 0
    for manager in (HADOOPS, OURS, HADOOPS):
        with configured(session, {KEY: manager}):
            # It compares the counts of all batches.
            run_to(session, tmp_path, newest + 2)
        newest = max(int(path.name) for path in (tmp_path / "offsets").iterdir() if path.name.isdigit())
        assert (tmp_path / "offsets" / f".{newest}.crc").exists() == (manager == HADOOPS)


@pytest.mark.spark
@pytest.mark.oldest
def test_entry_of_another_query_ends_the_query(spark: Any, tmp_path: Path) -> None:
    session = session_of(spark)
    query = start_counting(session, tmp_path)
    wait_for_batch(query, 1)
    # Written ahead of it, as if another query was faster.
    ahead = int(query.lastProgress["batchId"]) + 5
    (tmp_path / "offsets" / str(ahead)).write_text("of another query")
    with pytest.raises(Exception, match="Multiple streaming"):
        query.awaitTermination(60)
    assert (tmp_path / "offsets" / str(ahead)).read_text() == "of another query"
    assert max(int(path.name) for path in (tmp_path / "commits").iterdir()) < ahead


def test_stopped_query_waits_for_the_file_that_it_writes(spark: Any, tmp_path: Path) -> None:
    storage = SlowStorage(tmp_path)
    session = session_of(spark)
    for option in ("python", "driverPython"):
        session.conf.set(OPTION_PREFIX + option, storage.interpreter())
    checkpoint = f"{storage.url}/checkpoint"
    query = start_counting(session, checkpoint)
    wait_for_batch(query, 1)
    with storage.hanging("write", "/offsets/") as hang:
        hang.wait()
        hang.holds_back(query.stop, 1.5)
    entries = [int(path.name) for path in (storage.directory / "checkpoint" / "offsets").iterdir()]
    # Otherwise the file could appear after the next run has looked for it.
    run_to(session, checkpoint, max(entries) + 1)


def test_missing_interpreter_is_an_error_with_the_way_back_to_hadoop(spark: Any, tmp_path: Path) -> None:
    session = session_of(spark)
    session.conf.set(OPTION_PREFIX + "driverPython", "/nowhere/python3")
    with pytest.raises(
        Exception, match=r"'/nowhere/python3' cannot be run.*driverPython.*spark_files='hadoop'"
    ):
        start_counting(session, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_missing_driver_is_an_error_with_the_way_back_to_hadoop(spark: Any) -> None:
    with pytest.raises(Exception, match=r"requires .paramiko. to be installed.*spark_files='hadoop'"):
        start_counting(session_of(spark), "sftp://host/checkpoint").awaitTermination(30)


@pytest.mark.spark
@pytest.mark.oldest
def test_whole_checkpoint_in_memory_without_hadoop(spark: Any) -> None:
    session = session_of(spark)
    url = f"memory://whole-checkpoint-{os.getpid()}/here"
    for batch in (2, 5):
        run_to(session, url, batch)
    metadata = session.read.format("state-metadata").load(url).collect()
    assert [row.numPartitions for row in metadata] == [2]
    assert session.read.format("statestore").load(url).count() > 0
    with pytest.raises(Exception, match="no connector for memory"):
        session.range(1).write.parquet(f"{url}/data")
