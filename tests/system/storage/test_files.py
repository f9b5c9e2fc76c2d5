"""The contract of files, and the machines of streams and versions, on real services as queries open them."""

from __future__ import annotations

import threading
import time

import pytest

from spark_statestore.files import FileSystem, join, open_file_system, urls
from spark_statestore.testing import FileSystemTests
from tests.support.machines.streams import run_stream_machine_at
from tests.support.machines.versions import run_version_machine_at
from tests.support.s3 import S3_WARNINGS
from tests.support.services import Service

pytestmark = [
    pytest.mark.storage,
    *S3_WARNINGS,
]


class TestFiles(FileSystemTests):
    examples = 5

    @pytest.fixture(autouse=True)
    def kind(self, service: Service) -> None:
        """Set what the contracts expect of the service.

        Only HDFS has directories, and MinIO deletes what is missing.
        """
        self.has_directories = service.name == "hdfs"
        self.opens_exclusively = not self.has_directories
        self.misses_what_is_deleted = service.name == "azurite"

    @pytest.fixture
    def files(self, container: str) -> FileSystem:
        return open_file_system(container + "/state")[0]

    @pytest.fixture
    def elsewhere(self, container: str, monkeypatch: pytest.MonkeyPatch) -> FileSystem:
        monkeypatch.setattr(urls, "_opened", {})
        return open_file_system(container + "/state")[0]

    @pytest.fixture
    def directory(self, container: str) -> str:
        return open_file_system(container + "/state")[1]

    @pytest.mark.parametrize("replaces", [False, True], ids=["create", "replace"])
    def test_file_appears_whole(self, files: FileSystem, root: str, replaces: bool) -> None:
        path, old, new = join(root, "file"), b"", bytes(20_000_000)
        if replaces:
            files.create(path, old)
        writer = threading.Thread(target=files.replace if replaces else files.create, args=(path, new))
        sizes = set()
        writer.start()
        while writer.is_alive():
            try:
                sizes.add(files.size(path))
            except FileNotFoundError:
                sizes.add(None)
        writer.join()
        assert files.size(path) == len(new)
        assert sizes <= {len(new), len(old) if replaces else None}
        assert self.names(files, root) == ["file"]

    def test_url_opens_the_same_file(self, files: FileSystem, root: str) -> None:
        path = join(root, "file")
        files.create(path, b"1")
        again, same = open_file_system(files.url(path))
        assert again.read(same) == b"1"

    def test_listings_have_the_times_of_files(self, files: FileSystem, root: str) -> None:
        files.create(join(root, "file"), b"1")
        for listed in (list(files.list_files(root)), files.list_directory(root)):
            (status,) = listed
            assert status.modified is not None
            assert abs(status.modified - time.time()) < 300


def test_stream_machine(container: str) -> None:
    run_stream_machine_at(f"{container}/machines")


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_version_store_machine(container: str, with_ids: bool) -> None:
    run_version_machine_at(container, with_ids=with_ids)
