"""``plot`` draws a PNG of sizes and times, and says what it drew."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from spark_statestore.checkpoint.query.summary import StoreSummary
from spark_statestore.cli.plot import _unit, batch_point
from tests.checkpoint.query.stored import StoredQuery
from tests.cli.running import node, said


def test_a_png_is_drawn(query: StoredQuery, tmp_path: Path) -> None:
    file = tmp_path / "state.png"
    found = node("plot", query.url, file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [(point["batch"], point["rows"]) for point in found["batches"]] == [
        (batch, len(left)) for batch, left in enumerate(query.left)
    ]
    assert [(one["partition"], one["rows"]) for one in found["partitions"]] == [
        (partition, len(query.of(partition, query.state()))) for partition in (0, 1)
    ]
    assert "1 batches" in said("plot", query.url, file, "--batches", 1)


def test_a_batch_whose_versions_are_gone_is_left_out(query: StoredQuery, tmp_path: Path) -> None:
    for path in query.directory.glob("state/0/1/chk-1_*/_metadata"):
        path.unlink()
    found = node("plot", query.url, tmp_path / "state.png")
    assert [point["batch"] for point in found["batches"]] == [1, 2]
    for path in query.directory.glob("state/0/1/chk-3_*/_metadata"):
        path.unlink()
    said("plot", query.url, tmp_path / "state.png", code=1)


def test_the_time_of_a_batch_is_from_its_start_to_its_commits() -> None:
    stores = [
        StoreSummary(0, partition, "default", 3, "a", rows=10, bytes=100, chain=1, base=1, created_ms=created)
        for partition, created in enumerate((1500, 4000, 2000))
    ]
    point = batch_point(2, 1000, stores)
    assert (point.rows, point.bytes, point.first_ms, point.last_ms) == (30, 300, 500, 3000)


@pytest.mark.parametrize(
    ("largest", "unit"),
    [(0, "bytes"), (1023, "bytes"), (1024, "KiB"), (1 << 20, "MiB"), (5 << 30, "GiB"), (1 << 60, "TiB")],
)
def test_sizes_have_a_unit_that_fits(largest: int, unit: str) -> None:
    assert _unit(largest)[1] == unit


def test_without_matplotlib_it_says_what_to_install(
    query: StoredQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def no_matplotlib(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    assert "spark-statestore[plot]" in said("plot", query.url, tmp_path / "state.png", code=1)
