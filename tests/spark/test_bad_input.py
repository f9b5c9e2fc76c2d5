"""User mistakes and damage: errors with subject, cause and remedy, and an unchanged checkpoint."""

from __future__ import annotations

import re
import shutil
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException

import spark_statestore
from spark_statestore.errors import (
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
from tests.spark.test_backend_lifecycle import interpreter
from tests.support.paths import SPARK_MINOR
from tests.support.trees import files_below

PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def failure(session: Any, checkpoint: Path, **options: Any) -> str:
    """Return the messages of the query's failure and all its causes."""
    query = start_counting(session, checkpoint, confs={OPTION_PREFIX + k: v for k, v in options.items()})
    try:
        with pytest.raises(StreamingQueryException):
            wait_for_batch(query, query_end(checkpoint) + 2)
        return messages(query._jsq.exception().get())
    finally:
        query.stop()


def query_end(checkpoint: Path) -> int:
    """Return the last committed batch of a checkpoint, -1 for none."""
    return max((int(f.name) for f in checkpoint.glob("commits/*") if f.name.isdigit()), default=-1)


# Options, on the driver


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        (
            "nope",
            "1",
            r"backend\.nope' is not an option.*The options are: checkpointsDir, commit, compression",
        ),
        ("storageRetries", "many", r"storageRetries' is 'many', but it must be a whole number"),
        ("checkpointsDir", "s3://me:pw@bucket/x", r"checkpointsDir' is a URL that contains a password"),
    ],
)
def test_invalid_option_fails_before_the_query_starts(
    spark: Any, tmp_path: Path, option: str, value: str, expected: str
) -> None:
    session = spark.newSession()
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(Exception, match=expected):
        start_counting(session, checkpoint, confs={OPTION_PREFIX + option: value})
    assert not checkpoint.exists() or not files_below(checkpoint)
    with pytest.raises(OptionError, match=expected):
        spark_statestore.configure(builder(), **{option: value})
    with pytest.raises(OptionError, match=expected):
        spark_statestore.attach(session)


@pytest.mark.parametrize(("option", "value"), [("storageRetries", "many"), ("nope", "1")])
def test_provider_refuses_an_invalid_option_that_no_query_checked(
    spark: Any, tmp_path: Path, option: str, value: str
) -> None:
    provider = Provider(spark, f"file:{tmp_path}", **{f"backend__{option}": value})
    store = provider.open(0)
    store.put(("a", 1), (1, "x"))
    with pytest.raises(Py4JJavaError) as caught:
        store.commit()
    provider.close()
    assert OPTION_PREFIX + option in messages(caught.value.java_exception)
    assert files_below(tmp_path) == {}


def builder() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.Builder()


@pytest.mark.parametrize(
    ("settings", "options", "error", "expected"),
    [
        (
            {},
            {"storage_retries": [3]},
            OptionError,
            r"storageRetries' is \[3\] of type list, but it must be a string",
        ),
        ({}, {"storage_retries": 3, "storageRetries": 4}, OptionError, "'storageRetries' is given twice"),
        (
            {OPTION_PREFIX + "storageRetries": "5"},
            {"storage_retries": 7},
            SessionError,
            r"storageRetries' is set to '5'.*configure sets it to '7'",
        ),
        ({"spark.remote": "sc://localhost"}, {}, SessionError, "Spark Connect client.*configure the server"),
        ({}, {}, SessionError, "running Spark JVM.*before the first session is built"),
    ],
)
def test_configure_rejects_invalid_and_contradictory_settings(
    spark: Any, settings: dict[str, str], options: dict[str, Any], error: type[Exception], expected: str
) -> None:
    session_builder = builder()
    for key, value in settings.items():
        session_builder.config(key, value)
    with pytest.raises(error, match=expected):
        spark_statestore.configure(session_builder, **options)


@pytest.mark.parametrize(
    ("url", "error", "expected"),
    [
        ("nowhere://bucket/x", StorageURLError, r"'nowhere://bucket/x' cannot hold state.*Use file:, s3:"),
        ("s3://", StorageURLError, r"names no directory.*such as file:"),
        ("oci://bucket/x", MissingDriverError, r"'oci://bucket/x' needs.*'oci'.*Install ocifs.*every exec"),
    ],
)
def test_configure_and_attach_reject_unusable_storage(
    spark: Any, url: str, error: type[Exception], expected: str
) -> None:
    for option in "checkpoints_dir", "savepoints_dir":
        with pytest.raises(error, match=expected):
            spark_statestore.configure(builder(), **{option: url})
    session = spark.newSession()
    session.conf.set(OPTION_PREFIX + "checkpointsDir", url)
    with pytest.raises(error, match=expected):
        spark_statestore.attach(session)


