"""Spark's error conditions, compared with those of Spark's RocksDB provider, and as Python sees them."""

from __future__ import annotations

import queue
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming import StreamingQueryListener

from tests.spark.counting import run_to, start_counting
from tests.spark.harness import ROCKSDB, Open, Refusal, Store, instances
from tests.spark.queries import OURS
from tests.support.spark_versions import is_since

pytestmark = [pytest.mark.first, pytest.mark.spark, pytest.mark.oldest]

A = ("a", 1)
ONE = (1, "one")

OUT_OF_ORDER = "STATE_STORE_OPERATION_OUT_OF_ORDER"
INVALID_STAMP = "STATE_STORE_INVALID_STAMP" if is_since("4.1") else OUT_OF_ORDER
OPERATOR = "state store operator 0, partition 0, store default"
NO_VERSION = "CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE"

# Operations that only an open store permits.
USES = {
    "put": (A, ONE),
    "remove": (A,),
    "get": (A,),
    "rows": (),
}


@pytest.fixture(params=[OURS, ROCKSDB], ids=["ours", "rocksdb"])
def provider_class(request: pytest.FixtureRequest) -> str:
    if request.param == ROCKSDB and not is_since("4.3"):
        pytest.skip("Spark's own provider has not the newest interface, which the harness uses")
    return request.param


@pytest.fixture
def store(instance: Open) -> Store:
    store = instance().open(0)
    store.put(A, ONE)
    return store


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("ending", ["commit", "abort"])
def test_use_of_an_ended_store_is_an_invalid_stamp(store: Store, ending: str, use: str) -> None:
    getattr(store, ending)()
    assert present(store.refusal(use, *USES[use])).kind == INVALID_STAMP


@pytest.mark.parametrize("use", ["get", "rows"])
def test_use_of_a_released_read_store_is_an_invalid_stamp(store: Store, instance: Open, use: str) -> None:
    store.commit()
    read_store = instance().open_read(1)
    read_store.release()
    assert present(read_store.refusal(use, *USES[use])).kind == INVALID_STAMP


def test_operations_out_of_order_have_sparks_condition(store: Store) -> None:
    conditions = {"checkpoint id before commit": condition(lambda: store.checkpoint_id)}
    conditions["metrics before commit"] = condition(lambda: store.metrics)
    store.commit()
    conditions["abort after commit"] = condition(store.abort)
    conditions["commit after commit"] = condition(store.commit)
    assert conditions == dict.fromkeys(conditions, OUT_OF_ORDER)


def test_ended_store_error_has_the_stamps_and_the_cause(spark: Any, tmp_path: Path) -> None:
    with instances(spark, tmp_path) as open_instance:
        store = open_instance().open(0)
        store.put(A, ONE)
        store.commit()
        refused = present(store.refusal("put", A, ONE))
    if is_since("4.1"):
        assert refused.message.startswith(f"[{INVALID_STAMP}] Invalid stamp 0, current stamp: -1.")
    assert "this store has committed and takes no more operations" in refused.message


@pytest.mark.parametrize("operation", ["open", "openRead"])
def test_missing_version_has_the_condition_of_a_missing_state_file(
    spark: Any, tmp_path: Path, operation: str
) -> None:
    with instances(spark, tmp_path) as open_instance:
        provider = open_instance()
        none_yet = present(provider.refusal(operation, 3))
        store = provider.open(0)
        store.put(A, ONE)
        store.commit()
        missing = present(provider.refusal(operation, 3))
        damaged = tmp_path / "state/0/0/chk-1/_metadata"
        damaged.write_bytes(damaged.read_bytes()[:-1])
        corrupt = present(open_instance().refusal(operation, 1))
    assert (none_yet.kind, missing.kind) == (NO_VERSION, NO_VERSION)
    assert f"[{NO_VERSION}]" in missing.message
    assert "version 3 " in missing.message
    assert "the store has the versions 1 to 1" in missing.message
    assert "minBatchesToRetain" in missing.message
    assert corrupt.kind == "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"


@pytest.mark.parametrize("operation", ["open", "openRead"])
def test_version_of_format_v2_without_an_id_says_so(spark: Any, tmp_path: Path, operation: str) -> None:
    with instances(spark, tmp_path, checkpointFormatVersion="2") as open_instance:
        store = open_instance().open(0)
        store.put(A, ONE)
        store.commit()
        refused = present(open_instance().refusal(operation, 1))
        wrong = present(open_instance().refusal(operation, 1, "0123456789abcdef"))
    assert refused.kind == wrong.kind == NO_VERSION
    assert "version 1 " in refused.message
    assert "was requested without a checkpoint id" in refused.message
    assert str(store.checkpoint_id) in refused.message
    assert "checkpointFormatVersion back to 2" in refused.message
    assert "the versions 1 to 1" not in refused.message
    assert "without a checkpoint id" not in wrong.message


def test_python_sees_the_condition_of_a_missing_version(spark: Any, tmp_path: Path) -> None:
    run_to(spark.newSession(), tmp_path / "first", 1, commit="task")
    # The JVM has the state of the query in memory, but not that of a copy.
    checkpoint = tmp_path / "copy"
    shutil.copytree(tmp_path / "first", checkpoint)
    for version in (checkpoint / "state/0/0").glob("chk-*"):
        shutil.rmtree(version)
    ended: queue.Queue[str | None] = queue.Queue()
    listener = Listener(ended)
    spark.streams.addListener(listener)
    try:
        query = start_counting(spark, checkpoint)
        with pytest.raises(StreamingQueryException) as failed:
            query.awaitTermination(120)
        # PySpark converts no SparkException: the condition is in the text, in the listener's event, and in
        # the JVM's cause.
        assert ended.get(timeout=60) == NO_VERSION
    finally:
        spark.streams.removeListener(listener)
    assert f"[{NO_VERSION}]" in str(failed.value)
    assert "restore the state from a backup" in str(failed.value)
    cause = query._jsq.exception().get().getCause()
    assert cause.getCondition() == NO_VERSION
    # Spark builds this text from its template and the parameters.
    text = spark._jvm.org.apache.spark.SparkThrowableHelper.getMessage(
        NO_VERSION, cause.getMessageParameters()
    )
    assert re.search(
        rf"Error reading streaming state file of version \d+ of {OPERATOR} at .*{checkpoint}", text
    )


class Listener(StreamingQueryListener):
    """Collects the conditions of the errors that end queries."""

    def __init__(self, conditions: queue.Queue[str | None]) -> None:
        self._conditions = conditions

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self._conditions.put(event.errorClassOnException)


def present(refusal: Refusal | None) -> Refusal:
    assert refusal is not None
    return refusal


def condition(call: Callable[[], Any]) -> str | None:
    """Return the condition of the error that a call raises."""
    with pytest.raises(PySparkException) as raised:
        call()
    return raised.value.getCondition()
