"""A relay before a server that holds back what clients send: ``python -m benchmarks.s3.relay HOST PORT``.

It prints its own port, reads the delay in milliseconds from its standard input, a line for each change, and ends with
that input. The order of the bytes and the throughput stay as they are, and what the server sends is passed on at once.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


class Delay:
    """The delay of all connections, in seconds."""

    seconds = 0.0


class Upstream(asyncio.Protocol):
    """The connection to the server: passes on what it sends."""

    def __init__(self, client: asyncio.Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()


class Downstream(asyncio.Protocol):
    """A client's connection: passes on what it sent when that is due."""

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._due: deque[tuple[float, bytes | None]] = deque()
        self._upstream: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._client = transport
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            self._upstream, _ = await self._loop.create_connection(
                lambda: Upstream(self._client), *self._server
            )
        except OSError:
            self._client.close()
            return
        self._pass_on()

    def data_received(self, data: bytes) -> None:
        self._hold(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hold(None)

    def _hold(self, data: bytes | None) -> None:
        # In the order of arrival, also if the delay has become less.
        self._due.append((self._loop.time() + Delay.seconds, data))
        if self._timer is None:
            self._pass_on()

    def _pass_on(self) -> None:
        self._timer = None
        if self._upstream is None:
            return
        while self._due and self._due[0][0] <= self._loop.time():
            data = self._due.popleft()[1]
            if data is None:
                self._upstream.close()
            else:
                self._upstream.write(data)
        if self._due:
            self._timer = self._loop.call_at(self._due[0][0], self._pass_on)


class Control(asyncio.Protocol):
    """Standard input: sets the delay."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._text = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            Delay.seconds = float(line) / 1000
            print(line.decode(), flush=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


async def serve(host: str, port: int) -> None:
    """Relay connections until the end of standard input."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Downstream(host, port), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = asyncio.Event()
    await loop.connect_read_pipe(lambda: Control(ended), sys.stdin)
    await ended.wait()


class Relay:
    """A running relay.

    Parameters
    ----------
    process
        Its process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = f"http://127.0.0.1:{self._answer()}"

    def delay(self, milliseconds: float) -> None:
        """Hold back what clients send from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{milliseconds}\n")
        self._process.stdin.flush()
        self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"the relay ended with exit code {self._process.wait()}")
        return line


@contextmanager
def relaying(url: str) -> Iterator[Relay]:
    """Run a relay before the server of a URL, without a delay at first, in a process of its own."""
    server = urlsplit(url)
    command = [sys.executable, "-m", "benchmarks.s3.relay", str(server.hostname), str(server.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Relay(process)
        assert process.stdin is not None
        process.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