# A live session


def test_attach_error_has_the_setting_of_the_provider(spark: Any) -> None:
    session = spark.newSession()
    session.conf.set(PROVIDER, SPARKS)
    with pytest.raises(SessionError) as caught:
        spark_statestore.attach(session)
    (line,) = re.findall(r"spark\.conf\.set\(.*\)", str(caught.value))
    session.conf.set(*re.findall(r'"([^"]+)"', line))
    spark_statestore.attach(session)


@pytest.mark.slow
def test_attach_error_has_a_remedy_for_a_session_without_the_jar(built: Path, tmp_path: Path) -> None:
    with Program("attach", checkpoint=str(tmp_path)) as program:
        plain = program.next("refused")
        # The provider is set now. Spark's own message is the name of the class.
        assert spark_statestore.PROVIDER_CLASS in program.next("failed")
        with_provider = program.next("refused")
    for message in plain, with_provider:
        assert "the jar is not on the class path" in message
        assert "Restart Python (in a notebook: the kernel)" in message
        assert "spark_statestore.configure(SparkSession.builder)" in message
        assert f"spark-submit --jars {spark_statestore.jar_path()}" in message
    effect = f"'{PROVIDER}' names a class in it, so a query ends with 'terminated with exception: "
    assert effect in with_provider
    assert effect not in plain
    assert "spark.conf.set" not in with_provider


# Storage, in the first batch


def test_unusable_storage_error_names_the_storage(spark: Any, tmp_path: Path) -> None:
    message = failure(spark.newSession(), tmp_path / "checkpoint", checkpointsDir="/proc/nothing")
    expected = r"operator 0, partition \d.*at file:/+proc/nothing/.*Check that the directory is writable"
    assert re.search(expected, message), message


# Interpreters


