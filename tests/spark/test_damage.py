"""Damaged files through every read path of the real provider: no row is returned that was not written."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.spark.counting import messages
from tests.spark.harness import Family, Provider, Row
from tests.support.damage import Damage, cuts, damaged, flips, replacements
from tests.support.effort import EFFORT
from tests.support.figures import count

REMEDY = re.compile(r"from a backup|[Uu]pgrade|[Ss]tart from|Check that")

Rows = dict[Row, Row]


@dataclass
class Stored:
    """A store of the real provider, and the rows of its versions."""

    spark: Any
    location: Path
    confs: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    rows: dict[int, Rows] = field(default_factory=dict)
    ids: dict[int, str | None] = field(default_factory=lambda: {0: None})

    def write_versions(self) -> None:
        """Commit several versions, with changes inside metadata and in separate files."""
        provider = self.open()
        try:
            self.commit(provider, 0, {(f"k{i}", i): (i, "x" * (i % 7)) for i in range(60)})
            self.commit(provider, 1, {("a", 1): (1, "one")})
            self.commit(provider, 2, {(f"k{i}", i): (-i, "again") for i in range(40)})
            provider.snapshot()
            self.commit(provider, 3, {("a", 1): (2, "two"), ("b", 1): (3, "three")})
        finally:
            provider.close()

    def open(self) -> Provider:
        return Provider(self.spark, f"file:{self.location}", **self.options, **self.confs)

    def commit(self, provider: Provider, version: int, put: Rows) -> None:
        store = provider.open(version, self.ids[version])
        script = store.script()
        for key, value in put.items():
            if "default" in self.options:
                script.put_list(key, [value])
            else:
                script.put(key, value)
        script.run()
        store.commit()
        self.ids[version + 1] = store.checkpoint_id
        self.rows[version + 1] = self.rows.get(version, {}) | put

    def read(self, version: int) -> Rows | str:
        """Return the rows of a version in a new instance, or its error message."""
        provider = self.open()
        try:
            store = provider.open_read(version, self.ids[version])
            rows = dict(store.scan("allValues" if "default" in self.options else "all"))
            store.release()
        except Py4JJavaError as error:
            return messages(error.java_exception)
        finally:
            provider.close()
        return rows

    def files(self) -> list[Path]:
        return sorted(
            path for path in self.location.rglob("*") if path.is_file() and "_holds" not in path.parts
        )


CONFS = {
    "v1": {"checkpointFormatVersion": "1"},
    "v2": {"checkpointFormatVersion": "2"},
    "v2-uncompressed": {"checkpointFormatVersion": "2", "backend__compression": "none"},
}
# Ordered keys, and several values of a key, have other read paths.
SHAPES: dict[str, dict[str, Any]] = {
    "hash": {},
    "values": {"default": Family(multiple=True), "families": True},
}


@pytest.fixture(
    params=[
        ("v1", "hash"),
        pytest.param(("v2-uncompressed", "hash"), marks=pytest.mark.soak),
        ("v2", "values"),
    ],
    ids="-".join,
)
def stored(spark: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
    confs, shape = request.param
    checkpoint = Stored(
        spark,
        tmp_path,
        CONFS[confs] | {"backend__fileStateThreshold": "600", "minDeltasForSnapshot": "2"},
        SHAPES[shape],
    )
    checkpoint.write_versions()
    assert [checkpoint.read(version) for version in checkpoint.rows] == list(checkpoint.rows.values())
    assert len([path for path in checkpoint.files() if path.parent.name == "shared"]) >= 2
    return checkpoint


@pytest.mark.slow
def test_load_returns_no_unwritten_row_of_damaged_files(stored: Stored) -> None:
    newest = max(stored.rows)
    refused = 0
    for path in stored.files():
        size = path.stat().st_size
        # An odd stride covers every alignment.
        stride = 1 if EFFORT > 1 else (size // 5) | 1
        metadata = [file for file in stored.files() if file.name == "_metadata"]
        for damage in (
            *flips(path, stride=stride),
            *cuts(path, stride=stride if EFFORT > 1 else size // 2),
            *replacements(path, metadata[:2]),
        ):
            with damaged(damage):
                refused += check(stored, newest, damage)
    # Metadata of the newest version, and the files that it needs.
    assert refused > 15


def check(stored: Stored, version: int, damage: Damage) -> bool:
    count("real provider: damaged files")
    result = stored.read(version)
    if not isinstance(result, str):
        assert result == stored.rows[version]
        # All damage of the version itself is detected.
        assert f"chk-{version}" not in damage.path.parent.name
        return False
    assert "operator 0, partition 0, store default" in result, result
    assert str(stored.location) in result, result
    assert REMEDY.search(result), result
    return True


def test_load_verifies_files_that_the_reader_thread_reads(spark: Any, tmp_path: Path) -> None:
    rows: Rows = {(f"k{i}", i): (i, f"{i}" * 9) for i in range(3500)}
    confs = CONFS["v1"] | {"backend__compression": "none", "backend__fileStateThreshold": "1000"}
    stored = Stored(spark, tmp_path, confs)
    provider = stored.open()
    stored.commit(provider, 0, rows)
    provider.close()
    (path,) = (file for file in stored.files() if file.parent.name == "shared")
    size = path.stat().st_size
    # The task itself reads smaller inputs.
    assert size > 256 * 1024
    assert stored.read(1) == rows
    for damage in (*flips(path, stride=(size // 5) | 1), *cuts(path, stride=size)):
        with damaged(damage):
            assert check(stored, 1, damage), damage
