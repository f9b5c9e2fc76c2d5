"""Tests of new outputs of Spark's file sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_statestore import CheckpointExistsError, OptionError, begin_output
from tests.unit.cli.commands import node


@pytest.mark.parametrize(
    ("batch", "interval", "expected"),
    [
        (0, 10, ["0"]),
        (8, 10, [str(number) for number in range(9)]),
        (9, 10, ["9.compact"]),
        (12, 10, ["10", "11", "12", "9.compact"]),
        (129, 10, ["129.compact"]),
        (5, 3, ["5.compact"]),
        (6, 3, ["5.compact", "6"]),
        (7, 1, ["7.compact"]),
    ],
)
def test_log_has_an_entry_for_each_batch(
    tmp_path: Path, batch: int, interval: int, expected: list[str]
) -> None:
    # It may be repeated.
    for _ in range(2):
        begin_output(str(tmp_path / "new" / "output"), batch, compact_interval=interval)
    log = tmp_path / "new" / "output" / "_spark_metadata"
    assert sorted(path.name for path in log.iterdir()) == sorted(expected)
    assert {path.read_bytes() for path in log.iterdir()} == {b"v1"}


@pytest.mark.parametrize(
    "name", [*(f"_spark_metadata/{name}" for name in ("3", "9", "9.compact", "12")), "a=1/rows.parquet"]
)
def test_output_with_files_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text('v1\n{"path":"file:///a"}')
    with pytest.raises(CheckpointExistsError, match=f"is not empty: it has {name}"):
        begin_output(str(tmp_path), 12)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [(tmp_path / name).name]
    assert (tmp_path / name).read_text() == 'v1\n{"path":"file:///a"}'


def test_hidden_files_do_not_matter(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    (log / ".9.compact.tmp").write_text("of a writer that was killed")
    begin_output(str(tmp_path), 9)
    assert (log / "9.compact").exists()


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the batch is -1"):
        begin_output(str(tmp_path / "output"), -1)
    with pytest.raises(OptionError, match="the compact_interval is 0"):
        begin_output(str(tmp_path / "output"), 1, compact_interval=0)
    assert not (tmp_path / "output").exists()


def test_command_prepares_an_output(tmp_path: Path) -> None:
    report = node("begin-output", tmp_path / "output", 12, "--compact-interval", 5)
    assert report == {"output": str(tmp_path / "output"), "batch": 12}
    assert sorted(path.name for path in (tmp_path / "output/_spark_metadata").iterdir()) == [
        "10",
        "11",
        "12",
        "9.compact",
    ]