@pytest.mark.slow
def test_interpreter_without_pyarrow_error_names_it(spark: Any, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = tmp_path / "bare" / "bin" / "python"
    message = failure(spark.newSession(), tmp_path / "checkpoint", python=python)
    assert f"'{python} -m spark_statestore.backend'" in message
    assert "No module named 'pyarrow'" in message
    assert f"'{python} -m pip install pyarrow fsspec'" in message
    assert OPTION_PREFIX + "python" in message


def test_interpreter_other_than_python_error_names_it(spark: Any, tmp_path: Path) -> None:
    message = failure(spark.newSession(), tmp_path / "checkpoint", python="/bin/false")
    assert "'/bin/false -m spark_statestore.backend') ended before it was ready" in message


@pytest.mark.slow
def test_version_mismatch_error_has_both_versions(spark: Any, tmp_path: Path) -> None:
    package = tmp_path / "other" / "spark_statestore"
    shutil.copytree(
        Path(spark_statestore.__file__).parent, package, ignore=shutil.ignore_patterns("jars", "__pycache__")
    )
    versions = package / "_version.py"
    versions.write_text(versions.read_text().replace(spark_statestore.__version__, "99.1"))
    # The working directory of these tests has the package too, and would take precedence.
    python = interpreter(tmp_path, f"export PYTHONSAFEPATH=1 PYTHONPATH={tmp_path}/other")
    message = failure(spark.newSession(), tmp_path / "checkpoint", python=python)
    assert f"the jar is version {spark_statestore.__version__} (protocol" in message
    assert f"imports from {package} is version 99.1" in message
    assert f"pip install spark-statestore=={spark_statestore.__version__}" in message


# Jars


@pytest.mark.slow
def test_jar_for_another_spark_is_rejected_on_the_driver(built: Path, tmp_path: Path) -> None:
    jar = tmp_path / Path(spark_statestore.jar_path()).name
    with zipfile.ZipFile(spark_statestore.jar_path()) as source, zipfile.ZipFile(jar, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "spark-statestore.properties":
                assert f"spark={SPARK_MINOR}".encode() in data
                data = data.replace(f"spark={SPARK_MINOR}".encode(), b"spark=4.9")
            target.writestr(name, data)
    confs = {
        "spark.jars": str(jar),
        "spark.sql.extensions": spark_statestore.EXTENSIONS_CLASS,
        PROVIDER: spark_statestore.PROVIDER_CLASS,
    }
    with Program("count", plain=True, checkpoint=str(tmp_path / "checkpoint"), confs=confs) as program:
        message = program.next("refused")
    assert f"compiled against Spark 4.9, but Spark {SPARK_MINOR}" in message
    assert "spark_statestore.jar_path()" in message
    assert not (tmp_path / "checkpoint").exists()


# Checkpoints


@pytest.fixture(scope="module")
def checkpoint(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of a few versions in files of each store; larger ones have files of their own."""
    directory = tmp_path_factory.mktemp("whole") / "checkpoint"
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1000")
    run_to(session, directory, 4, fileStateThreshold="0", commit="task")
    return directory


@pytest.fixture
def damaged(checkpoint: Path, tmp_path: Path) -> Path:
    """Return a copy of it, to damage."""
    copy = tmp_path / "checkpoint"
    shutil.copytree(checkpoint, copy)
    return copy


def newest_metadata(checkpoint: Path) -> Path:
    versions = (checkpoint / "state" / "0" / "0").glob("chk-*/_metadata")
    newest = f"chk-{query_end(checkpoint) + 1}"
    (path,) = [f for f in versions if f.parent.name.partition("_")[0] == newest]
    return path


def newest_stream(checkpoint: Path) -> Path:
    """Return the file of the newest changes outside of metadata."""
    streams = (checkpoint / "state" / "0" / "0" / "shared").iterdir()
    return max(streams, key=lambda f: f.stat().st_mtime_ns)


def state_after_failure(spark: Any, directory: Path, **options: Any) -> tuple[str, bool]:
    """Return the query's failure, and whether the state is unchanged."""
    state = directory / "state"
    before, damaged = files_below(state), files_below(state / "0" / "0")
    message = failure(spark.newSession(), directory, **options)
    # A partition without damage may have committed its batch before the query ended.
    return message, before.items() <= files_below(state).items() and files_below(state / "0" / "0") == damaged


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


BACKUP = "Restore it from a backup"
EARLIER = f"{BACKUP}, or resume from an earlier batch; nothing was changed"


@pytest.mark.parametrize(
    ("newest", "damage", "expected"),
    [
        (newest_metadata, flip_a_byte, rf"{{0.parent}} does not match its checksum.*{EARLIER}"),
        (newest_stream, Path.unlink, rf"needs the state stream .*{{0}}.*missing.*{BACKUP}"),
    ],
)
def test_damage_error_names_store_file_and_remedy(
    spark: Any,
    damaged: Path,
    newest: Callable[[Path], Path],
    damage: Callable[[Path], None],
    expected: str,
) -> None:
    path = newest(damaged)
    damage(path)
    message, untouched = state_after_failure(spark, damaged)
    assert "operator 0, partition 0" in message
    assert re.search(expected.format(path), message, re.DOTALL), message
    assert untouched


@pytest.mark.parametrize("damage", [flip_a_byte, Path.unlink])
def test_damaged_merged_file_error_names_the_file(
    spark: Any, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    checkpoint = tmp_path / "checkpoint"
    run_to(spark.newSession(), checkpoint, 2)
    version = query_end(checkpoint) + 1
    (path,) = (checkpoint / "state" / "_merged").glob(f"{version}-{version}-*")
    damage(path)
    message, untouched = state_after_failure(spark, checkpoint)
    assert re.search(str(path) if path.exists() else r"operator 0, partition \d+, store default", message)
    assert BACKUP in message
    assert untouched


def test_changed_checkpoints_dir_fails_with_missing_state(spark: Any, damaged: Path, tmp_path: Path) -> None:
    message, untouched = state_after_failure(spark, damaged, checkpointsDir=f"file:{tmp_path}/elsewhere")
    assert "the store has no version at all" in message
    assert "checkpointsDir" in message
    assert untouched


@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_state_of_another_provider_is_rejected_unchanged(
    spark: Any, tmp_path: Path, checkpoint_format: int
) -> None:
    where = f"file:{tmp_path}"
    spark_provider = Provider(spark, where, provider=SPARKS)
    store = spark_provider.open(0)
    store.put(("a", 1), (1, "x"))
    store.commit()
    spark_provider.close()
    before = files_below(tmp_path)
    provider = Provider(spark, where, checkpointFormatVersion=str(checkpoint_format))
    with pytest.raises(Py4JJavaError) as caught:
        provider.open(1, "0123456789abcdef" if checkpoint_format == 2 else None)
    provider.close()
    message = messages(caught.value.java_exception)
    assert "operator 0, partition 0, store default, version 1" in message
    assert "was written by another state store provider: its files there are 1.delta" in message
    assert "providerClass back" in message
    assert files_below(tmp_path) == before
