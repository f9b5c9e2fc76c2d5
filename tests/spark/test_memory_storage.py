"""State in memory: bounded, exact while its application runs, and restarted afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_statestore.options import OPTION_PREFIX
from tests.spark.counting import (
    Program,
    backends_of,
    jvm_of,
    kill,
    run_to,
)
from tests.spark.test_bad_input import failure, query_end
from tests.support.trees import files_below

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"

pytestmark = pytest.mark.slow


def session_with(spark: Any, checkpoint_format: int, **options: str) -> Any:
    session = spark.newSession()
    session.conf.set(FORMAT, checkpoint_format)
    session.conf.set(OPTION_PREFIX + "storage", "memory")
    for name, value in options.items():
        session.conf.set(OPTION_PREFIX + name, value)
    return session


def test_memory_query_resumes_after_its_backend_without_state_files(spark: Any, tmp_path: Path) -> None:
    run_to(session_with(spark, 1), tmp_path, 1)
    backends = [backend.pid for backend in backends_of(jvm_of(spark))]
    assert backends
    kill(*backends)
    before = query_end(tmp_path)
    query = run_to(session_with(spark, 1), tmp_path, before + 2)
    assert query.recentProgress[0].batchId == before + 1
    assert not [f for f in files_below(tmp_path / "state") if "_metadata" not in Path(f).parts[:-1]]


def test_memory_state_above_its_limit_is_rejected(spark: Any, tmp_path: Path) -> None:
    message = failure(session_with(spark, 1, maxStateSize="200b"), tmp_path)
    assert "maxStateSize" in message
    assert "200" in message
    assert "storage=filesystem" in message
    assert "operator 0, partition" in message


@pytest.fixture(scope="module")
def remembered(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished driver that ran queries with state in memory."""
    directory = tmp_path_factory.mktemp("remembered")
    with Program("remember", directory=str(directory)) as program:
        program.next("done")
        program.end()
    return directory


@pytest.mark.parametrize("checkpoint_format", [1, 2], ids=["v1", "v2"])
def test_memory_state_with_checkpoints_dir_resumes_on_another_driver(
    spark: Any, remembered: Path, checkpoint_format: int
) -> None:
    session = session_with(spark, checkpoint_format, checkpointsDir=f"file:{remembered}/metadata")
    checkpoint = remembered / f"kept-{checkpoint_format}"
    before = query_end(checkpoint)
    query = run_to(session, checkpoint, before + 1)
    assert query.recentProgress[0].batchId == before + 1


def test_memory_state_without_checkpoints_dir_is_lost_on_another_driver(spark: Any, remembered: Path) -> None:
    checkpoint = remembered / "lost-2"
    before = files_below(checkpoint / "state")
    message = failure(session_with(spark, 2), checkpoint)
    assert "operator 0, partition" in message
    assert "was kept only on the driver of an application that has ended" in message
    assert "keeps state only until its application ends" in message
    assert "set checkpointsDir, or storage=filesystem, before the query starts" in message
    assert files_below(checkpoint / "state") == before


def test_changed_storage_error_says_where_the_state_is(spark: Any, tmp_path: Path) -> None:
    session = session_with(spark, 2, storage="filesystem")
    run_to(session, tmp_path, 1)
    before = files_below(tmp_path / "state")
    message = failure(session_with(spark, 2), tmp_path)
    assert "has ended" not in message
    assert f"is in files, file://{tmp_path}/state/0/" in message
    assert "Set spark.sql.streaming.stateStore.backend.storage back to filesystem." in message
    assert files_below(tmp_path / "state") == before
    run_to(session, tmp_path, query_end(tmp_path) + 1)


def test_changed_storage_error_reports_state_of_an_ended_driver(spark: Any, remembered: Path) -> None:
    message = failure(session_with(spark, 1, storage="filesystem"), remembered / "lost-1")
    assert "the store has no version at all" in message
    assert "it had storage=memory without checkpointsDir" in message
