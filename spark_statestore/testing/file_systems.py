"""What holds for every file system."""

from __future__ import annotations

import threading

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spark_statestore.checkpoint.files import FileSystem, join, parent_of

__all__ = ["FileSystemTests"]


class FileSystemTests:
    """The contract of `FileSystem`; subclasses override the fixtures ``files`` and ``directory``.

    Attributes
    ----------
    creates_exclusively
        Whether of several that create a file at the same moment only one succeeds.
    has_directories
        Whether a directory is there before a file is in it, and stays while one is.
    opens_exclusively
        Whether `FileSystem.open_output` sees that a file is there already.
    misses_what_is_deleted
        Whether deleting a file that is not there is an error.
    examples
        How many examples the tests with generated input try.
    """

    creates_exclusively = True
    has_directories = True
    opens_exclusively = True
    misses_what_is_deleted = True
    examples = 20

    @pytest.fixture
    def files(self) -> FileSystem:
        """The file system."""
        raise NotImplementedError

    @pytest.fixture
    def elsewhere(self, files: FileSystem) -> FileSystem:
        """The same files as another process has them; by default the same object."""
        return files

    @pytest.fixture
    def directory(self) -> str:
        """Path of a directory of its own for this test; it need not be there."""
        raise NotImplementedError

    @pytest.fixture
    def place(self, files: FileSystem, directory: str) -> str:
        """The directory, made."""
        files.make_directory(directory)
        return directory

    @staticmethod
    def names(files: FileSystem, directory: str) -> list[str]:
        """Files below a directory, by their paths from there."""
        start = directory.rstrip("/") + "/"
        return sorted(status.path.removeprefix(start) for status in files.list_files(directory))

    # Whole files

    def test_a_created_file_is_there_whole_and_is_never_replaced(self, files: FileSystem, place: str) -> None:
        path = join(place, "file")
        files.create(path, memoryview(b"0123456789"))
        with pytest.raises(FileExistsError):
            files.create(path, b"other")
        assert files.read(path) == b"0123456789"
        assert files.exists(path)
        assert self.names(files, place) == ["file"]

    def test_a_file_may_be_of_any_size(self, files: FileSystem, place: str) -> None:
        for size in (0, 1, 65_537, 3_000_000):
            data = bytes(range(256)) * (size // 256 + 1)
            path = join(place, str(size))
            files.create(path, data[:size])
            assert files.read(path) == data[:size]
            assert files.size(path) == size

    def test_any_kind_of_buffer_can_be_written(self, files: FileSystem, place: str) -> None:
        for number, kind in enumerate((bytes, bytearray, memoryview)):
            files.create(join(place, f"created-{number}"), kind(b"state"))
            files.replace(join(place, f"replaced-{number}"), kind(b"state"))
            out = files.open_output(join(place, f"written-{number}"))
            out.write(kind(b"state"))
            out.close()
        assert len(self.names(files, place)) == 9
        assert {files.read(join(place, name)) for name in self.names(files, place)} == {b"state"}

    def test_a_replaced_file_shows_the_new_bytes(self, files: FileSystem, place: str) -> None:
        path = join(place, "file")
        for data in (b"one", b"two and more", b""):
            files.replace(path, data)
            assert files.read(path) == data
            assert files.size(path) == len(data)
        assert self.names(files, place) == ["file"]

    def test_a_deleted_file_is_gone_and_its_directory_is_not(self, files: FileSystem, place: str) -> None:
        path = join(place, "file")
        files.create(path, b"1")
        files.delete(path)
        assert not files.exists(path)
        with pytest.raises(FileNotFoundError):
            files.read(path)
        if self.has_directories:
            assert files.is_directory(place)

    def test_only_one_of_many_creates_a_file(self, files: FileSystem, place: str) -> None:
        if not self.creates_exclusively:
            pytest.skip("this file system does not promise it")
        won: list[bytes] = []
        start = threading.Barrier(8)

        def create(data: bytes) -> None:
            start.wait()
            try:
                files.create(join(place, "file"), data)
            except FileExistsError:
                return
            won.append(data)

        threads = [threading.Thread(target=create, args=(bytes([i]) * 1000,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [files.read(join(place, "file"))] == won
        assert self.names(files, place) == ["file"]

    # Reading

    def test_any_part_of_a_file_can_be_read(self, files: FileSystem, place: str) -> None:
        path, data = join(place, "file"), bytes(range(100))
        files.create(path, data)

        @settings(max_examples=self.examples, deadline=None, database=None)
        @given(st.integers(0, 100), st.one_of(st.none(), st.integers(1, 120)))
        def part(start: int, size: int | None) -> None:
            end = None if size is None else start + size
            if start < len(data):
                assert files.read(path, start, size) == data[start:end]

        part()

    def test_a_file_that_is_open_can_be_read_from_anywhere(self, files: FileSystem, place: str) -> None:
        path = join(place, "file")
        files.create(path, b"0123456789")
        with files.open_input(path) as one, files.open_input(path) as other:
            assert one.read(2) == b"01"
            assert one.seek(7) == 7
            assert one.tell() == 7
            assert one.read() == b"789"
            assert one.read() == b""
            assert other.read(3) == b"012"

    def test_a_missing_file_is_a_file_not_found(self, files: FileSystem, place: str) -> None:
        path = join(place, "missing")
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

    def test_the_size_of_a_directory_is_not_asked_for(self, files: FileSystem, place: str) -> None:
        files.create(join(place, "inside", "file") if not self.has_directories else join(place, "file"), b"1")
        with pytest.raises(IsADirectoryError):
            files.size(place)

    def test_the_size_is_that_of_now(self, files: FileSystem, place: str) -> None:
        path = join(place, "file")
        files.create(path, b"123")
        assert files.size(path) == 3
        files.replace(path, b"12345")
        assert files.size(path) == 5
        files.delete(path)
        with pytest.raises(FileNotFoundError):
            files.size(path)

    def test_what_was_changed_since_a_listing_is_seen(
        self, files: FileSystem, elsewhere: FileSystem, place: str
    ) -> None:
        for name in ("gone", "other"):
            files.create(join(place, name), b"old")
        assert self.names(files, place) == ["gone", "other"]
        elsewhere.delete(join(place, "gone"))
        elsewhere.replace(join(place, "other"), b"replaced")
        output = elsewhere.open_output(join(place, "new"))
        output.write(b"new")
        output.close()
        for name, data in (("other", b"replaced"), ("new", b"new")):
            with files.open_input(join(place, name)) as stream:
                assert stream.read() == data
            assert files.exists(join(place, name))
            assert files.size(join(place, name)) == len(data)
            assert files.read(join(place, name)) == data
        assert not files.exists(join(place, "gone"))
        with pytest.raises(FileNotFoundError), files.open_input(join(place, "gone")) as stream:
            stream.read()
        assert self.names(files, place) == ["new", "other"]

    # Files that are written bit by bit

    def test_a_written_file_is_there_once_it_is_closed(self, files: FileSystem, place: str) -> None:
        path = join(place, "file")
        out = files.open_output(path)
        out.write(b"01234")
        out.flush()
        out.sync()
        out.write(bytearray(b"56"))
        out.write_parts([b"7", b"", b"89"])
        out.write(b"")
        out.close()
        assert files.read(path) == b"0123456789"
        assert [status.size for status in files.list_files(place)] == [10]

    def test_many_small_parts_come_in_their_order(self, files: FileSystem, place: str) -> None:
        path = join(place, "file")
        parts = [n.to_bytes(2, "big") for n in range(5000)]
        out = files.open_output(path)
        out.write_parts(parts)
        out.write_parts([b"x" * 100_000, b"y"])
        for part in parts[:100]:
            out.write(part)
        out.close()
        assert files.read(path) == b"".join(parts) + b"x" * 100_000 + b"y" + b"".join(parts[:100])

    def test_a_file_of_nothing_is_a_file(self, files: FileSystem, place: str) -> None:
        files.open_output(join(place, "file")).close()
        assert files.size(join(place, "file")) == 0
        assert self.names(files, place) == ["file"]

    def test_what_was_written_does_not_follow_the_callers_buffer(self, files: FileSystem, place: str) -> None:
        buffer = bytearray(b"before")
        out = files.open_output(join(place, "file"))
        out.write(buffer)
        assert buffer == b"before"
        buffer[:] = b"after!"
        out.close()
        assert files.read(join(place, "file")) == b"before"

    @pytest.mark.parametrize("size", [0, 5, 300_000])
    def test_an_abandoned_file_is_gone(self, files: FileSystem, place: str, size: int) -> None:
        out = files.open_output(join(place, "file"))
        out.write(bytes(size))
        out.abandon()
        out.abandon()
        assert self.names(files, place) == []
        # Its name is free again.
        files.create(join(place, "file"), b"1")
        assert files.read(join(place, "file")) == b"1"

    def test_a_file_that_is_there_is_not_opened_for_writing(self, files: FileSystem, place: str) -> None:
        if not self.opens_exclusively:
            pytest.skip("this file system does not promise it")
        path = join(place, "file")
        files.create(path, b"first")
        with pytest.raises(FileExistsError):
            files.open_output(path).close()
        assert files.read(path) == b"first"

    # Directories

    def test_directories_come_with_their_parents_and_go_when_asked(
        self, files: FileSystem, place: str
    ) -> None:
        inner = join(place, "a", "b")
        files.make_directory(inner)
        files.make_directory(inner)
        if self.has_directories:
            assert files.is_directory(inner)
        files.create(join(inner, "file"), b"1")
        files.create(join(place, "top"), b"22")
        assert files.is_directory(inner)
        assert files.is_directory(parent_of(inner))
        assert files.exists(inner)
        assert not files.is_directory(join(inner, "file"))
        assert self.names(files, place) == ["a/b/file", "top"]
        assert sorted(status.size for status in files.list_files(place)) == [1, 2]
        files.delete_directory(join(place, "a"), recursive=True)
        assert self.names(files, place) == ["top"]
        assert not files.exists(inner)
        files.delete(join(place, "top"))
        assert self.names(files, place) == []

    def test_a_directory_that_is_not_empty_stays_unless_all_of_it_goes(
        self, files: FileSystem, place: str
    ) -> None:
        inner = join(place, "inner")
        files.make_directory(inner)
        files.create(join(inner, "file"), b"1")
        if self.has_directories:
            with pytest.raises(OSError):  # noqa: PT011 - every system has words of its own
                files.delete_directory(inner)
        else:
            files.delete_directory(inner)
        assert files.read(join(inner, "file")) == b"1"
        files.delete(join(inner, "file"))
        files.delete_directory(inner)
        assert not files.exists(inner)

    def test_a_directory_that_must_be_new_is_refused_if_it_is_there(
        self, files: FileSystem, place: str
    ) -> None:
        inner = join(place, "inner")
        files.make_directory(inner, exist_ok=False)
        files.create(join(inner, "file"), b"1")
        if self.has_directories:
            with pytest.raises(FileExistsError):
                files.make_directory(inner, exist_ok=False)
        files.make_directory(inner)
        assert self.names(files, place) == ["inner/file"]

    def test_a_directory_whose_name_starts_alike_is_another_one(self, files: FileSystem, place: str) -> None:
        for name in ("chk-1", "chk-10"):
            files.make_directory(join(place, name))
            files.create(join(place, name, "file"), b"1")
        files.delete_directory(join(place, "chk-1"), recursive=True)
        assert self.names(files, place) == ["chk-10/file"]

    def test_names_are_taken_as_they_are(self, files: FileSystem, place: str) -> None:
        names = ["a b", "ä€", "50%25", "#x", "a+b", "_metadata", ".hidden"]
        for name in names:
            files.create(join(place, name), name.encode())
        assert self.names(files, place) == sorted(names)
        for name in names:
            assert files.read(join(place, name)) == name.encode()

    def test_a_url_is_scheme_and_path(self, files: FileSystem, place: str) -> None:
        assert files.url(place).startswith(f"{files.scheme}:")
        assert files.url(place).endswith(place)
