"""The contract of `FileSystem` as a test class."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_statestore.files import FileSystem, join, parent_of


class FileSystemTests:
    """The contract of `FileSystem`; subclasses override the fixtures ``files`` and ``directory``.

    Attributes
    ----------
    creates_exclusively
        Whether only one of several concurrent calls of `create` for a path succeeds.
    has_directories
        Whether empty directories exist, and directories with files cannot be removed.
    opens_exclusively
        Whether `FileSystem.open_output` refuses an existing file.
    misses_what_is_deleted
        Whether deleting a missing file is an error.
    examples
        Number of examples of tests with generated input.
    """

    creates_exclusively = True
    has_directories = True
    opens_exclusively = True
    misses_what_is_deleted = True
    examples = 20

    @pytest.fixture
    def files(self) -> FileSystem:
        """Return the file system under test."""
        raise NotImplementedError

    @pytest.fixture
    def elsewhere(self, files: FileSystem) -> FileSystem:
        """Return a file system with the same files for another process; by default the same object."""
        return files

    @pytest.fixture
    def directory(self) -> str:
        """Return the path of a directory for this test alone, which need not exist."""
        raise NotImplementedError

    @pytest.fixture
    def root(self, files: FileSystem, directory: str) -> str:
        """Return the directory after making it."""
        files.make_directory(directory)
        return directory

    @staticmethod
    def names(files: FileSystem, directory: str) -> list[str]:
        """Return the relative paths of the files below a directory."""
        start = directory.rstrip("/") + "/"
        return sorted(status.path.removeprefix(start) for status in files.list_files(directory))

    # Whole files

    def test_create_is_atomic_and_exclusive(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        files.create(path, memoryview(b"0123456789"))
        with pytest.raises(FileExistsError):
            files.create(path, b"other")
        assert files.read(path) == b"0123456789"
        assert files.exists(path)
        assert self.names(files, root) == ["file"]

    def test_create_accepts_any_size(self, files: FileSystem, root: str) -> None:
        for size in (0, 1, 65_537, 3_000_000):
            data = bytes(range(256)) * (size // 256 + 1)
            path = join(root, str(size))
            files.create(path, data[:size])
            assert files.read(path) == data[:size]
            assert files.size(path) == size

    def test_any_kind_of_buffer_can_be_written(self, files: FileSystem, root: str) -> None:
        for number, kind in enumerate((bytes, bytearray, memoryview)):
            files.create(join(root, f"created-{number}"), kind(b"state"))
            files.replace(join(root, f"replaced-{number}"), kind(b"state"))
            out = files.open_output(join(root, f"written-{number}"))
            out.write(kind(b"state"))
            out.close()
        assert len(self.names(files, root)) == 9
        assert {files.read(join(root, name)) for name in self.names(files, root)} == {b"state"}

    def test_replace_overwrites_the_content(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        for data in (b"one", b"two and more", b""):
            files.replace(path, data)
            assert files.read(path) == data
            assert files.size(path) == len(data)
        assert self.names(files, root) == ["file"]

    def test_delete_removes_the_file_and_keeps_its_directory(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        files.create(path, b"1")
        files.delete(path)
        assert not files.exists(path)
        with pytest.raises(FileNotFoundError):
            files.read(path)
        if self.has_directories:
            assert files.is_directory(root)

    def test_concurrent_creates_have_one_winner(self, files: FileSystem, root: str) -> None:
        if not self.creates_exclusively:
            pytest.skip("this file system does not promise it")
        won: list[bytes] = []
        start = threading.Barrier(8)

        def create(data: bytes) -> None:
            start.wait()
            try:
                files.create(join(root, "file"), data)
            except FileExistsError:
                return
            won.append(data)

        threads = [threading.Thread(target=create, args=(bytes([i]) * 1000,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [files.read(join(root, "file"))] == won
        assert self.names(files, root) == ["file"]

    # Reading

    def test_read_returns_any_range(self, files: FileSystem, root: str) -> None:
        path, data = join(root, "file"), bytes(range(100))
        files.create(path, data)

        @settings(max_examples=self.examples, deadline=None, database=None)
        @given(st.integers(0, 100), st.one_of(st.none(), st.integers(1, 120)))
        def part(start: int, size: int | None) -> None:
            end = None if size is None else start + size
            if start < len(data):
                assert files.read(path, start, size) == data[start:end]

        part()

    def test_open_input_reads_independently_of_other_readers(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        files.create(path, b"0123456789")
        with files.open_input(path) as first, files.open_input(path) as second:
            assert first.read(2) == b"01"
            assert second.read(3) == b"012"
            assert first.read() == b"23456789"
            assert first.read() == b""
            assert second.read() == b"3456789"

    def test_list_directory_lists_its_files_and_directories(self, files: FileSystem, root: str) -> None:
        files.make_directory(join(root, "log", "below"))
        files.create(join(root, "log", "1"), b"12")
        files.create(join(root, "log", "below", "2"), b"3")
        files.create(join(root, "log-of-another"), b"4")
        entries = {
            status.path.rpartition("/")[2]: (status.size, status.is_directory)
            for status in files.list_directory(join(root, "log"))
        }
        assert entries == {"1": (2, False), "below": (0, True)}
        if self.has_directories:
            with pytest.raises(FileNotFoundError):
                files.list_directory(join(root, "missing"))
        else:
            assert files.list_directory(join(root, "missing")) == []

    def test_missing_file_raises_file_not_found(self, files: FileSystem, root: str) -> None:
        path = join(root, "missing")
        for ask in (files.read, files.open_input, files.size):
            with pytest.raises(FileNotFoundError):
                ask(path)
        if self.misses_what_is_deleted:
            with pytest.raises(FileNotFoundError):
                files.delete(path)
        else:
            files.delete(path)
        assert not files.exists(path)
        assert not files.is_directory(path)
        assert list(files.list_files(path)) == []
        files.delete_directory(path)
        files.delete_directory(path, recursive=True)

    def test_size_of_a_directory_is_refused(self, files: FileSystem, root: str) -> None:
        files.create(join(root, "inside", "file") if not self.has_directories else join(root, "file"), b"1")
        with pytest.raises(IsADirectoryError):
            files.size(root)

    def test_size_is_never_cached(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        files.create(path, b"123")
        assert files.size(path) == 3
        files.replace(path, b"12345")
        assert files.size(path) == 5
        files.delete(path)
        with pytest.raises(FileNotFoundError):
            files.size(path)

    def test_changes_after_a_listing_are_visible(
        self, files: FileSystem, elsewhere: FileSystem, root: str
    ) -> None:
        for name in ("gone", "other"):
            files.create(join(root, name), b"old")
        assert self.names(files, root) == ["gone", "other"]
        elsewhere.delete(join(root, "gone"))
        elsewhere.replace(join(root, "other"), b"replaced")
        output = elsewhere.open_output(join(root, "new"))
        output.write(b"new")
        output.close()
        for name, data in (("other", b"replaced"), ("new", b"new")):
            with files.open_input(join(root, name)) as stream:
                assert stream.read() == data
            assert files.exists(join(root, name))
            assert files.size(join(root, name)) == len(data)
            assert files.read(join(root, name)) == data
        assert not files.exists(join(root, "gone"))
        with pytest.raises(FileNotFoundError), files.open_input(join(root, "gone")) as stream:
            stream.read()
        assert self.names(files, root) == ["new", "other"]

    # Files that are written bit by bit

    def test_open_output_publishes_the_file_on_close(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        out = files.open_output(path)
        out.write(b"01234")
        out.write(bytearray(b"56"))
        out.write_parts([b"7", b"", b"89"])
        out.write(b"")
        out.close()
        assert files.read(path) == b"0123456789"
        assert [status.size for status in files.list_files(root)] == [10]

    def test_write_parts_keeps_their_order(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        parts = [n.to_bytes(2, "big") for n in range(5000)]
        out = files.open_output(path)
        out.write_parts(parts)
        out.write_parts([b"x" * 100_000, b"y"])
        for part in parts[:100]:
            out.write(part)
        out.close()
        assert files.read(path) == b"".join(parts) + b"x" * 100_000 + b"y" + b"".join(parts[:100])

    def test_open_output_creates_an_empty_file(self, files: FileSystem, root: str) -> None:
        files.open_output(join(root, "file")).close()
        assert files.size(join(root, "file")) == 0
        assert self.names(files, root) == ["file"]

    def test_open_output_copies_mutable_buffers(self, files: FileSystem, root: str) -> None:
        buffer = bytearray(b"before")
        out = files.open_output(join(root, "file"))
        out.write(buffer)
        assert buffer == b"before"
        buffer[:] = b"after!"
        out.close()
        assert files.read(join(root, "file")) == b"before"

    @pytest.mark.parametrize("size", [0, 5, 300_000])
    def test_abandon_removes_the_file(self, files: FileSystem, root: str, size: int) -> None:
        out = files.open_output(join(root, "file"))
        out.write(bytes(size))
        out.abandon()
        out.abandon()
        assert self.names(files, root) == []
        # Its name is free again.
        files.create(join(root, "file"), b"1")
        assert files.read(join(root, "file")) == b"1"

    def test_open_output_refuses_an_existing_file(self, files: FileSystem, root: str) -> None:
        if not self.opens_exclusively:
            pytest.skip("this file system does not promise it")
        path = join(root, "file")
        files.create(path, b"first")
        with pytest.raises(FileExistsError):
            files.open_output(path).close()
        assert files.read(path) == b"first"

    # Directories

    def test_make_directory_makes_parents_and_recursive_delete_removes_all(
        self, files: FileSystem, root: str
    ) -> None:
        inner = join(root, "a", "b")
        files.make_directory(inner)
        files.make_directory(inner)
        if self.has_directories:
            assert files.is_directory(inner)
        files.create(join(inner, "file"), b"1")
        files.create(join(root, "top"), b"22")
        assert files.is_directory(inner)
        assert files.is_directory(parent_of(inner))
        assert files.exists(inner)
        assert not files.is_directory(join(inner, "file"))
        assert self.names(files, root) == ["a/b/file", "top"]
        assert sorted(status.size for status in files.list_files(root)) == [1, 2]
        files.delete_directory(join(root, "a"), recursive=True)
        assert self.names(files, root) == ["top"]
        assert not files.exists(inner)
        files.delete(join(root, "top"))
        assert self.names(files, root) == []

    def test_delete_directory_keeps_a_non_empty_directory(self, files: FileSystem, root: str) -> None:
        inner = join(root, "inner")
        files.make_directory(inner)
        files.create(join(inner, "file"), b"1")
        if self.has_directories:
            with pytest.raises(OSError):  # noqa: PT011 - the message differs by system
                files.delete_directory(inner)
        else:
            files.delete_directory(inner)
        assert files.read(join(inner, "file")) == b"1"
        files.delete(join(inner, "file"))
        files.delete_directory(inner)
        assert not files.exists(inner)

    def test_delete_directory_keeps_a_directory_with_the_same_prefix(
        self, files: FileSystem, root: str
    ) -> None:
        for name in ("chk-1", "chk-10"):
            files.make_directory(join(root, name))
            files.create(join(root, name, "file"), b"1")
        files.delete_directory(join(root, "chk-1"), recursive=True)
        assert self.names(files, root) == ["chk-10/file"]

    def test_file_names_are_literal(self, files: FileSystem, root: str) -> None:
        names = ["a b", "ä€", "50%25", "#x", "a+b", "_metadata", ".hidden"]
        for name in names:
            files.create(join(root, name), name.encode())
        assert self.names(files, root) == sorted(names)
        for name in names:
            assert files.read(join(root, name)) == name.encode()

    def test_url_has_scheme_and_path(self, files: FileSystem, root: str) -> None:
        assert files.url(root).startswith(f"{files.scheme}:")
        assert files.url(root).endswith(root)
