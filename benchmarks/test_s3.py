"""The benchmark on S3: its relay, the requests it reads from MinIO's trace, and its bounds."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.groups import s3_queries, s3_requests
from benchmarks.groups.s3_queries import Row
from benchmarks.s3.relay import relaying
from benchmarks.s3.requests import Request, parse
from benchmarks.stores import CHANGELOG, HDFS, LIMIT, OURS
from benchmarks.streaming import Batch


class Echo(socketserver.BaseRequestHandler):
    """Returns what it receives."""

    def handle(self) -> None:
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        received += connection.recv(size - len(received))
    return received


def test_relay_holds_back_what_clients_send(echo: str) -> None:
    with relaying(echo) as relay, connect(relay.url) as client:
        relay.delay(300)
        start = time.monotonic()
        client.sendall(b"one")
        assert receive(client, 3) == b"one"
        assert time.monotonic() - start >= 0.3
        client.sendall(b"two")
        time.sleep(0.05)
        relay.delay(0)
        # Bytes do not overtake those that wait.
        client.sendall(b"three")
        assert receive(client, 8) == b"twothree"
        start = time.monotonic()
        client.sendall(b"four")
        assert receive(client, 4) == b"four"
        assert time.monotonic() - start < 0.3


def test_relay_keeps_the_order_of_many_bytes(echo: str) -> None:
    sent = bytes(range(256)) * 4096
    with relaying(echo) as relay, connect(relay.url) as client:
        relay.delay(20)
        threading.Thread(target=client.sendall, args=(sent,), daemon=True).start()
        assert receive(client, len(sent)) == sent


def event(name: str, path: str) -> dict[str, Any]:
    stats = {"inputbytes": 10, "outputbytes": 20}
    return {"funcname": f"s3.{name}", "http": {"request": {"path": path}, "stats": stats}}


def test_requests_are_classified_by_the_servers_name() -> None:
    names = ["PutObject", "CopyObject", "GetObject", "HeadObject", "ListObjectsV1", "ListObjectsV2"]
    kinds = dict(zip(names, ["PUT", "COPY", "GET", "HEAD", "LIST", "LIST"], strict=True))
    kinds |= {"DeleteMultipleObjects": "DELETE", "PutObjectPart": "multipart", "PutBucket": "other"}
    assert {name: parse(event(name, "/bucket/a/b")).kind for name in kinds} == kinds
    assert parse(event("GetObject", "/bucket/a/b")) == Request("GET", "bucket", 30)


def row(
    milliseconds: dict[str, float],
    kinds: dict[str, list[str]],
    *,
    batches: int = 1,
    partitions: int = 8,
    delay: int = 0,
) -> Row:
    measured = {name: [Batch(time)] * batches for name, time in milliseconds.items()}
    requests = {
        name: [Request(kind, "bucket", 100) for kind in requested] for name, requested in kinds.items()
    }
    return Row("query", partitions, measured, requests, delay)


def short(measured: Row) -> list[str]:
    return [c.work.removeprefix("S3, query: ") for c in s3_queries.judge([measured]) if not c.met]


def test_queries_with_settings_of_their_own_share_no_session() -> None:
    *shared, fast = s3_queries.QUERIES
    assert s3_queries.by_session(tuple(s3_queries.QUERIES)) == [shared, [fast]]
    assert s3_queries.by_session((fast,)) == [[fast]]
    assert HDFS in s3_queries.stores_of("dedup")
    assert HDFS not in s3_queries.stores_of(fast)


def test_row_is_ahead_of_both_stores() -> None:
    rivals = {HDFS: ["PUT"] * 6, CHANGELOG: ["PUT"] * 7}
    times = {HDFS: 30.0, CHANGELOG: 20.0}
    own_requests = ["PUT"] * 5
    assert short(row({OURS: 20.0} | times, {OURS: own_requests} | rivals)) == []
    assert short(row({OURS: 20.1} | times, {OURS: own_requests} | rivals)) == ["p50", "p99"]
    # One more than one for each executor and four, but not than the better of the others.
    assert short(row({OURS: 20.0} | times, {OURS: [*own_requests, "GET"]} | rivals)) == ["requests, absolute"]
    assert short(row({OURS: 20.0} | times, {OURS: own_requests * 2} | rivals, batches=2)) == [
        "requests",
        "bytes",
    ]
    assert short(row({OURS: 20.0} | times, {OURS: [*own_requests[1:], "LIST"]} | rivals)) == ["LIST and COPY"]


def test_row_with_many_partitions_and_a_delay_takes_a_quarter() -> None:
    kinds = {OURS: ["PUT"], LIMIT: ["PUT"], HDFS: ["PUT"] * 6}
    times = {OURS: 10.1, LIMIT: 9.0, HDFS: 40.0}
    assert short(row(times, kinds, partitions=200, delay=30)) == ["p50"]
    assert short(row(times | {OURS: 10.0}, kinds, partitions=200, delay=30)) == []
    assert short(row(times, kinds, partitions=8, delay=30)) == []
    assert short(row(times, kinds, partitions=200)) == []


def test_requests_of_a_batch_are_an_average() -> None:
    measured = row({OURS: 1.0}, {OURS: ["PUT", "PUT", "GET"]}, batches=2)
    assert measured.per_batch(OURS)["PUT"] == 1
    assert measured.per_batch(OURS)["GET"] == 0.5
    assert measured.bytes_per_batch(OURS) == 150


def test_row_of_a_cluster_has_a_request_more_for_each_executor() -> None:
    def short_on(master: str, requests: list[str]) -> list[str]:
        criteria = s3_requests.judge({master: [row({OURS: 1.0}, {OURS: requests})]})
        return [c.work.removeprefix("S3, query: ") for c in criteria if not c.met]

    local, cluster = s3_requests.MASTERS
    assert short_on(local, ["PUT"] * 5) == short_on(cluster, ["PUT"] * 6) == []
    assert short_on(local, ["PUT"] * 6) == short_on(cluster, ["PUT"] * 7) == ["requests, absolute"]
    assert short_on(cluster, ["LIST"]) == ["LIST and COPY"]
