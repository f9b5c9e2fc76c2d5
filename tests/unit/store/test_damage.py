"""Damaged, missing and exchanged files of a store are detected: no reader returns wrong rows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_statestore.errors import (
    CheckpointIOError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
)
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName, metadata_streams
from spark_statestore.storage.incremental_handle import IncrementalStateHandle
from spark_statestore.store.commit import Committed
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId
from spark_statestore.store.reader import stored_messages
from tests.support.damage import Damage, cuts, damaged, flips, replacements
from tests.support.effort import EFFORT
from tests.unit.store.stores import attempt_id, commit, open_store, rows_of, snapshot

Rows = dict[bytes, bytes]

# Damage never raises UnsupportedFormatError, whose remedy would not help.
DETECTED = (CorruptCheckpointError, CheckpointNotFoundError)
REMEDY = re.compile(r"from a backup|[Uu]pgrade|[Ss]tart from|Check that")


def _messages(store: StoreDirectory, name: CheckpointName) -> None:
    """Read a version as for a JVM, which decodes the messages itself."""
    metadata = store.load(name)
    for _ in stored_messages(store, name, metadata, metadata.handle):
        pass


Reader = Callable[[StoreDirectory, CheckpointName], Rows | None]
READERS: list[Reader] = [rows_of, _messages]


@dataclass
class Stored:
    """A store of six versions: own files, a version committed twice, a rebased chain, a run."""

    directory: Path
    options: StorageOptions
    ids: bool
    partition: int = 3

    def __post_init__(self) -> None:
        self.names: dict[int, CheckpointName] = {}
        self.rows: dict[int, Rows] = {}
        commits: dict[int, Committed] = {}
        self.handles = commits

        def add(version: int, put: Rows, base: IncrementalStateHandle | None = None) -> None:
            by = attempt_id()
            name = CheckpointName(version, by if self.ids else None)
            parent = commits[version - 1].handle if version > 1 else None
            commits[version] = commit(self.open(), name, put, parent=parent, base=base, by=by)
            self.names[version] = name
            self.rows[version] = self.rows.get(version - 1, {}) | put

        value = b"%d" % self.partition
        add(1, {b"a": value, b"large": value * 200})
        add(2, {b"b": b"2"})
        add(3, {b"c": b"an older attempt"})
        self.older = self.metadata(3).read_bytes()
        add(3, {b"c": b"3", b"more": value * 150})
        # Builds on inline changes of a version that is committed again afterwards.
        add(4, {b"d": b"4"})
        add(5, {b"e": b"5"}, base=snapshot(self.open(), 2, self.rows[2]))
        since = dict(self.rows[5].items() - self.rows[2].items())
        add(6, {b"f": b"6"}, base=snapshot(self.open(), 5, since, since=2))
        assert [entry.since for entry in commits[6].handle] == [None, 2, None]

    def open(self) -> StoreDirectory:
        return open_store(self.directory, self.options, store=StoreId(0, self.partition))

    def metadata(self, version: int) -> Path:
        return self.directory / self.names[version].directory / "_metadata"

    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*") if path.is_file())

    def needed(self) -> list[Path]:
        """Return the files of the store, except those of superseded attempts and copies of their metadata."""
        own = {"shared", *(name.directory for name in self.names.values())}
        return [p for p in self.files() if p.parent.name in own and not p.name.startswith("_metadata.")]

    def check(self, versions: Iterable[int], readers: Sequence[Reader] = READERS) -> int:
        """Check that each version is unchanged or refused with its name and a remedy.

        Return the number of refused versions.
        """
        refused = 0
        for version in versions:
            store, name = self.open(), self.names[version]
            for reader in readers:
                try:
                    rows = reader(store, name)
                except DETECTED as error:
                    refused += 1
                    text = str(error)
                    assert f"operator 0, partition {self.partition}, store default" in text, text
                    assert f"version {version}" in text, text
                    assert str(self.directory) in text, text
                    assert REMEDY.search(text), text
                    continue
                assert rows is None or rows == self.rows[version], rows
        return refused

    def check_damages(self, damages: Iterable[Damage], *, all_matter: bool, thorough: bool = False) -> None:
        """Check several damages; for `thorough` ones with one version and one reader, except in soak."""
        for damage in damages:
            with damaged(damage):
                versions = self.versions_of(damage.path)
                if EFFORT > 1 or not thorough:
                    refused = self.check(versions)
                else:
                    refused = self.check(versions[:1], READERS[:1])
                assert refused or not all_matter, "the damage was not detected"

    def versions_of(self, path: Path) -> list[int]:
        """Return the versions that need a file; those that need only its inline state come last."""
        own = {version for version, name in self.names.items() if name.directory == path.parent.name}
        start = f"/{path.parent.name}/{path.name.partition('.')[0]}"
        using = [
            version
            for version, committed in self.handles.items()
            if any(start in entry.state.stream_state_handle_id for entry in committed.handle)
        ]
        return sorted(own) + [version for version in using if version not in own]


# Metadata is read in two pieces or in one.
@pytest.fixture(
    params=[("v1", 64), ("v2", metadata_streams._FIRST_READ), ("v1-compressed", 64)],
    ids=lambda param: param[0],
)
def stored(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stored:
    kind, first_read = request.param
    monkeypatch.setattr(metadata_streams, "_FIRST_READ", first_read)
    options = StorageOptions(file_state_threshold=400, compression="zstd" if "compressed" in kind else None)
    sample = Stored(tmp_path / "state" / "0" / "3", options, kind == "v2")
    assert sample.check(sample.names) == 0
    assert [path for path in sample.files() if path.parent.name == "shared"]
    return sample


def test_read_detects_damage_at_every_byte_of_every_file(stored: Stored) -> None:
    for path in stored.files():
        damages = flips(path, stride=1 if EFFORT > 1 else 23, bits=8 if EFFORT > 1 else 1)
        stored.check_damages(damages, all_matter=path in stored.needed(), thorough=True)


def test_read_detects_truncation_of_every_file(stored: Stored) -> None:
    for path in stored.files():
        damages = cuts(path, stride=1 if EFFORT > 1 else 29)
        stored.check_damages(damages, all_matter=path in stored.needed(), thorough=True)


def test_read_detects_missing_and_exchanged_files(stored: Stored) -> None:
    other_store = Stored(stored.directory.parent / "4", stored.options, stored.ids, partition=4)
    files = stored.files() + other_store.files()
    superseded = set(stored.files()) - set(stored.needed())
    for path in stored.needed():
        from_elsewhere = [file for file in files if not _is_attempt(path, file, superseded)]
        stored.check_damages(replacements(path, from_elsewhere), all_matter=True)
    for path in superseded:
        stored.check_damages(replacements(path, files), all_matter=False)
    stored.check(stored.names)


def _is_attempt(path: Path, other_path: Path, superseded: set[Path]) -> bool:
    """Return True if another file is another attempt at the same version, which is equally valid."""
    return other_path in superseded and path.parent == other_path.parent


def test_load_refuses_exchanged_stores(stored: Stored) -> None:
    other_store = Stored(stored.directory.parent / "4", stored.options, stored.ids, partition=4)
    aside = stored.directory.with_name("aside")
    stored.directory.rename(aside)
    other_store.directory.rename(stored.directory)
    aside.rename(other_store.directory)
    for store in (stored, other_store):
        assert store.check(store.names) == 2 * len(store.names)


@pytest.mark.parametrize("link", [False, True])
def test_read_error_names_a_path_that_is_no_file(stored: Stored, link: bool) -> None:
    """A directory, or a link that leads nowhere."""
    for path in stored.needed():
        aside = path.rename(path.with_name("aside"))
        if link:
            path.symlink_to("nowhere")
        else:
            path.mkdir()
        refused, text = 0, []
        for version in stored.versions_of(path):
            try:
                assert rows_of(stored.open(), stored.names[version]) == stored.rows[version]
            except (*DETECTED, CheckpointIOError) as error:
                refused += 1
                text.append(str(error))
        assert refused
        assert all(str(stored.directory) in message and REMEDY.search(message) for message in text), text
        path.unlink() if link else path.rmdir()
        aside.rename(path)


def test_load_refuses_metadata_of_a_recreated_store(tmp_path: Path) -> None:
    """Metadata of a removed store is accepted neither as a parent nor as state of the new one."""
    options = StorageOptions(file_state_threshold=400, compression=None)
    old = Stored(tmp_path / "0" / "3", options, ids=False)
    shutil.copytree(old.directory, tmp_path / "backup")
    shutil.rmtree(old.directory)
    new = Stored(tmp_path / "0" / "3", options, ids=False)
    for version in new.names:
        path = new.metadata(version)
        data = (tmp_path / "backup" / path.parent.name / "_metadata").read_bytes()
        with damaged(Damage(path, "of before", data)):
            # Its children lack its inline state, and it lacks its parents' files.
            assert new.check(new.names) >= 2


@pytest.mark.parametrize("ids", [False, True], ids=["v1", "v2"])
def test_older_attempt_in_place_of_a_later_one_is_read_or_refused_as_a_whole(
    tmp_path: Path, ids: bool
) -> None:
    """It is intact. In format v1 only its time distinguishes it from the last one, in format v2 its name."""
    options = StorageOptions(file_state_threshold=400, compression=None)
    stored = Stored(tmp_path / "0" / "3", options, ids=ids)
    stored.metadata(3).write_bytes(stored.older)
    if ids:
        assert stored.check([3]) == 2
        assert stored.check([1, 2, 5]) == 0
    else:
        assert stored.check([1, 2, 4, 5]) == 0
        assert rows_of(stored.open(), stored.names[3]) == stored.rows[2] | {b"c": b"an older attempt"}
