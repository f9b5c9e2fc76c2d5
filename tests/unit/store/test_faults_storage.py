"""Tests of storages, locations and streams with a fault or a crash at every call."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from spark_statestore.errors import CheckpointExistsError, StateStoreError
from spark_statestore.files import FsspecFileSystem, join, parent_of
from spark_statestore.storage import (
    METADATA_FILE_NAME,
    CheckpointStorage,
    CheckpointStorageLocation,
    FsCheckpointStorage,
    MemoryBackendCheckpointStorage,
)
from spark_statestore.storage.file_handles import discard_file
from spark_statestore.storage.stream_handles import StreamStateHandle
from spark_statestore.storage.streams import CheckpointedStateScope, CheckpointStateOutputStream
from spark_statestore.testing.faults_plan import CrashedError
from tests.unit.store.fault_bench import MODELS as ALL_MODELS
from tests.unit.store.fault_bench import Model, faults_at

STATE = b"s" * 300
METADATA = b"m" * 200

_numbers = itertools.count()
# Each of them is crashed.
MODELS = {name: model for name, model in ALL_MODELS.items() if model.outlives_crashes}


class FaultyStorage:
    """A storage on files that fail, and what was written to it."""

    def __init__(self, model: Model, kind: str) -> None:
        self.model = model
        self.fs = model.fs
        self.fs.restart()
        self.path = self.fs.url(f"storage-{next(_numbers)}").removeprefix("faulty://")
        self.metadata_path = join(self.path, "chk-5", METADATA_FILE_NAME)
        self.files = FsspecFileSystem(self.fs, "faulty", fsync=model.fsync)
        self.kind = kind
        self.column_families: list[StreamStateHandle] = []

    def storage(self) -> CheckpointStorage:
        if self.kind == "filesystem":
            return FsCheckpointStorage(self.files, self.path, 50, 100)
        return MemoryBackendCheckpointStorage(self.files, self.path, 1000)

    def metadata(self) -> bytes:
        return self.files.read(self.metadata_path)

    def tidy_up(self) -> None:
        for state in self.column_families:
            state.discard_state()
        discard_file(self.files, self.metadata_path)
        self.files.delete_directory(parent_of(self.metadata_path), recursive=False)
        assert not self.fs.wrapped.exists(self.path) or self.fs.wrapped.find(self.path) == []

    def remove(self) -> None:
        if self.fs.wrapped.exists(self.path):
            self.fs.wrapped.rm(self.path, recursive=True)

    def write(self, stream: CheckpointStateOutputStream) -> None:
        with stream:
            for start in range(0, len(STATE), 60):
                stream.write(STATE[start : start + 60])
            handle = stream.close_and_get_handle()
        assert handle is not None
        self.column_families.append(handle)

    def complete(self, location: CheckpointStorageLocation) -> None:
        for scope in CheckpointedStateScope:
            self.write(location.create_checkpoint_state_output_stream(scope))
        with location.create_metadata_output_stream() as stream:
            stream.write(METADATA)
            stream.close_and_finalize_checkpoint()


def check_whole(faulty: FaultyStorage) -> None:
    assert faulty.metadata() == METADATA
    for state in faulty.column_families:
        assert state.open_input_stream().read() == STATE


def write_checkpoint(faulty: FaultyStorage) -> None:
    storage = faulty.storage()
    storage.initialize_base_locations_for_checkpoint()
    faulty.complete(storage.initialize_location_for_checkpoint(5))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["filesystem", "memory"])
def test_checkpoint_after_a_fault_is_whole_or_removable_and_repeatable(kind: str, model: str) -> None:
    faulty = FaultyStorage(MODELS[model], kind)
    faulty.fs.inject()
    write_checkpoint(faulty)
    calls = faulty.fs.calls
    faulty.fs.crash()
    faulty.fs.restart()
    check_whole(faulty)
    for fault in faults_at(calls, MODELS[model].kinds):
        faulty = FaultyStorage(MODELS[model], kind)
        faulty.fs.inject(fault)
        try:
            check_cut_short(faulty)
        except BaseException as error:
            error.add_note(f"{fault}: " + "; ".join(map(str, faulty.fs.calls)))
            raise


def check_cut_short(faulty: FaultyStorage) -> None:
    try:
        write_checkpoint(faulty)
    except CrashedError:
        faulty.fs.restart()
        # Published metadata is whole, or a file system without atomic publishing shows a part, which
        # checksums detect.
        with contextlib.suppress(FileNotFoundError):
            assert faulty.metadata() == METADATA or faulty.model.shows_parts
        faulty.remove()
    except StateStoreError:
        faulty.tidy_up()
    else:
        # The fault was retried or had no effect.
        faulty.fs.crash()
        faulty.fs.restart()
        check_whole(faulty)
        faulty.remove()
    faulty.column_families.clear()
    write_checkpoint(faulty)
    check_whole(faulty)
    faulty.remove()


def test_published_metadata_survives_faults_of_later_attempts() -> None:
    for model in MODELS.values():
        faulty = FaultyStorage(model, "filesystem")
        write_checkpoint(faulty)

        def write(faulty: FaultyStorage = faulty) -> None:
            location = faulty.storage().initialize_location_for_checkpoint(5)
            with location.create_metadata_output_stream() as stream:
                stream.write(b"other")
                stream.close_and_finalize_checkpoint()

        faulty.fs.inject()
        with pytest.raises(CheckpointExistsError):
            write()
        for fault in faults_at(faulty.fs.calls, model.kinds):
            faulty.fs.inject(fault)
            with contextlib.suppress(OSError, CrashedError):
                write()
            faulty.fs.restart()
            check_whole(faulty)
