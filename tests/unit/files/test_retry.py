"""Tests of retries: transient failures are retried, and no call takes effect twice."""

from __future__ import annotations

import errno
import http.client
import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from spark_statestore.files import FileSystem, MemoryFileSystem
from spark_statestore.files import retry as retrying
from spark_statestore.files.request_context import RequestContext, take_retries
from spark_statestore.files.retry import RetryingFileSystem
from spark_statestore.files.transient import is_transient
from tests.unit.files.test_request_context import within


class AnswerError(Exception):
    """As drivers of other stores than S3 tell what was answered."""

    def __init__(self, status: Any, name: str = "status") -> None:
        super().__init__(f"answer {status}")
        setattr(self, name, status)


def caused(error: BaseException, by: BaseException) -> BaseException:
    error.__cause__ = by
    return error


def s3(code: str, status: int) -> BaseException:
    botocore = pytest.importorskip("botocore.exceptions")
    answer = {
        "Error": {"Code": code, "Message": "refused"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return caused(OSError(errno.EBUSY, "refused"), botocore.ClientError(answer, "PutObject"))


def webhdfs(status: int) -> BaseException:
    requests = pytest.importorskip("requests")
    answer = requests.Response()
    answer.status_code = status
    return requests.HTTPError("refused", response=answer)


def unreachable() -> BaseException:
    return pytest.importorskip("botocore.exceptions").EndpointConnectionError(endpoint_url="http://x")


PASSING: dict[str, Callable[[], BaseException]] = {
    "reset": lambda: ConnectionResetError("reset"),
    "refused": lambda: ConnectionRefusedError(errno.ECONNREFUSED, "refused"),
    "no-answer": lambda: http.client.RemoteDisconnected("gone"),
    "broken-answer": lambda: http.client.IncompleteRead(b"half"),
    "time": lambda: TimeoutError("late"),
    "network": lambda: OSError(errno.ENETUNREACH, "unreachable"),
    "wrapped": lambda: caused(OSError("driver"), ConnectionResetError("reset")),
    "s3-slow-down": lambda: s3("SlowDown", 503),
    "s3-internal": lambda: s3("InternalError", 500),
    "s3-number": lambda: s3("503", 503),
    "s3-conflict": lambda: s3("ConditionalRequestConflict", 409),
    "s3-unreachable": unreachable,
    "gcs-503": lambda: AnswerError(503, "code"),
    "azure-500": lambda: AnswerError(500, "status_code"),
    "webhdfs-503": lambda: webhdfs(503),
    "text-429": lambda: AnswerError("429", "code"),
}
LASTING: dict[str, Callable[[], BaseException]] = {
    "missing": lambda: FileNotFoundError("x"),
    "there": lambda: FileExistsError("x"),
    "there-after-a-reset": lambda: caused(FileExistsError("x"), ConnectionResetError("reset")),
    "denied": lambda: PermissionError("x"),
    "full": lambda: OSError(errno.ENOSPC, "full"),
    "input-output": lambda: OSError(errno.EIO, "broken disk"),
    "unknown": lambda: OSError("whatever"),
    "s3-denied": lambda: s3("AccessDenied", 403),
    "s3-precondition": lambda: s3("PreconditionFailed", 412),
    "s3-invalid": lambda: s3("InvalidRequest", 400),
    "webhdfs-400": lambda: webhdfs(400),
    "gcs-404": lambda: AnswerError(404, "code"),
    "a-fault-of-ours": lambda: ValueError("x"),
    "no-answer-at-all": lambda: AnswerError(True),
}


@pytest.mark.parametrize("name", [*PASSING, *LASTING])
def test_failures_that_pass_are_told_from_final_ones(name: str) -> None:
    assert is_transient((PASSING | LASTING)[name]()) is (name in PASSING)


class Flaky:
    """Files in memory, of which calls fail before or after they have had their effect, as the plan has it."""

    def __init__(self, *plan: tuple[str, str]) -> None:
        self.files = MemoryFileSystem()
        self.scheme, self.url = self.files.scheme, self.files.url
        self.plan = list(plan)
        self.calls = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.calls += 1
            moment, failure = self.plan.pop(0) if self.plan else ("", "")
            error = (PASSING | LASTING)[failure]() if failure else None
            if moment == "before":
                raise error
            result = getattr(self.files, name)(*arguments)
            if moment == "after":
                self.meanwhile()
                raise error
            return result

        return call


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the waits between retries, and record them; no other time passes.

    The module's clock alone is replaced: watchdogs of other tests' servers sleep as well.
    """
    waited: list[float] = []
    monkeypatch.setattr(retrying, "time", SimpleNamespace(monotonic=lambda: sum(waited), sleep=waited.append))
    take_retries()
    return waited


RESETS = [("before", "reset"), ("after", "s3-slow-down"), ("before", "time")]


def test_every_call_is_retried_until_it_succeeds(pauses: list[float]) -> None:
    for operate, expected in (
        (lambda f: f.create("/d/new", b"data"), {"/d/new": b"data", "/d/old": b"old"}),
        (lambda f: f.create_of_parts("/d/new", [b"da", b"ta"]), {"/d/new": b"data", "/d/old": b"old"}),
        (lambda f: f.replace("/d/old", b"data"), {"/d/old": b"data"}),
        (lambda f: f.delete("/d/old"), {}),
        (lambda f: f.read("/d/old"), {"/d/old": b"old"}),
        (lambda f: f.size("/d/old"), {"/d/old": b"old"}),
        (lambda f: f.exists("/d/old"), {"/d/old": b"old"}),
        (lambda f: f.is_directory("/d"), {"/d/old": b"old"}),
        (lambda f: f.list_directory("/d"), {"/d/old": b"old"}),
        (lambda f: list(f.list_files("/d")), {"/d/old": b"old"}),
    ):
        flaky = Flaky(*RESETS)
        flaky.files.create("/d/old", b"old")
        operate(RetryingFileSystem(flaky))
        # What a create finds is read, to tell whether it is its own.
        assert flaky.calls >= 4
        contents = {status.path: flaky.files.read(status.path) for status in flaky.files.list_files("/d")}
        assert contents == expected
    assert take_retries() == len(pauses) == 30
    assert take_retries() == 0


def test_final_answer_is_not_retried(pauses: list[float]) -> None:
    for name, error in LASTING.items():
        flaky = Flaky(("before", name))
        with pytest.raises(type(error())):
            RetryingFileSystem(flaky).read("/d/x")
        assert flaky.calls == 1
    files = RetryingFileSystem(MemoryFileSystem())
    files.create("/d/x", b"1")
    # Also with equal content: only a retry after a lost answer may accept the file as its own.
    with pytest.raises(FileExistsError):
        files.create("/d/x", b"1")
    files.delete("/d/x")
    with pytest.raises(FileNotFoundError):
        files.delete("/d/x")
    assert pauses == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_retried_create_raises_for_a_file_of_another_writer(moment: str) -> None:
    flaky = Flaky((moment, "reset"))
    flaky.meanwhile = lambda: flaky.files.replace("/d/x", b"another's")
    if moment == "before":
        flaky.meanwhile()
    with pytest.raises(FileExistsError):
        RetryingFileSystem(flaky).create("/d/x", b"mine")
    assert flaky.files.read("/d/x") == b"another's"


def test_backoff_is_exponential_with_equal_jitter(pauses: list[float]) -> None:
    for _ in range(50):
        flaky = Flaky(*[("before", "reset")] * 9)
        with pytest.raises(OSError, match="reset") as failed:
            RetryingFileSystem(flaky, retries=8).read("/d/x")
        assert f"reset (tried 9 times within {sum(pauses[-8:]):.1f} s)" in str(failed.value)
        assert flaky.calls == 9
    for number in range(8):
        most = min(10.0, 0.2 * 2**number)
        at = pauses[number::8]
        assert all(most / 2 <= pause <= most for pause in at)
        assert max(at) - min(at) > most / 4


class Torn(io.BytesIO):
    """Of which one read in two breaks, after it has moved on."""

    broken = False

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        Torn.broken = not Torn.broken
        if Torn.broken and data:
            raise ConnectionResetError("torn")
        return data


def test_open_input_continues_after_a_transient_failure(pauses: list[float]) -> None:
    class Breaking(MemoryFileSystem):
        def open_input(self, path: str) -> Any:
            return Torn(self.read(path))

    memory, data = Breaking(), bytes(range(256)) * 1000
    memory.create("/d/x", data)
    files = RetryingFileSystem(memory)
    with files.open_input("/d/x") as source:
        assert source.read(100) == data[:100]
        assert source.read(70_000) == data[100:70_100]
        assert b"".join(iter(lambda: source.read(9_999), b"")) == data[70_100:]
        assert source.read(1) == b""
    assert len(pauses) == take_retries() > 5
    with pytest.raises(FileNotFoundError):
        files.open_input("/d/y")


def test_zero_retries_make_one_call(pauses: list[float]) -> None:
    flaky = Flaky(("before", "time"))
    with pytest.raises(TimeoutError, match=r"^late$"):
        RetryingFileSystem(flaky, retries=0).read("/d/x")
    assert (flaky.calls, pauses, take_retries()) == (1, [], 0)


def test_cancelled_request_is_not_retried(pauses: list[float]) -> None:
    flaky = Flaky(("before", "reset"))
    with within(RequestContext(60.0, lambda: False)), pytest.raises(ConnectionAbortedError):
        RetryingFileSystem(flaky).read("/d/x")
    assert (flaky.calls, len(pauses), take_retries()) == (1, 1, 0)


def test_retrying_file_system_forwards_every_method() -> None:
    """A method that is not forwarded would use the base class's default.

    That has no syncs and no checks for links.
    """
    public = {name for name in vars(FileSystem) if not name.startswith("_")}
    assert {"has_link", "make_durable", "prepare"} <= public
    assert public - vars(RetryingFileSystem).keys() == set()
