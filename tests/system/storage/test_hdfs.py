"""Syncing of files on HDFS."""

from __future__ import annotations

import json
import urllib.request

import pytest

from spark_statestore.files import FileSystem, join, open_file_system
from spark_statestore.testing import FileSystemTests
from tests.spark.counting import wait_until
from tests.support.services import Service, hdfs
from tests.system.storage.conftest import NAMES

pytestmark = [
    pytest.mark.storage,
    pytest.mark.parametrize(
        "running_service", [name for name in NAMES if name == "hdfs"], indirect=True, scope="session"
    ),
]


class TestSyncedFiles(FileSystemTests):
    opens_exclusively = False
    misses_what_is_deleted = False
    examples = 5

    @pytest.fixture
    def files(self, container: str) -> FileSystem:
        return open_file_system(container, fsync=True)[0]

    @pytest.fixture
    def directory(self, container: str) -> str:
        return open_file_system(container, fsync=True)[1]


def test_each_file_is_synced(running_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another service than that of the fixture: its data node has synced no other file.
    with hdfs() as service:
        service.use(monkeypatch)
        files, root = open_file_system(service.new_container(), fsync=True)
        files.create(join(root, "created"), b"1")
        files.replace(join(root, "replaced"), b"1")
        out = files.open_output(join(root, "written"))
        out.write(b"1")
        out.close()
        # The figures are renewed every ten seconds.
        wait_until(lambda: synced(service) >= 3, 30)
        assert synced(service) == 3


def synced(service: Service) -> int:
    """Return how often the data node has synced a block; the name node's page has the figures of both."""
    query = f"{service.endpoint}/jmx?qry=Hadoop:service=DataNode,name=DataNodeActivity-*"
    with urllib.request.urlopen(query, timeout=30) as page:
        (bean,) = json.load(page)["beans"]
    return int(bean["FsyncCount"])
