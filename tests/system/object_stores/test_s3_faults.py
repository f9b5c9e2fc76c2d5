"""Commits on an S3 service that is overloaded, breaks connections and loses responses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from spark_statestore.backend.protocol import Kind
from spark_statestore.errors import CheckpointIOError
from spark_statestore.files import retry as retrying
from spark_statestore.files import urls
from spark_statestore.files.request_context import take_retries
from spark_statestore.options import StorageOptions
from spark_statestore.storage import CheckpointName, FsCheckpointStorage
from spark_statestore.storage.streams import CheckpointedStateScope
from spark_statestore.store.cleanup import discard_versions
from tests.support.s3 import S3_WARNINGS, list_objects, new_bucket, s3_service
from tests.support.s3_faults import KINDS, FaultyS3, faulty_s3
from tests.unit.backend.backends import Backend, store
from tests.unit.backend.backends import commit as put
from tests.unit.store.stores import attempt_id, commit, message, open_store, rows_of

pytest.importorskip("moto.server")

pytestmark = [
    pytest.mark.slow,
    *S3_WARNINGS,
]

# Two of them within the timeout.
SOME = ["lost"]
SOME += [pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS if kind not in SOME]

INLINE = StorageOptions(compression=None)
ONE, TWO, THREE = CheckpointName(1), CheckpointName(2), CheckpointName(3)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultyS3]:
    with s3_service() as service, faulty_s3(service) as before_it:
        yield before_it


@pytest.fixture
def bucket(proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(retrying, "_FIRST_SECONDS", 0.002)
    proxy.inject()
    name = new_bucket(proxy.url, monkeypatch)
    # The first file in a bucket tests exclusive creation.
    commit(open_store(f"s3://{name}/state/0/0", INLINE), ONE, {b"a": b"0"})
    take_retries()
    return name


@dataclass
class Place:
    """Create a new store in the bucket."""

    bucket: str

    def __post_init__(self) -> None:
        self.path = f"{self.bucket}/{next(_numbers)}/state/0/3"
        self.url = f"s3://{self.path}"

    def names(self) -> list[str]:
        return sorted(path.removeprefix(f"{self.path}/") for path in list_objects(self.path))


def commit_load_and_clean_up(place: Place) -> None:
    versions, by = open_store(place.url, INLINE), attempt_id()
    first = commit(versions, ONE, {b"a": b"1", b"b": b"2"}, by=by)
    second = commit(versions, TWO, {b"c": b"3"}, [b"a"], parent=first.handle, by=by)
    assert rows_of(open_store(place.url, INLINE), TWO) == {b"b": b"2", b"c": b"3"}
    third = commit(versions, THREE, {b"a": b"3"}, by=by)
    assert [result.objects_written for result in (first, second, third)] == [1, 1, 1]
    discard_versions(versions, THREE, by, 3, 0)


@pytest.mark.parametrize("kind", SOME)
def test_fault_at_any_request_is_retried_and_counted(bucket: str, proxy: FaultyS3, kind: str) -> None:
    def run(first: int, count: int) -> list[tuple[str, str, str]]:
        place = Place(bucket)
        proxy.inject(dict.fromkeys(range(first, first + count), kind))
        take_retries()
        commit_load_and_clean_up(place)
        calls = proxy.calls
        proxy.inject()
        # A second attempt at a version would appear as a copy beside it.
        assert [name for name in place.names() if "chk" in name] == ["chk-3/_metadata"]
        assert rows_of(open_store(place.url, INLINE), THREE) == {b"a": b"3"}
        met = [met for _, _, met in calls if met]
        assert (len(met), take_retries()) == (count, count), calls
        return calls

    requests = len(run(0, 0))
    assert requests >= 6
    for number in range(1, requests + 1):
        run(number, 1)
    # Several in a row, as with overloaded storage.
    run(2, 3)


def test_lost_response_after_a_concurrent_commit_of_the_same_version(bucket: str, proxy: FaultyS3) -> None:
    place, own_id, other_id = Place(bucket), attempt_id(), attempt_id()
    commit(open_store(place.url, INLINE), ONE, {b"a": b"other"}, by=other_id)
    proxy.inject(dict.fromkeys((1, 3, 5), "lost"))
    commit(open_store(place.url, INLINE), ONE, {b"a": b"mine"}, by=own_id)
    proxy.inject()
    # As without faults: the last attempt counts, and both are kept under their attempt ids.
    assert place.names() == sorted(
        ["chk-1/_metadata", f"chk-1/_metadata.{own_id}", f"chk-1/_metadata.{other_id}"]
    )
    assert rows_of(open_store(place.url, INLINE), ONE) == {b"a": b"mine"}


def test_overloaded_storage_fails_the_commit_and_the_next_attempt_succeeds(
    bucket: str, proxy: FaultyS3
) -> None:
    place = Place(bucket)
    versions = open_store(place.url, StorageOptions(compression=None, storage_retries=3))
    proxy.inject_from(1, "slow-down")
    with pytest.raises(CheckpointIOError, match=r"chk-1/_metadata: .*reduce your.*tried 4 times within"):
        commit(versions, ONE, {b"a": b"1"})
    assert len(proxy.calls) == 4
    assert take_retries() == 3
    proxy.inject()
    assert place.names() == []
    commit(versions, ONE, {b"a": b"2"})
    assert place.names() == ["chk-1/_metadata"]
    assert rows_of(versions, ONE) == {b"a": b"2"}


def test_backend_reports_storage_retries(bucket: str, proxy: FaultyS3) -> None:
    backend = Backend()
    try:
        with backend.client() as client:
            at = store("/", "one") | {"root": Place(bucket).url}
            for version, faults in enumerate(({}, {1: "slow-down", 2: "internal-error"}, {}), 1):
                proxy.inject(faults)
                request = put("/", version, attempt_id(), store=at)
                answer = client.ask(request, (Kind.DATA, message({b"a": b"1"}), 0))
                assert answer.error is None
                assert answer.control.get("storageRetries", 0) == len(faults)
    finally:
        assert backend.stop() == 0


def test_successful_request_is_not_repeated(bucket: str, proxy: FaultyS3) -> None:
    place = Place(bucket)
    proxy.inject()
    with pytest.raises(CheckpointIOError, match="chk-1"):
        commit(open_store("s3://no-such-bucket-anywhere/state/0/3", INLINE), ONE, {b"a": b"1"})
    assert (len(proxy.calls), take_retries()) == (1, 0)
    with pytest.raises(FileNotFoundError):
        open_store(place.url, INLINE).load(ONE)
    assert take_retries() == 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_multipart_upload_survives_a_fault_at_any_request(bucket: str, proxy: FaultyS3, kind: str) -> None:
    # More than one part.
    state = os.urandom(1 << 20) * 11

    def run(faults: dict[int, str]) -> int:
        files, path = urls.open_file_system(f"{Place(bucket).url}/large")
        storage = FsCheckpointStorage(files, path, file_state_threshold=0)
        location = storage.initialize_location_for_checkpoint(1)
        stream = location.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED)
        proxy.inject(faults)
        with stream:
            # The driver uploads the data of one call as one part.
            for start in range(0, len(state), 1 << 20):
                stream.write(state[start : start + (1 << 20)])
            handle = stream.close_and_get_handle()
        call_count = len(proxy.calls)
        proxy.inject()
        with handle.open_input_stream() as source:
            assert source.read() == state
        return call_count

    requests = run({})
    assert requests >= 4
    for number in range(1, requests + 1):
        run({number: kind})
