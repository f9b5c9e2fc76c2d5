"""Mistakes and damage: an error that says what, where and what to do, and a checkpoint left as it was."""

from __future__ import annotations

import re
import shutil
import struct
import sys
import venv
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException

import spark_statestore
from spark_statestore.errors import (
    IncompatibleSparkError,
    MissingDriverError,
    OptionError,
    SessionError,
    StorageURLError,
)
from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    Program,
    messages,
    run_to,
    start_counting,
    wait_for_batch,
)
from tests.spark.harness import Provider
from tests.spark.queries import SPARKS
from tests.trees import files_below

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def failure(session: Any, checkpoint: Path, **options: Any) -> str:
    """What the query's failure says, with everything that caused it."""
    query = start_counting(session, checkpoint, confs={OPTION_PREFIX + k: v for k, v in options.items()})
    try:
        with pytest.raises(StreamingQueryException):
            wait_for_batch(query, query_end(checkpoint) + 2)
        return messages(query._jsq.exception().get())
    finally:
        query.stop()


def query_end(checkpoint: Path) -> int:
    """The last batch that a checkpoint says was done, -1 for none."""
    return max((int(f.name) for f in checkpoint.glob("commits/*") if f.name.isdigit()), default=-1)


# Options, on the driver


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("nope", "1", r"backend\.nope' is not an option.*The options are: checkpointsDir, compression"),
        ("numretained", "5", r"Did you mean '[\w.]*numRetained'"),
        ("numRetained", "many", r"numRetained' is 'many', but it must be a whole number"),
        ("numRetained", "0", r"must be a whole number of at least 1"),
        ("fileStateThreshold", "20 kilos", r"must be a size such as 20k, 5m or 1048576"),
        ("fileStateThreshold", "1g", r"at most 268435456"),
        ("fsync", "yes", r"must be true or false"),
        ("storage", "ramdisk", r"must be one of filesystem, memory"),
        ("compression", "gzip", r"must be one of none, lz4, zstd"),
        ("checkpointsDir", " ", r"must be not empty"),
    ],
)
def test_a_wrong_option_is_refused_before_the_query_starts(
    spark: Any, tmp_path: Path, option: str, value: str, expected: str
) -> None:
    session = spark.newSession()
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(Exception, match=expected):
        start_counting(session, checkpoint, confs={OPTION_PREFIX + option: value})
    assert not checkpoint.exists() or not files_below(checkpoint)
    with pytest.raises(OptionError, match=expected.replace("backend\\.", "")):
        spark_statestore.configure(builder(), **{option: value})
    with pytest.raises(OptionError, match=expected.replace("backend\\.", "")):
        spark_statestore.attach(session)


def builder(**confs: str) -> Any:
    from pyspark.sql import SparkSession

    made = SparkSession.Builder()
    for key, value in confs.items():
        made.config(key.replace("__", "."), value)
    return made


def test_configure_refuses_a_value_of_another_type() -> None:
    with pytest.raises(OptionError, match=r"numRetained' is \[3\] of type list, but it must be a string"):
        spark_statestore.configure(builder(), num_retained=[3])


def test_configure_refuses_an_option_that_is_given_twice() -> None:
    with pytest.raises(OptionError, match="'numRetained' is given twice"):
        spark_statestore.configure(builder(), num_retained=3, numRetained=4)


@pytest.mark.parametrize(
    ("url", "error", "expected"),
    [
        ("nowhere://bucket/x", StorageURLError, r"'nowhere://bucket/x' cannot hold state.*Use file:, s3:"),
        ("https://example.com/x", StorageURLError, r"cannot hold state"),
        ("s3://", StorageURLError, r"names no directory.*such as file:"),
        ("gs://bucket/x", MissingDriverError, r"'gs://bucket/x' needs.*'gcs'.*pip install gcsfs.*every exec"),
        ("abfss://c@a.dfs.core.windows.net/x", MissingDriverError, r"pip install adlfs"),
    ],
)
def test_configure_refuses_storage_that_cannot_be_used(
    url: str, error: type[Exception], expected: str
) -> None:
    for option in "checkpoints_dir", "savepoints_dir":
        with pytest.raises(error, match=expected):
            spark_statestore.configure(builder(), **{option: url})


