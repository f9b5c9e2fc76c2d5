"""A store on S3, served by moto: its contracts, its requests, its errors."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import pytest

from spark_statestore.errors import CheckpointIOError, CheckpointNotFoundError, CorruptCheckpointError
from spark_statestore.files import FileSystem, open_file_system, urls
from spark_statestore.files.retry import RetryingFileSystem
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName
from spark_statestore.store.cleanup import discard_versions
from spark_statestore.testing import FileSystemTests
from tests.support.contracts.snapshots import SnapshotTests
from tests.support.contracts.storages_by_kind import FsCheckpointStorageTests
from tests.support.contracts.streams_by_kind import FsCheckpointStreamTests
from tests.support.machines.streams import run_stream_machine_at
from tests.support.machines.versions import run_version_machine_at
from tests.support.s3 import S3_WARNINGS, delete_object, list_objects, new_bucket, s3_service
from tests.support.s3_faults import FaultyS3, faulty_s3
from tests.unit.store.stores import attempt_id, commit, open_store, rows_of

pytest.importorskip("moto.server")

pytestmark = [
    pytest.mark.slow,
    *S3_WARNINGS,
]

LARGE = {b"large": b"x" * 2000}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_service() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    return new_bucket(endpoint, monkeypatch)


@pytest.fixture
def requests(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    """Yield a proxy that records the requests to the service, which is the one that is used."""
    with faulty_s3(endpoint) as proxy:
        monkeypatch.setattr(urls, "_opened", {})
        yield proxy


@pytest.fixture
def recorded(requests: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a bucket whose requests are recorded."""
    return new_bucket(requests.url, monkeypatch)


def methods(requests: FaultyS3) -> list[str]:
    """Return the methods of the requests since `FaultyS3.inject`."""
    return [method for method, _, _ in requests.calls]


class S3:
    """Files of a bucket, which has no directories."""

    has_directories = False
    examples = 5

    @pytest.fixture
    def files(self, bucket: str) -> FileSystem:
        return driver_of(bucket)

    @pytest.fixture
    def elsewhere(self, bucket: str, monkeypatch: pytest.MonkeyPatch) -> FileSystem:
        monkeypatch.setattr(urls, "_opened", {})
        return driver_of(bucket)

    @pytest.fixture
    def directory(self, bucket: str) -> str:
        return f"{bucket}/state"


def driver_of(bucket: str) -> FileSystem:
    """Return the file system of a bucket, without retries."""
    files, _ = open_file_system(f"s3://{bucket}")
    assert isinstance(files, RetryingFileSystem)
    return files.wrapped


class TestS3Files(S3, FileSystemTests):
    misses_what_is_deleted = False


class TestS3Streams(S3, FsCheckpointStreamTests):
    pass


class TestS3Storage(S3, FsCheckpointStorageTests):
    pass


class TestS3Snapshots(S3, SnapshotTests):
    pass


def test_stream_machine_on_s3(bucket: str) -> None:
    run_stream_machine_at(f"s3://{bucket}/machines")


# In CI v1 is on Azurite and HDFS, see tests/system/storage.
@pytest.mark.parametrize(
    "with_ids", [pytest.param(False, id="v1", marks=pytest.mark.soak), pytest.param(True, id="v2")]
)
def test_version_store_machine_on_s3(bucket: str, with_ids: bool) -> None:
    run_version_machine_at(f"s3://{bucket}", with_ids=with_ids)


def keys(bucket: str) -> list[str]:
    directory = f"{bucket}/state/0/3"
    return sorted(path.removeprefix(f"{directory}/") for path in list_objects(directory))


def test_small_commit_is_one_request_without_listing(recorded: str, requests: FaultyS3) -> None:
    # The first file of a process tests exclusive creation.
    commit(open_store(f"s3://{recorded}/state/0/9"), CheckpointName(1), {b"a": b"0"})
    store = open_store(f"s3://{recorded}/state/0/3")
    handle = None
    for version in (1, 2, 3):
        requests.inject()
        handle = commit(store, CheckpointName(version), {b"a": b"%d" % version}, parent=handle).handle
        assert methods(requests) == ["PUT"]
    fresh = open_store(f"s3://{recorded}/state/0/3")
    requests.inject()
    rows_of(fresh, CheckpointName(3))
    assert not any("list-type" in path for _, path, _ in requests.calls)


def test_batch_is_one_put_without_listing_in_steady_state(recorded: str, requests: FaultyS3) -> None:
    store, own_id = open_store(f"s3://{recorded}/state/0/3", StorageOptions()), attempt_id()
    handle = None
    for version in range(1, 31):
        if version == 5:
            # The first cleanup has scanned the directory.
            requests.inject()
        whole = version % 10 == 1
        rows = {b"%d" % version: bytes(200_000)}
        handle = commit(
            store, CheckpointName(version), rows, parent=None if whole else handle, by=own_id
        ).handle
        discard_versions(store, CheckpointName(version), own_id, version - 2, 0)
    counts = collections.Counter(methods(requests))
    assert counts.pop("PUT") == 26
    # Objects of versions 1 to 20; the newest chain begins with version 21.
    assert counts.pop("DELETE") == 20
    assert set(counts) == {"GET"}
    assert counts["GET"] <= 3 * 26
    assert not any("list-type" in path for _, path, _ in requests.calls)


def test_missing_version_error_has_the_url(bucket: str) -> None:
    store = open_store(f"s3a://{bucket}/state/0/3")
    with pytest.raises(CheckpointNotFoundError, match=f"s3://{bucket}/state/0/3/chk-1"):
        store.load(CheckpointName(1))
    commit(store, CheckpointName(1), LARGE)
    (shared,) = [key for key in keys(bucket) if key.startswith("shared")]
    delete_object(f"{bucket}/state/0/3/{shared}")
    with pytest.raises(CorruptCheckpointError, match=shared):
        rows_of(store, CheckpointName(1))


def test_missing_bucket_error_has_the_url(bucket: str) -> None:
    store = open_store("s3://no-such-bucket-anywhere/state")
    with pytest.raises(CheckpointIOError, match="s3://no-such-bucket-anywhere/state/chk-1"):
        commit(store, CheckpointName(1), {b"a": b"1"})
    with pytest.raises(CheckpointIOError, match="s3://no-such-bucket-anywhere/state"):
        commit(store, CheckpointName(1), LARGE)
