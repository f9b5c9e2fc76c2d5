"""The path of a commit and of a load through the modules of the backend process.

Counted are calls of the thread that serves a request, between modules of `spark_statestore.backend` and
`spark_statestore.store`; the layers below them know of no request. A module is *entered* by a call from
another module of these, and *returned to* by a call that finds another one entered since its last call. Each
pair of calling and called function counts once, so that a loop over messages is one visit. Frames count as a
module that is entered, but reading and writing them is I/O, and no return.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from spark_statestore.backend.handlers import Requests
from spark_statestore.backend.protocol import FrameSocket, Kind
from tests.unit.backend import backends

_PATH = ("spark_statestore.backend.", "spark_statestore.store.")
_FRAMES = "spark_statestore.backend.protocol"

MOST_MODULES = 9
MOST_RETURNS = 4

Call = tuple[str, str, str, str]
"""Module and function of the caller, then those of the callee."""


class RequestPath(NamedTuple):
    """Modules that were entered, in order, and calls that returned to a module."""

    modules: list[str]
    returns: list[Call]


def path_of(calls: list[Call]) -> RequestPath:
    """Reduce calls to the modules entered and the returns to one of them."""
    modules: list[str] = []
    returns: list[Call] = []
    last = ""
    visited: set[Call] = set()
    for call in calls:
        module = call[2]
        if module not in modules:
            modules.append(module)
        elif module not in (last, _FRAMES) and call not in visited:
            returns.append(call)
        visited.add(call)
        if module != _FRAMES:
            last = module
    return RequestPath(modules, returns)


class TracedRequests(Requests):
    """Requests with the calls of the one that was served last."""

    def serve(self, request: dict[str, Any], connection: FrameSocket) -> None:
        self.calls: list[Call] = []
        sys.setprofile(self._trace)
        try:
            super().serve(request, connection)
        finally:
            sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> None:
        callee = frame.f_globals.get("__name__", "")
        if event != "call" or not callee.startswith(_PATH):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_globals.get("__name__", "").startswith(_PATH):
            caller = caller.f_back
        module, function = (caller.f_globals["__name__"], caller.f_code.co_name) if caller else ("", "")
        if module != callee:
            self.calls.append((module, function, callee, frame.f_code.co_name))


def serve(
    requests: TracedRequests, request: dict[str, Any], *frames: tuple[Kind, bytes, int]
) -> tuple[backends.Answer, RequestPath]:
    with backends.serving(requests) as client:
        answer = client.ask(request, *frames)
    assert answer.error is None
    return answer, path_of(requests.calls)


def check_path(path: RequestPath) -> None:
    assert len(path.modules) <= MOST_MODULES, path.modules
    assert len(path.returns) <= MOST_RETURNS, path.returns


def test_commit_and_load_requests_stay_within_few_modules(tmp_path: Path) -> None:
    requests = TracedRequests()
    first, _ = serve(requests, backends.commit(tmp_path, 1, "a" * 16), backends.data({b"first": b"value"}))
    request = backends.commit(tmp_path, 2, "b" * 16, hasParent=True, parentAttemptId="a" * 16)
    parent = (Kind.HANDLE, first.payloads(Kind.HANDLE)[0], 0)
    second, path = serve(requests, request, parent, backends.data({b"second": b"value"}))
    assert second.control["chainLength"] == 2
    check_path(path)
    for raw in (True, False):
        request = {"op": "load", "store": backends.store(tmp_path), "version": 2, "raw": raw}
        loaded, path = serve(requests, request)
        assert loaded.control["chainLength"] == 2
        check_path(path)
