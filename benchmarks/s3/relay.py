"""A relay before a server that holds back what clients send: ``python -m benchmarks.s3.relay HOST PORT``.

It prints its own port, reads the delay in milliseconds from its standard input, a line for each change, and
ends with that input. The order of the bytes stays as it is, and what the server sends is passed on at once.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

CHUNK = 1 << 18


class Delay:
    """The delay of all connections, in seconds."""

    seconds = 0.0


async def receive(reader: StreamReader, due: asyncio.Queue[tuple[float, bytes]]) -> None:
    """Queue what arrives with the time at which it is due; empty bytes are the end."""
    data = b"-"
    while data:
        try:
            data = await reader.read(CHUNK)
        except OSError:
            data = b""
        due.put_nowait((asyncio.get_running_loop().time() + Delay.seconds, data))


async def send_when_due(due: asyncio.Queue[tuple[float, bytes]], writer: StreamWriter) -> None:
    """Send what is due, in the order of arrival, also if the delay has become less."""
    with suppress(OSError):
        while True:
            time, data = await due.get()
            await asyncio.sleep(time - asyncio.get_running_loop().time())
            if not data:
                break
            writer.write(data)
            await writer.drain()
    writer.close()


async def forward(reader: StreamReader, writer: StreamWriter) -> None:
    """Send what the server sends, at once."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(host: str, port: int) -> None:
    """Relay connections until the end of standard input."""

    async def relay(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        await asyncio.gather(
            receive(reader, due), send_when_due(due, to_server), forward(from_server, writer)
        )

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    commands = StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        Delay.seconds = float(line) / 1000
        print(line.decode().strip(), flush=True)


class Relay:
    """A running relay."""

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