def test_configure_refuses_to_contradict_what_is_set() -> None:
    given = builder(**{PROVIDER: SPARKS})
    with pytest.raises(SessionError, match=r"providerClass' is set to .*HDFSBacked.*remove one of the two"):
        spark_statestore.configure(given)
    given = builder(**{OPTION_PREFIX + "numRetained": "5"})
    with pytest.raises(SessionError, match=r"numRetained' is set to '5'.*would set it to '7'"):
        spark_statestore.configure(given, num_retained=7)


def test_configure_refuses_a_running_jvm(spark: Any) -> None:
    with pytest.raises(SessionError, match=r"running Spark JVM.*before the first session is built"):
        spark_statestore.configure(builder())


def test_configure_refuses_spark_connect() -> None:
    with pytest.raises(SessionError, match=r"Spark Connect client.*configure the server"):
        spark_statestore.configure(builder(spark__remote="sc://localhost"))


# A live session


def test_attach_accepts_a_session_that_has_everything(spark: Any) -> None:
    spark_statestore.attach(spark)


def test_attach_says_the_line_that_sets_the_provider(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    with pytest.raises(SessionError) as caught:
        spark_statestore.attach(session)
    (line,) = re.findall(r"spark\.conf\.set\(.*\)", str(caught.value))
    session.conf.set(*re.findall(r'"([^"]+)"', line))
    spark_statestore.attach(session)


@pytest.mark.slow
def test_attach_names_the_jar_that_a_session_lacks(built: Path) -> None:
    with Program("attach") as program:
        message = program.next("refused")
    assert "the jar is not on the class path" in message
    assert f"--jars {spark_statestore.jar_path()}" in message


def test_attach_refuses_storage_that_cannot_be_used(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "checkpointsDir", "nowhere://bucket/x")
    with pytest.raises(StorageURLError, match="cannot hold state"):
        spark_statestore.attach(session)


# Storage, in the first batch


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("nowhere://bucket/x", r"'nowhere://bucket/x/\w+/0/\d' cannot hold state.*Use file:"),
        ("gs://bucket/x", r"needs the fsspec driver for 'gcs'.*pip install gcsfs"),
        (
            "file:{file}/below",
            r"operator 0, partition \d, store default, .*{file}/below/.*Not a directory.*writable",
        ),
        (
            "/proc/nothing",
            r"operator 0, partition \d.*at file:/+proc/nothing/.*Check that the directory is writable",
        ),
    ],
)
def test_storage_that_cannot_be_used_is_named(spark: Any, tmp_path: Path, url: str, expected: str) -> None:
    file = tmp_path / "a-file"
    file.touch()
    checkpoint = tmp_path / "checkpoint"
    message = failure(spark.newSession(), checkpoint, checkpointsDir=url.format(file=file))
    assert re.search(expected.replace("{file}", re.escape(str(file))), message), message


def test_the_error_that_python_shows_says_what_happened_itself(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "checkpointsDir", "nowhere://bucket/x")
    query = start_counting(session, tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=r"'nowhere://bucket/x.* cannot hold state"):
        query.awaitTermination(30)


# Interpreters


