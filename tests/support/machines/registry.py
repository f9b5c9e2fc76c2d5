"""State machine of the shared state registry, with real files and failing deletions."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Callable

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spark_statestore.files import FileSystem, LocalFileSystem, join
from spark_statestore.storage.file_handles import FileStateHandle
from spark_statestore.storage.incremental_handle import ChainEntry, IncrementalStateHandle
from spark_statestore.storage.operator_handles import OperatorStreamStateHandle
from spark_statestore.storage.shared_state_registry import SharedStateRegistry

__all__ = ["SharedStateRegistryMachine"]


class SharedStateRegistryMachine(RuleBasedStateMachine):
    """Versions whose chains share streams, with cleanups, restarts and failing deletions.

    A file that a retained version needs exists after every step; and once deletions succeed, a
    cleanup leaves nothing else.
    """

    def open_files(self, directory: str) -> FileSystem:
        """Return the file system to run on; override it to try another one."""
        return LocalFileSystem()

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.mkdtemp()
        self.refuses = False
        self.files = _refusing(self.open_files(self.root), lambda: self.refuses)
        self.registry = SharedStateRegistry()
        self.lowest = 0
        self.stream_count = 0
        self.versions: dict[int, tuple[str, ...]] = {}
        self.held_versions: set[int] = set()

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """Commit a version: some streams of the one before, and a new one."""
        number = max(self.versions, default=0) + 1
        before = self.versions.get(number - 1, ())
        reused = before[data.draw(st.integers(0, len(before))) :]
        paths = (*reused, self.write())
        entries = [
            ChainEntry(
                number,
                False,
                OperatorStreamStateHandle(
                    state_name_to_partition_offsets={},
                    delegate_state_handle=FileStateHandle(self.files, path, 5),
                ),
            )
            for path in paths
        ]
        chain = IncrementalStateHandle(number, number, entries)
        for _ in range(data.draw(st.integers(1, 2))):
            chain.register_shared_states(self.registry)
        self.versions[number] = paths

    def write(self) -> str:
        self.stream_count += 1
        path = join(self.root, f"{self.stream_count}")
        self.files.make_directory(self.root)
        self.files.create(path, b"state")
        return path

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        self.held_versions = data.draw(st.sets(st.sampled_from(sorted(self.versions)), max_size=2))
        self.versions = {
            number: paths
            for number, paths in self.versions.items()
            if number >= self.lowest or number in self.held_versions
        }

    @precondition(lambda self: self.versions)
    @rule(behind=st.integers(0, 3))
    def clean_up(self, behind: int) -> None:
        """Discard the streams that no version from one on uses."""
        self.lowest = max(self.lowest, max(self.versions) - behind)
        self.versions = {
            number: paths
            for number, paths in self.versions.items()
            if number >= self.lowest or number in self.held_versions
        }
        self.registry.unregister_unused_state(self.lowest, self.held_versions)
        if not self.refuses:
            self.check_exactly()

    @rule()
    def restart(self) -> None:
        """Create another instance, which registers the retained versions' streams and lists orphans."""
        self.registry = SharedStateRegistry()
        for number, paths in self.versions.items():
            for path in paths:
                self.registry.register_reference(FileStateHandle(self.files, path, 5), number)
        for path in self.present():
            self.registry.register_orphan(FileStateHandle(self.files, path, -1), self.lowest - 1)

    @rule(refuses=st.booleans())
    def refuse_deletions(self, refuses: bool) -> None:
        self.refuses = refuses

    @invariant()
    def what_is_needed_is_there(self) -> None:
        missing = self.needed() - self.present()
        assert not missing, f"deleted, but needed: {sorted(missing)}"

    def check_exactly(self) -> None:
        unneeded = self.present() - self.needed()
        assert not unneeded, f"not needed, but there: {sorted(unneeded)}"

    def teardown(self) -> None:
        """Check for the last time, and remove the directory."""
        try:
            self.refuses = False
            self.registry.unregister_unused_state(self.lowest, self.held_versions)
            self.what_is_needed_is_there()
            if self.versions:
                self.check_exactly()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def needed(self) -> set[str]:
        """Return the files of the retained versions."""
        return {path for paths in self.versions.values() for path in paths}

    def present(self) -> set[str]:
        return {status.path for status in self.files.list_files(self.root)}


def _refusing(files: FileSystem, refuses: Callable[[], bool]) -> FileSystem:
    """Return the file system with deletions that fail while they are refused."""
    delete = files.delete

    def attempt(path: str) -> None:
        if refuses():
            raise PermissionError(f"{path} cannot be deleted now")
        delete(path)

    # Other machines may use the same object.
    files = copy.copy(files)
    files.delete = attempt  # type: ignore[method-assign]
    return files
