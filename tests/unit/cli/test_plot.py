"""Tests of ``plot``: points, labels, scales and the PNG."""

from __future__ import annotations

import io
import itertools
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.cli.plot import BatchPoint, PartitionSize, batch_point, figure_of
from spark_statestore.monitoring.plots import cut_off, unit
from spark_statestore.query.summary import StoreSummary
from tests.unit.cli.commands import node, output_of
from tests.unit.query.stored_query import StoredQuery


def test_plot_draws_a_png(query: StoredQuery, tmp_path: Path) -> None:
    file = tmp_path / "state.png"
    report = node("plot", query.url, file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [(point["batch"], point["rows"]) for point in report["batches"]] == [
        (batch, len(state)) for batch, state in enumerate(query.states)
    ]
    assert [(point["partition"], point["rows"]) for point in report["partitions"]] == [
        (partition, len(query.partition_rows(partition, query.state()))) for partition in (0, 1)
    ]
    assert "1 batches" in output_of("plot", query.url, file, "--batches", 1)


def test_plot_omits_a_batch_without_retained_versions(query: StoredQuery, tmp_path: Path) -> None:
    for path in query.directory.glob("state/0/1/chk-1_*/_metadata"):
        path.unlink()
    report = node("plot", query.url, tmp_path / "state.png")
    assert [point["batch"] for point in report["batches"]] == [1, 2]
    for path in query.directory.glob("state/0/1/chk-3_*/_metadata"):
        path.unlink()
    output_of("plot", query.url, tmp_path / "state.png", code=1)


@pytest.mark.parametrize(
    ("published", "durable"), [({}, 3000), ({3: 4.5}, 3500), ({3: 4.0}, 3000), ({2: 9.0}, 3000)]
)
def test_batch_point_measures_from_start_to_commits_and_publication(
    published: dict[int, float], durable: int
) -> None:
    stores = [
        StoreSummary(0, partition, "default", 3, "a", 10, 100, 1, 1, created_ms=created, host="a")
        for partition, created in enumerate((1500, 4000, 2000))
    ]
    point = batch_point(2, 1000, stores, published)
    assert (point.rows, point.bytes, point.first_ms, point.last_ms) == (30, 300, 500, 3000)
    assert point.durable_ms == durable


def test_plot_shows_when_merged_commits_became_durable(tmp_path: Path) -> None:
    query = StoredQuery(tmp_path / "checkpoint", merges=True)
    for number in range(3):
        query.run(ann=number, carl=2)
    file = query.directory / "state" / "_merged" / "2-2-0"
    late = file.stat().st_mtime + 60
    os.utime(file, (late, late))
    alone, second, third = node("plot", query.url, tmp_path / "state.png")["batches"]
    assert alone["durable_ms"] == alone["last_ms"]
    assert second["durable_ms"] - second["last_ms"] == pytest.approx(60_000, abs=5_000)
    assert 0 <= third["durable_ms"] - third["last_ms"] < 30_000


def drawn(times: list[int], partitions: int) -> Any:
    """The figure of batches that took so long, drawn, so that extents are known."""
    pytest.importorskip("matplotlib").use("agg")
    points = [BatchPoint(n, 100 * n, 5000 * n, ms // 2, ms, ms + 30) for n, ms in enumerate(times)]
    sizes = [PartitionSize(n % 2, "default", n // 2, 10, 1000 + n) for n in range(partitions)]
    figure = figure_of("file:///data/checkpoints/orders", points, sizes)
    figure.savefig(io.BytesIO(), format="png")
    return figure


@pytest.mark.parametrize("times", [[900] * 50, [60_000, *[900] * 49], [500]])
@pytest.mark.parametrize("partitions", [2, 200])
def test_legends_do_not_overlap_the_axes(times: list[int], partitions: int) -> None:
    figure = drawn(times, partitions)
    drawings = [axes.get_window_extent() for axes in figure.axes]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend() is not None]
    assert len(legends) == 3
    for legend in legends:
        extent = legend.get_window_extent()
        assert not any(extent.overlaps(drawing) for drawing in drawings)
        assert figure.bbox.containsx(extent.x0)
        assert figure.bbox.containsx(extent.x1)


@pytest.mark.parametrize("partitions", [2, 12, 200])
def test_partition_labels_are_not_decimals(partitions: int) -> None:
    axes = drawn([1, 2], partitions).axes[2]
    labels = [" ".join(label.get_text().split()) for label in axes.get_xticklabels()]
    assert labels[:1] == ["operator 0, partition 0"]
    assert 2 <= len(labels) <= 40
    extents = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert not any(first.overlaps(second) for first, second in itertools.pairwise(extents))


def test_slow_batch_does_not_set_the_scale() -> None:
    def seconds(times: list[int]) -> Any:
        return next(axes for axes in drawn(times, 2).axes if axes.get_ylabel() == "seconds")

    axes = seconds([60_000, *[900] * 20])
    assert 0.9 < axes.get_ylim()[1] < 2
    assert [text.get_text() for text in axes.texts] == ["60 s"]
    assert "cut off" in " ".join(text.get_text() for text in axes.get_legend().get_texts())
    axes = seconds([2_000, *[900] * 20])
    assert axes.get_ylim()[1] >= 2
    assert not axes.texts


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ([], None),
        ([1.0, 9.0], None),
        ([1.0, 2.0, 9.0], 2.0),
        ([9.0, 1.0, 4.0], None),
        ([1.0] * 38 + [50.0] * 2, 1.0),
        ([1.0] * 37 + [50.0] * 3, None),
        ([0.0, 0.0, 5.0], None),
    ],
)
def test_cut_off_applies_to_few_large_values(values: list[float], limit: float | None) -> None:
    assert cut_off(values) == limit


@pytest.mark.parametrize(
    ("largest", "name"),
    [(0, "bytes"), (1023, "bytes"), (1024, "KiB"), (5 << 30, "GiB"), (1 << 60, "TiB")],
)
def test_unit_fits_the_largest_size(largest: int, name: str) -> None:
    assert unit(largest)[1] == name


def test_plot_without_matplotlib_names_the_package(
    query: StoredQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "spark-statestore[plot]" in output_of("plot", query.url, tmp_path / "state.png", code=1)