@pytest.mark.slow
def test_an_interpreter_without_pyarrow_is_named(spark: Any, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    message = failure(spark.newSession(), tmp_path / "checkpoint", python=python)
    assert f"'{python} -m spark_statestore.server'" in message
    assert "No module named 'pyarrow'" in message
    assert f"'{python} -m pip install pyarrow fsspec'" in message
    assert OPTION_PREFIX + "python" in message


def test_an_interpreter_that_does_not_exist_is_named(spark: Any, tmp_path: Path) -> None:
    message = failure(spark.newSession(), tmp_path / "checkpoint", python="/nowhere/python3")
    assert "'/nowhere/python3' cannot be run" in message
    assert f"Set {OPTION_PREFIX}python or spark.pyspark.python" in message


def test_something_else_than_python_is_named(spark: Any, tmp_path: Path) -> None:
    message = failure(spark.newSession(), tmp_path / "checkpoint", python="/bin/false")
    assert "'/bin/false -m spark_statestore.server') ended before it was ready" in message


@pytest.mark.slow
def test_a_python_half_of_another_version_is_refused_with_both_numbers(spark: Any, tmp_path: Path) -> None:
    package = tmp_path / "other" / "spark_statestore"
    shutil.copytree(
        Path(spark_statestore.__file__).parent, package, ignore=shutil.ignore_patterns("jars", "__pycache__")
    )
    (package / "_version.py").write_text('__version__ = "99.1"\n')
    # The working directory of these tests has the package too, and would come first.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONSAFEPATH=1 PYTHONPATH={tmp_path}/other exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    message = failure(spark.newSession(), tmp_path / "checkpoint", python=python)
    assert f"the jar is version {spark_statestore.__version__} (protocol" in message
    assert f"imports from {package} is version 99.1" in message
    assert f"pip install spark-statestore=={spark_statestore.__version__}" in message


# Jars


def test_a_spark_without_a_jar_is_refused() -> None:
    with pytest.raises(IncompatibleSparkError, match=r"no jar for Spark 4\.2\.0, only for Spark 4\.3"):
        spark_statestore.jar_path("4.2.0")


@pytest.mark.slow
def test_a_jar_for_another_spark_is_refused_on_the_driver(built: Path, tmp_path: Path) -> None:
    jar = tmp_path / "spark-statestore-spark-4.3.jar"
    with zipfile.ZipFile(spark_statestore.jar_path()) as source, zipfile.ZipFile(jar, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "spark-statestore.properties":
                assert b"spark=4.3" in data
                data = data.replace(b"spark=4.3", b"spark=4.9")
            target.writestr(name, data)
    confs = {
        "spark.jars": str(jar),
        "spark.sql.extensions": spark_statestore.EXTENSIONS_CLASS,
        PROVIDER: spark_statestore.PROVIDER_CLASS,
    }
    with Program("count", plain=True, checkpoint=str(tmp_path / "checkpoint"), confs=confs) as program:
        message = program.next("refused")
    assert "compiled against Spark 4.9, but Spark 4.3" in message
    assert "spark_statestore.jar_path()" in message
    assert not (tmp_path / "checkpoint").exists()


# Checkpoints


@pytest.fixture(scope="module")
def checkpoint(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a few versions; larger ones have files of their own."""
    directory = tmp_path_factory.mktemp("whole") / "checkpoint"
    run_to(spark.newSession(), directory, 4, fileStateThreshold="0", snapshotInterval=1000)
    return directory


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of it, to damage."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, copy)
    return copy


def newest_metadata(checkpoint: Path) -> Path:
    versions = (checkpoint / "state" / "0" / "0").glob("chk-*/_metadata")
    (path,) = [f for f in versions if f.parent.name == f"chk-{query_end(checkpoint) + 1}"]
    return path


def newest_stream(checkpoint: Path) -> Path:
    """The file that the newest version's changes are in, of those that are not inside metadata."""
    streams = (checkpoint / "state" / "0" / "0" / "shared").iterdir()
    return max(streams, key=lambda f: f.stat().st_mtime_ns)


def state_after_failure(spark: Any, directory: Path, **options: Any) -> tuple[str, bool]:
    """The query's failure, and whether it left the state as it was."""
    state = directory / "state"
    before, damaged = files_below(state), files_below(state / "0" / "0")
    message = failure(spark.newSession(), directory, **options)
    # A partition without damage may have committed its batch before the query ended.
    return message, before.items() <= files_below(state).items() and files_below(state / "0" / "0") == damaged


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite(path: Path) -> None:
    path.write_bytes(b"something else entirely, and long enough to have a header")


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (flip_a_byte, "does not match its checksum"),
        (cut, r"is \d+ bytes long, which is not the length it was written with"),
        (empty, "is empty"),
        (overwrite, "does not start as metadata does"),
    ],
)
def test_damaged_metadata_is_named(
    spark: Any, damaged: Path, damage: Callable[[Path], None], expected: str
) -> None:
    path = newest_metadata(damaged)
    damage(path)
    message, untouched = state_after_failure(spark, damaged)
    assert re.search(rf"operator 0, partition 0, store default, .*{path.parent} {expected}", message)
    assert "Copy it back from a backup, or start from an earlier version; nothing was changed" in message
    assert untouched


def test_metadata_of_a_newer_format_is_named(spark: Any, damaged: Path) -> None:
    path = newest_metadata(damaged)
    data = bytearray(path.read_bytes())
    (version,) = struct.unpack_from("<H", data, 8)
    struct.pack_into("<H", data, 8, version + 1)
    struct.pack_into("<I", data, len(data) - 8, zlib.crc32(data[:-8]))
    path.write_bytes(data)
    message, untouched = state_after_failure(spark, damaged)
    assert f"{path.parent} has metadata format {version + 1}, but this release reads formats up to" in message
    assert "Upgrade spark-statestore" in message
    assert untouched


@pytest.mark.parametrize("damage", [flip_a_byte, cut])
def test_a_damaged_stream_is_named(spark: Any, damaged: Path, damage: Callable[[Path], None]) -> None:
    path = newest_stream(damaged)
    damage(path)
    message, untouched = state_after_failure(spark, damaged)
    assert str(path) in message, message
    assert "operator 0, partition 0" in message
    assert "Nothing was changed" in message
    assert untouched


def test_a_missing_stream_is_named(spark: Any, damaged: Path) -> None:
    path = newest_stream(damaged)
    path.unlink()
    message, untouched = state_after_failure(spark, damaged)
    assert re.search(rf"operator 0, partition 0.*needs the state stream .*{path}.*missing", message), message
    assert "Copy it back from a backup" in message
    assert untouched


def test_missing_metadata_is_named_with_the_versions_that_are_there(spark: Any, damaged: Path) -> None:
    path = newest_metadata(damaged)
    newest = int(path.parent.name.removeprefix("chk-"))
    shutil.rmtree(path.parent)
    message, untouched = state_after_failure(spark, damaged)
    assert f"{path.parent} is not there; the store has the versions 1 to {newest - 1}" in message, message
    assert "or start from a version that is there" in message
    assert untouched


def test_a_query_whose_checkpoints_dir_changed_finds_no_state_and_says_so(
    spark: Any, damaged: Path, tmp_path: Path
) -> None:
    message, untouched = state_after_failure(spark, damaged, checkpointsDir=f"file:{tmp_path}/elsewhere")
    assert "the store has no version at all" in message
    assert "checkpointsDir" in message
    assert untouched


@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_state_of_another_provider_is_refused_and_left_alone(
    spark: Any, tmp_path: Path, checkpoint_format: int
) -> None:
    where = f"file:{tmp_path}"
    other = Provider(spark, where, provider=SPARKS)
    store = other.open(0)
    store.put(("a", 1), (1, "x"))
    store.commit()
    other.close()
    before = files_below(tmp_path)
    ours = Provider(spark, where, checkpointFormatVersion=str(checkpoint_format))
    with pytest.raises(Py4JJavaError) as caught:
        ours.open(1, "0123456789abcdef" if checkpoint_format == 2 else None)
    ours.close()
    message = messages(caught.value.java_exception)
    assert "operator 0, partition 0, store default, version 1" in message
    assert "was written by another state store provider: there are 1.delta" in message
    assert "providerClass back" in message
    assert files_below(tmp_path) == before


@pytest.mark.slow
def test_a_query_keeps_the_provider_of_its_first_batch(spark: Any, tmp_path: Path) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    run_to(session, tmp_path, 1)
    query = run_to(spark.newSession(), tmp_path, 3)
    assert "checkpointCommitStoreTimeUs" not in query.lastProgress.stateOperators[0].customMetrics
    assert not list(tmp_path.rglob("chk-*"))
