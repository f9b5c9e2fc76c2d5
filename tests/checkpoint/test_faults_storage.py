"""What storages, locations and streams leave behind when they are cut short at every call."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest

from spark_statestore.checkpoint.files import FileSystem, FsspecFileSystem, open_file_system
from spark_statestore.checkpoint.storage import (
    CheckpointStorage,
    CheckpointStorageLocation,
    CompletedCheckpointStorageLocation,
    FsCheckpointStorage,
    MemoryBackendCheckpointStorage,
)
from spark_statestore.checkpoint.streams import CheckpointedStateScope, CheckpointStateOutputStream
from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    StateStoreError,
)
from spark_statestore.state.handles import StreamStateHandle
from spark_statestore.testing.faults import CrashedError, Fault
from tests.checkpoint.fault_bench import MODELS as ALL_MODELS
from tests.checkpoint.fault_bench import Model, faults_at

STATE = b"s" * 300
METADATA = b"m" * 200

_numbers = itertools.count()
# Each of them is crashed.
MODELS = {name: model for name, model in ALL_MODELS.items() if model.outlives_crashes}


class Place:
    """A storage on files that fail, and what was written to it."""

    def __init__(self, model: Model, kind: str) -> None:
        self.model = model
        self.fs = model.fs
        self.fs.restart()
        self.url = self.fs.url(f"storage-{next(_numbers)}")
        self.fsync = model.fsync
        self.kind = kind
        self.states: list[StreamStateHandle] = []
        self.location: CheckpointStorageLocation | None = None

    def open(self, url: str) -> tuple[FileSystem, str]:
        return open_file_system(url, fsync=self.fsync)

    @property
    def path(self) -> str:
        return self.url.removeprefix("faulty://")

    def storage(self) -> CheckpointStorage:
        files = FsspecFileSystem(self.fs, "faulty", fsync=self.fsync)
        if self.kind == "filesystem":
            return FsCheckpointStorage(files, self.path, 50, 100, open_files=self.open)
        return MemoryBackendCheckpointStorage(files, self.path, 1000, open_files=self.open)

    def left(self) -> list[str]:
        wrapped = self.fs.wrapped
        return sorted(wrapped.find(self.path)) if wrapped.exists(self.path) else []

    @property
    def fs_shows_parts(self) -> bool:
        return self.model.shows_parts

    def checkpoints(self) -> set[str]:
        directories = {path.rpartition("/")[0].lstrip("/") for path in self.left()}
        return {f"faulty://{path}" for path in directories if "/chk-" in path or "/savepoint-" in path}

    def tidy_up(self) -> None:
        if self.location is not None:
            self.location.dispose_on_failure()
        # Shared state belongs to whoever wrote it.
        for state in self.states:
            state.discard_state()

    def remove(self) -> None:
        if self.fs.wrapped.exists(self.path):
            self.fs.wrapped.rm(self.path, recursive=True)

    def write(self, stream: CheckpointStateOutputStream) -> StreamStateHandle:
        with stream:
            for start in range(0, len(STATE), 60):
                stream.write(STATE[start : start + 60])
            stream.flush()
            stream.sync()
            handle = stream.close_and_get_handle()
        assert handle is not None
        self.states.append(handle)
        return handle

    def complete(self, location: CheckpointStorageLocation) -> str:
        self.location = location
        for scope in CheckpointedStateScope:
            self.write(location.create_checkpoint_state_output_stream(scope))
        with location.create_metadata_output_stream() as stream:
            stream.write(METADATA)
            return stream.close_and_finalize_checkpoint().external_pointer


def check_whole(place: Place, pointer: str | None) -> None:
    if pointer is not None:
        found = place.storage().resolve_checkpoint(pointer)
        assert found.metadata_handle.open_input_stream().read() == METADATA
    for state in place.states:
        assert state.open_input_stream().read() == STATE


# What is cut short. Whoever is told of an error removes what is left.


def a_checkpoint(place: Place) -> str:
    storage = place.storage()
    storage.initialize_base_locations_for_checkpoint()
    return place.complete(storage.initialize_location_for_checkpoint(5))


def a_savepoint(place: Place) -> str:
    return place.complete(place.storage().initialize_location_for_savepoint(5, place.url))


def task_owned_state(place: Place) -> None:
    place.write(place.storage().create_task_owned_state_stream())


CASES: dict[str, Callable[[Place], str | None]] = {
    "a-checkpoint": a_checkpoint,
    "a-savepoint": a_savepoint,
    "task-owned-state": task_owned_state,
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["filesystem", "memory"])
@pytest.mark.parametrize("case", CASES)
def test_what_is_cut_short_is_whole_or_can_be_removed_and_repeated(case: str, kind: str, model: str) -> None:
    operate = CASES[case]
    place = Place(MODELS[model], kind)
    place.fs.inject()
    pointer = operate(place)
    calls = place.fs.calls
    place.fs.crash()
    place.fs.restart()
    check_whole(place, pointer)
    for fault in faults_at(calls, MODELS[model].kinds):
        place = Place(MODELS[model], kind)
        place.fs.inject(fault)
        try:
            check_cut_short(place, operate, fault)
        except BaseException as error:
            error.add_note(f"{fault}: " + "; ".join(map(str, place.fs.calls)))
            raise


def check_cut_short(place: Place, operate: Callable[[Place], str | None], fault: Fault) -> None:
    try:
        pointer = operate(place)
    except CrashedError:
        place.fs.restart()
        # Nobody knows of it; where a checkpoint can be found it is whole, or says that it is not.
        for directory in place.checkpoints():
            try:
                data = (
                    place.storage().resolve_checkpoint(directory).metadata_handle.open_input_stream().read()
                )
            except CheckpointNotFoundError:
                continue
            assert data == METADATA or place.fs_shows_parts
        place.remove()
    except StateStoreError:
        place.tidy_up()
        assert place.left() == []
    else:
        # The fault was got over, and harmed nothing.
        place.fs.crash()
        place.fs.restart()
        check_whole(place, pointer)
        place.remove()
    place.states.clear()
    pointer = operate(place)
    check_whole(place, pointer)
    place.remove()


@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_a_completed_checkpoint_can_be_disposed_of_again_after_an_error(model: str, recursive: bool) -> None:
    def complete() -> tuple[Place, CompletedCheckpointStorageLocation]:
        place = Place(MODELS[model], "filesystem")
        completed = place.storage().resolve_checkpoint(a_checkpoint(place))
        if not recursive:
            for state in place.states:
                state.discard_state()
        return place, completed

    def dispose(completed: CompletedCheckpointStorageLocation) -> None:
        if not recursive:
            completed.metadata_handle.discard_state()
        completed.dispose_storage_location(recursive=recursive)

    place, completed = complete()
    place.fs.inject()
    dispose(completed)
    for fault in faults_at(place.fs.calls, MODELS[model].kinds):
        place, completed = complete()
        place.fs.inject(fault)
        with contextlib.suppress(OSError, CrashedError):
            dispose(completed)
        place.fs.restart()
        with contextlib.suppress(CheckpointNotFoundError):
            again = place.storage().resolve_checkpoint(completed.external_pointer)
            assert again.metadata_handle.open_input_stream().read() == METADATA
        dispose(completed)
        assert [path for path in place.left() if "/chk-" in path] == []
        assert not place.fs.exists(f"{place.path}/chk-5")


def test_metadata_that_is_there_survives_every_attempt_to_write_it_again() -> None:
    for model in MODELS.values():
        place = Place(model, "filesystem")
        pointer = a_checkpoint(place)

        def write(place: Place = place) -> None:
            location = place.storage().initialize_location_for_checkpoint(5)
            with location.create_metadata_output_stream() as stream:
                stream.write(b"other")
                stream.close_and_finalize_checkpoint()

        place.fs.inject()
        with pytest.raises(CheckpointExistsError):
            write()
        for fault in faults_at(place.fs.calls, model.kinds):
            place.fs.inject(fault)
            with contextlib.suppress(OSError, CrashedError):
                write()
            place.fs.restart()
            check_whole(place, pointer)
