"""A running query's progress as a pandas frame, and its state as a notebook shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_statestore
from spark_statestore.query import QueryCheckpoint
from tests.spark.queries import Query

EVENTS = pa.schema([("word", pa.string()), ("number", pa.int64())])


def counted_once(events: Any) -> Any:
    return events.dropDuplicates(["word", "number"]).groupBy("word").count()


@pytest.fixture(scope="module")
def ended(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Query, Any]]:
    """Return a query of two operators and three batches, which has ended."""
    query = Query(spark, tmp_path_factory.mktemp("progress"), counted_once, "update", EVENTS)
    query.feed(*([{"word": f"w{n % 3}", "number": n} for n in range(10 * b)] for b in (1, 2, 3)))
    stream = query.start([], availableNow=True)
    assert stream.awaitTermination(120)
    yield query, stream
    stream.stop()


@pytest.mark.spark
def test_progress_has_the_figures_of_every_batch_and_operator(ended: tuple[Query, Any]) -> None:
    query, stream = ended
    frame = spark_statestore.progress(stream)
    recent = stream.recentProgress
    assert len(recent) == 3
    assert list(zip(frame["batchId"], frame["operatorId"], strict=True)) == [
        (batch, operator) for batch in range(3) for operator in (0, 1)
    ]
    rows = iter(frame.to_dict("records"))
    for batch in recent:
        for operator in batch["stateOperators"]:
            row = next(rows)
            assert row["timestamp"].strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z" == batch["timestamp"]
            expected = {key: value for key, value in operator.items() if key != "customMetrics"}
            expected |= dict(operator["customMetrics"])
            expected |= {f"durationMs.{key}": value for key, value in batch["durationMs"].items()}
            assert {key: row[key] for key in expected} == expected
            assert {"checkpointBytesWritten", "durationMs.addBatch"} <= row.keys()
    names = {operator.id: operator.name for operator in QueryCheckpoint(str(query.checkpoint)).operators(2)}
    assert dict(zip(frame["operatorId"], frame["operatorName"], strict=True)) == names
    assert {str(kind) for kind in frame.dtypes.drop(["timestamp", "operatorName"])} == {"Int64"}


def test_progress_before_the_first_batch_is_empty(spark: Any, tmp_path: Path, ended: Any) -> None:
    query = Query(spark, tmp_path, counted_once, "update", EVENTS)
    query.name = "<script>alert(1)</script>"
    stream = query.start([], processingTime="1 hour")
    try:
        frame = spark_statestore.progress(stream)
        shown = spark_statestore.StateView(stream)._repr_html_()
    finally:
        stream.stop()
    assert frame.empty
    full = spark_statestore.progress(ended[1])
    custom = {
        key for operator in ended[1].lastProgress["stateOperators"] for key in operator["customMetrics"]
    }
    assert [name for name in full if name not in custom] == list(frame)
    assert dict(frame.dtypes) == {name: full.dtypes[name] for name in frame}
    assert "no batch" in shown
    # A name is text, not markup.
    assert "<b>&lt;script&gt;alert(1)&lt;/script&gt;</b>" in shown
    assert "<script" not in shown


def test_view_shows_the_newest_batch_with_plots(ended: tuple[Query, Any]) -> None:
    _, stream = ended
    shown = spark_statestore.StateView(stream)._repr_html_()
    operators = stream.lastProgress["stateOperators"]
    for operator in operators:
        cells = [f"<td>{operator[name]}</td>" for name in ("operatorName", "numRowsTotal", "memoryUsedBytes")]
        assert all(cell in shown for cell in cells)
    assert f"({stream.id}) has ended, batch 2 of " in shown
    assert shown.count("<tr>") == len(operators)
    assert 'src="data:image/png;base64,iVBOR' in shown


def test_view_without_matplotlib_shows_the_table(
    ended: tuple[Query, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shown = spark_statestore.StateView(ended[1])._repr_html_()
    assert "<td>dedupe</td>" in shown
    assert "pip install" in shown
    assert "<img" not in shown


def test_view_without_pandas_names_the_package(
    ended: tuple[Query, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(spark_statestore.MissingPackageError, match="progress needs pandas: pip install"):
        spark_statestore.progress(ended[1])
    shown = spark_statestore.StateView(ended[1])._repr_html_()
    assert "has ended" in shown
    assert "progress needs pandas: pip install pandas" in shown
    assert "<table" not in shown


def test_watch_outside_a_notebook_is_refused(ended: tuple[Query, Any], capsys: Any) -> None:
    with pytest.raises(spark_statestore.IllegalStateError, match=r"spark_statestore\.progress"):
        spark_statestore.StateView(ended[1]).watch()
    assert capsys.readouterr().out == ""
