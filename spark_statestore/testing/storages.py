"""What holds for every checkpoint storage."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest

from spark_statestore.checkpoint.files import FileSystem, join, parent_of
from spark_statestore.checkpoint.storage import (
    METADATA_FILE_NAME,
    NOT_EXTERNALLY_ADDRESSABLE,
    CheckpointName,
    CheckpointStorage,
    CheckpointStorageLocation,
    CheckpointStorageLocationReference,
    CompletedCheckpointStorageLocation,
)
from spark_statestore.checkpoint.streams import CheckpointedStateScope, CheckpointStreamFactory
from spark_statestore.errors import (
    CheckpointExistsError,
    CheckpointIOError,
    CheckpointNotFoundError,
    MetadataNotFoundError,
    OptionError,
    StorageURLError,
)
from spark_statestore.state.handles import FileStateHandle, StreamStateHandle

__all__ = ["CheckpointStorageTests"]

DEFAULT = CheckpointStorageLocationReference.default()

JOB = "7cedf7" + "0" * 26


class CheckpointStorageTests:
    """The contract of `CheckpointStorage`.

    Subclasses override the fixtures ``files`` and ``directory`` and the method `storage_of`.

    Attributes
    ----------
    keeps_metadata
        Whether the metadata of a checkpoint, rather than only of a savepoint, can be found by a
        pointer.
    has_directories
        Whether the file system has directories without files in them.
    sees_metadata_at_once
        Whether a second metadata stream for a checkpoint is refused when it is opened.
    """

    keeps_metadata = True
    has_directories = True
    sees_metadata_at_once = True

    @pytest.fixture
    def files(self) -> FileSystem:
        """The file system of checkpoints, and of savepoints."""
        raise NotImplementedError

    @pytest.fixture
    def directory(self) -> str:
        """Path of a directory of its own for this test; it need not be there."""
        raise NotImplementedError

    def storage_of(
        self,
        files: FileSystem,
        directory: str,
        *,
        job_id: str | None = None,
        default_savepoint_directory: str | None = None,
    ) -> CheckpointStorage:
        """A storage whose job has this directory."""
        raise NotImplementedError

    @pytest.fixture
    def storage(self, files: FileSystem, directory: str) -> CheckpointStorage:
        """A storage without a default place for savepoints, whose base locations are made."""
        storage = self.storage_of(files, join(directory, "job"), job_id=JOB)
        storage.initialize_base_locations_for_checkpoint()
        return storage

    @pytest.fixture
    def stored(self, files: FileSystem, directory: str) -> Callable[[], list[str]]:
        """Names the files below the directory."""
        start = directory.rstrip("/") + "/"
        return lambda: sorted(status.path.removeprefix(start) for status in files.list_files(directory))

    @staticmethod
    def write(
        factory: CheckpointStreamFactory,
        data: bytes,
        scope: CheckpointedStateScope = CheckpointedStateScope.EXCLUSIVE,
    ) -> StreamStateHandle:
        """The handle of a state."""
        with factory.create_checkpoint_state_output_stream(scope) as out:
            out.write(data)
            handle = out.close_and_get_handle()
        assert handle is not None
        return handle

    @staticmethod
    def publish(
        location: CheckpointStorageLocation, data: bytes = b"metadata"
    ) -> CompletedCheckpointStorageLocation:
        """Make the checkpoint exist."""
        with location.create_metadata_output_stream() as out:
            out.write(data)
            return out.close_and_finalize_checkpoint()

    @staticmethod
    def content(handle: StreamStateHandle) -> bytes:
        """Everything in a stream."""
        with handle.open_input_stream() as stream:
            return stream.read()

    # Checkpoints

    def test_a_published_checkpoint_has_its_metadata(self, storage: CheckpointStorage) -> None:
        location = storage.initialize_location_for_checkpoint(3)
        with location.create_metadata_output_stream() as out:
            out.write(b"meta")
            out.write(bytearray(b"da"))
            out.flush()
            out.sync()
            out.write(memoryview(b"ta"))
            assert out.get_pos() == 8
            completed = out.close_and_finalize_checkpoint()
        assert self.content(completed.metadata_handle) == b"metadata"
        assert completed.metadata_handle.state_size == 8
        if self.keeps_metadata:
            again = storage.resolve_checkpoint(completed.external_pointer)
            assert self.content(again.metadata_handle) == b"metadata"
            assert again.external_pointer == completed.external_pointer
        else:
            assert completed.external_pointer == NOT_EXTERNALLY_ADDRESSABLE

    def test_metadata_of_nothing_is_metadata(self, storage: CheckpointStorage) -> None:
        completed = self.publish(storage.initialize_location_for_checkpoint(1), b"")
        assert self.content(completed.metadata_handle) == b""

    def test_state_of_a_checkpoint_comes_back(self, storage: CheckpointStorage) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        for scope, size in itertools.product(CheckpointedStateScope, (1, 50_000)):
            assert self.content(self.write(location, b"s" * size, scope)) == b"s" * size

    def test_who_resolves_the_place_of_a_checkpoint_writes_there(self, storage: CheckpointStorage) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        worker = storage.resolve_checkpoint_storage_location(1, location.location_reference)
        mine, theirs = self.write(location, bytes(50_000)), self.write(worker, bytes(50_000))
        assert self.content(theirs) == bytes(50_000)
        if isinstance(mine, FileStateHandle):
            assert isinstance(theirs, FileStateHandle)
            assert parent_of(mine.path) == parent_of(theirs.path)

    def test_metadata_shows_only_once_it_is_published(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        with location.create_metadata_output_stream() as out:
            out.write(bytes(100_000))
            out.flush()
            out.sync()
            assert stored() == []
            out.close_and_finalize_checkpoint()
        assert len(stored()) == (1 if self.keeps_metadata else 0)

    def test_abandoned_metadata_leaves_nothing(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        with location.create_metadata_output_stream() as out:
            out.write(b"metadata")
        out.close()
        assert stored() == []
        with pytest.raises(CheckpointIOError, match="closed"):
            out.close_and_finalize_checkpoint()
        with pytest.raises(CheckpointIOError, match="closed"):
            out.write(b"more")
        # Giving up an attempt does not stand in the way of another one.
        assert self.content(self.publish(location, b"other").metadata_handle) == b"other"

    def test_metadata_is_published_once(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        out = storage.initialize_location_for_checkpoint(1).create_metadata_output_stream()
        out.write(b"metadata")
        completed = out.close_and_finalize_checkpoint()
        before = stored()
        out.close()
        for _ in range(2):
            with pytest.raises(CheckpointIOError, match="closed"):
                out.close_and_finalize_checkpoint()
        with pytest.raises(CheckpointIOError, match="closed"):
            out.write(b"more")
        assert stored() == before
        assert self.content(completed.metadata_handle) == b"metadata"

    def test_a_checkpoint_that_exists_is_never_replaced(self, storage: CheckpointStorage) -> None:
        if not self.keeps_metadata:
            pytest.skip("nothing is kept")
        location = storage.initialize_location_for_checkpoint(1)
        # Both begin before there is one.
        late = location.create_metadata_output_stream()
        completed = self.publish(location, b"first")
        late.write(b"late")
        with pytest.raises(CheckpointExistsError, match="never replaced") as raised:
            late.close_and_finalize_checkpoint()
        assert completed.external_pointer in str(raised.value)
        again = storage.initialize_location_for_checkpoint(1)
        if self.sees_metadata_at_once:
            with pytest.raises(CheckpointExistsError, match="never replaced"):
                again.create_metadata_output_stream()
        else:
            with pytest.raises(CheckpointExistsError, match="never replaced"):
                self.publish(again, b"other")
        assert (
            self.content(storage.resolve_checkpoint(completed.external_pointer).metadata_handle) == b"first"
        )

    def test_attempts_with_ids_of_their_own_are_checkpoints_of_their_own(
        self, storage: CheckpointStorage
    ) -> None:
        names = [CheckpointName(1), CheckpointName(1, "a"), CheckpointName(1, "b"), CheckpointName(10)]
        found = [
            self.publish(storage.initialize_location_for_checkpoint(name), str(name).encode())
            for name in names
        ]
        assert [self.content(c.metadata_handle) for c in found] == [str(name).encode() for name in names]

    def test_a_negative_number_is_refused(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        with pytest.raises(ValueError, match="negative checkpoint id: -1"):
            storage.initialize_location_for_checkpoint(-1)
        with pytest.raises(ValueError, match="negative checkpoint id: -1"):
            storage.resolve_checkpoint_storage_location(-1, DEFAULT)
        assert self.content(self.publish(storage.initialize_location_for_checkpoint(0)).metadata_handle)

    def test_a_failed_checkpoint_leaves_nothing_of_its_own(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        kept = self.publish(storage.initialize_location_for_checkpoint(10))
        before = stored()
        location = storage.initialize_location_for_checkpoint(1)
        self.write(location, bytes(50_000))
        self.publish(location)
        location.dispose_on_failure()
        location.dispose_on_failure()
        assert stored() == before
        assert self.content(kept.metadata_handle) == b"metadata"

    def test_state_that_is_shared_outlives_the_checkpoint_that_failed(
        self, storage: CheckpointStorage
    ) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        shared = self.write(location, bytes(50_000), CheckpointedStateScope.SHARED)
        location.dispose_on_failure()
        assert self.content(shared) == bytes(50_000)

    def test_a_checkpoint_is_gone_when_it_was_disposed_of(
        self, storage: CheckpointStorage, files: FileSystem, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        state = self.write(location, bytes(50_000))
        completed = self.publish(location)
        completed.metadata_handle.discard_state()
        state.discard_state()
        completed.dispose_storage_location()
        completed.dispose_storage_location()
        assert stored() == []
        with pytest.raises(FileNotFoundError):
            storage.resolve_checkpoint(completed.external_pointer)
        if isinstance(completed.metadata_handle, FileStateHandle):
            assert not files.exists(parent_of(completed.metadata_handle.path))

    def test_what_is_left_in_a_checkpoint_stays_unless_all_of_it_goes(
        self, storage: CheckpointStorage, stored: Callable[[], list[str]]
    ) -> None:
        completed = self.publish(storage.initialize_location_for_checkpoint(1))
        before = stored()
        if self.keeps_metadata and self.has_directories:
            with pytest.raises(OSError):  # noqa: PT011 - every system has words of its own
                completed.dispose_storage_location()
        else:
            completed.dispose_storage_location()
        assert stored() == before
        assert self.content(completed.metadata_handle) == b"metadata"
        completed.dispose_storage_location(recursive=True)
        assert stored() == []

    # Jobs and directories

    def test_two_jobs_on_one_base_do_not_meet(self, files: FileSystem, directory: str) -> None:
        storages = [self.storage_of(files, join(directory, job)) for job in ("one", "two")]
        found = []
        for number, storage in enumerate(storages):
            storage.initialize_base_locations_for_checkpoint()
            found.append(self.publish(storage.initialize_location_for_checkpoint(177), b"%d" % number))
        assert [self.content(c.metadata_handle) for c in found] == [b"0", b"1"]
        if self.keeps_metadata:
            assert found[0].external_pointer != found[1].external_pointer
            for storage, (number, completed) in itertools.product(storages, enumerate(found)):
                again = storage.resolve_checkpoint(completed.external_pointer)
                assert self.content(again.metadata_handle) == b"%d" % number

    def test_base_locations_can_be_made_again(self, storage: CheckpointStorage) -> None:
        handle = self.write(
            storage.initialize_location_for_checkpoint(1), bytes(50_000), CheckpointedStateScope.SHARED
        )
        storage.initialize_base_locations_for_checkpoint()
        assert self.content(handle) == bytes(50_000)

    def test_making_and_resolving_make_no_directory(self, files: FileSystem, directory: str) -> None:
        storage = self.storage_of(files, join(directory, "job"))
        storage.resolve_checkpoint_storage_location(1, DEFAULT)
        with pytest.raises(FileNotFoundError):
            storage.resolve_checkpoint(files.url(join(directory, "job", "chk-1")))
        with storage.create_task_owned_state_stream():
            pass
        assert not files.exists(join(directory, "job"))

    def test_task_owned_state_outlives_every_checkpoint(self, storage: CheckpointStorage) -> None:
        location = storage.initialize_location_for_checkpoint(1)
        handles = []
        for size in (1, 50_000):
            with storage.create_task_owned_state_stream() as out:
                out.write(b"t" * size)
                handles.append(out.close_and_get_handle())
        self.publish(location).dispose_storage_location(recursive=True)
        location.dispose_on_failure()
        for handle, size in zip(handles, (1, 50_000), strict=True):
            assert handle is not None
            assert self.content(handle) == b"t" * size
            handle.discard_state()

    # Pointers

    def test_every_form_of_a_pointer_finds_the_checkpoint(
        self, storage: CheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        target = files.url(join(directory, "savepoints"))
        completed = self.publish(storage.initialize_location_for_savepoint(1, target), b"found")
        pointer = completed.external_pointer
        assert not pointer.endswith("/")
        metadata = f"{pointer}/{METADATA_FILE_NAME}"
        forms = [pointer, f"{pointer}/", f"{pointer}//", metadata, f"{metadata}/"]
        if files.scheme == "file":
            path = pointer.removeprefix("file://")
            forms += [path, f"{path}/", f"{path}/{METADATA_FILE_NAME}", f"file:{path}"]
        for form in forms:
            again = storage.resolve_checkpoint(form)
            assert again.external_pointer == pointer
            assert self.content(again.metadata_handle) == b"found"
            assert again.metadata_handle.state_size == 5

    def test_metadata_may_have_any_name_if_it_is_named(
        self, storage: CheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        files.make_directory(join(directory, "kept"))
        files.create(join(directory, "kept", "metadata of june"), b"june")
        again = storage.resolve_checkpoint(files.url(join(directory, "kept", "metadata of june")))
        assert self.content(again.metadata_handle) == b"june"
        assert again.external_pointer == files.url(join(directory, "kept"))

    def test_what_is_no_pointer_is_refused(self, storage: CheckpointStorage) -> None:
        for nothing in (None, 7, b"/checkpoints"):
            with pytest.raises(TypeError, match="pointer is a string"):
                storage.resolve_checkpoint(nothing)  # type: ignore[arg-type]
        for empty in ("", "  "):
            with pytest.raises(StorageURLError, match="is empty"):
                storage.resolve_checkpoint(empty)

    def test_a_pointer_to_nothing_a_directory_without_metadata_and_a_url_are_told_apart(
        self, storage: CheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        files.make_directory(join(directory, "empty"))
        files.create(join(directory, "empty", "other"), b"1")
        with pytest.raises(MetadataNotFoundError, match=METADATA_FILE_NAME) as raised:
            storage.resolve_checkpoint(files.url(join(directory, "empty")))
        assert files.url(join(directory, "empty")) in str(raised.value)
        for missing in (join(directory, "missing"), join(directory, "empty", "other", "below")):
            with pytest.raises(CheckpointNotFoundError) as not_found:
                storage.resolve_checkpoint(files.url(missing))
            assert type(not_found.value) is CheckpointNotFoundError
            assert files.url(missing) in str(not_found.value)
        # A legal relative path, as odd as it is.
        for odd in ("this-is_not/a#filepath.at.all", NOT_EXTERNALLY_ADDRESSABLE):
            with pytest.raises(FileNotFoundError):
                storage.resolve_checkpoint(odd)

    # Savepoints

    def test_a_savepoint_is_a_new_directory_in_its_target(
        self, storage: CheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        target = join(directory, "not", "yet", "there")
        found = []
        for _ in range(3):
            completed = self.publish(storage.initialize_location_for_savepoint(1, files.url(target)))
            assert isinstance(completed.metadata_handle, FileStateHandle)
            place, name = completed.metadata_handle.path.rsplit("/", 1)
            assert name == METADATA_FILE_NAME
            assert parent_of(place) == target
            start, job, random = place.rpartition("/")[2].split("-")
            assert (start, job, len(random)) == ("savepoint", JOB[:6], 12)
            assert int(random, 16) >= 0
            assert completed.external_pointer == files.url(place)
            found.append(place)
        assert len(set(found)) == 3

    def test_a_target_beats_the_default_place(self, files: FileSystem, directory: str) -> None:
        default, target = (files.url(join(directory, name)) for name in ("default", "target"))
        storage = self.storage_of(
            files, join(directory, "job"), job_id=JOB, default_savepoint_directory=default
        )
        assert storage.has_default_savepoint_location
        for given, base in ((None, default), (target, target)):
            completed = self.publish(storage.initialize_location_for_savepoint(1, given))
            assert parent_of(completed.external_pointer) == base

    def test_a_savepoint_needs_a_place(
        self, storage: CheckpointStorage, files: FileSystem, directory: str
    ) -> None:
        assert not storage.has_default_savepoint_location
        with pytest.raises(OptionError, match="savepointsDir"):
            storage.initialize_location_for_savepoint(1)
        target = files.url(join(directory, "target"))
        assert self.publish(storage.initialize_location_for_savepoint(1, target))

    def test_a_savepoint_is_found_and_holds_all_of_its_state(
        self, storage: CheckpointStorage, files: FileSystem, directory: str, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_savepoint(1, files.url(join(directory, "savepoints")))
        worker = storage.resolve_checkpoint_storage_location(1, location.location_reference)
        for factory, scope in itertools.product((location, worker), CheckpointedStateScope):
            handle = self.write(factory, bytes(50_000), scope)
            assert self.content(handle) == bytes(50_000)
            if isinstance(handle, FileStateHandle):
                assert isinstance(location, CheckpointStreamFactory)
        completed = self.publish(location, b"savepoint")
        place = completed.external_pointer.removeprefix(files.url(directory) + "/")
        assert {parent_of(name) for name in stored()} == {place}
        again = storage.resolve_checkpoint(completed.external_pointer)
        assert self.content(again.metadata_handle) == b"savepoint"
        again.dispose_storage_location(recursive=True)
        assert stored() == []

    def test_a_failed_savepoint_leaves_nothing(
        self, storage: CheckpointStorage, files: FileSystem, directory: str, stored: Callable[[], list[str]]
    ) -> None:
        location = storage.initialize_location_for_savepoint(1, files.url(join(directory, "savepoints")))
        self.write(location, bytes(50_000), CheckpointedStateScope.SHARED)
        location.dispose_on_failure()
        assert stored() == []

    # References

    def test_a_checkpoint_has_the_default_reference(self, storage: CheckpointStorage) -> None:
        reference = storage.initialize_location_for_checkpoint(1).location_reference
        assert reference.is_default_reference
        assert reference == DEFAULT
        assert copy.deepcopy(reference) == DEFAULT

    def test_highly_available_is_what_outlives_the_process(self, storage: CheckpointStorage) -> None:
        assert storage.supports_highly_available_storage == self.keeps_metadata
