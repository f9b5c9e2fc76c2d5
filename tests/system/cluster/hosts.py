"""Hosts of a cluster's processes: addresses of this machine, or separate network namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class Host:
    """A host: its IP address, the prefix of a command that runs there, and the interface that leads to it."""

    address: str
    enter: tuple[str, ...] = ()
    link: str = ""


class Loopback:
    """A driver and two workers on three addresses of the loopback interface."""

    def __enter__(self) -> Self:
        self.driver = Host("127.0.0.1")
        # Only Linux has all of 127/8 without configuration.
        addresses = ("127.0.0.2", "127.0.0.3") if sys.platform == "linux" else ("127.0.0.1", "127.0.0.1")
        self.workers = [Host(address) for address in addresses]
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Namespaces:
    """A driver on this host and two workers in network namespaces, on one bridge.

    A disconnected worker loses its packets without notice.
    """

    @staticmethod
    def missing() -> str | None:
        """Return the reason if this machine cannot create them."""
        if sys.platform != "linux" or os.geteuid() != 0:
            return "network namespaces need Linux and root"
        if not (shutil.which("ip") and shutil.which("nsenter")):
            return "network namespaces need the commands ip (iproute2) and nsenter (util-linux)"
        name = f"sst-{uuid.uuid4().hex[:8]}"
        tried = subprocess.run(
            ["ip", "link", "add", name, "type", "bridge"], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            return f"no bridge can be made here: {tried.stderr.strip()}"
        _ip("link", "del", name)
        return None

    def __enter__(self) -> Self:
        mark = uuid.uuid4().hex[:6]
        # A separate network for each, as several tests may run concurrently.
        net = f"10.{128 + int(mark[:2], 16) // 2}.{int(mark[2:4], 16)}"
        self._bridge = f"sst{mark}"
        self._names = [f"sst{mark}-{number}" for number in (2, 3)]
        _ip("link", "add", self._bridge, "type", "bridge")
        try:
            _ip("addr", "add", f"{net}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            self.driver = Host(f"{net}.1")
            self.workers = [self._join(name, f"{net}.{name[-1]}") for name in self._names]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def cut(self, host: Host) -> None:
        """Drop every packet from and to a worker."""
        _ip("link", "set", host.link, "nomaster")

    def mend(self, host: Host) -> None:
        _ip("link", "set", host.link, "master", self._bridge)

    def _join(self, name: str, address: str) -> Host:
        link = name.replace("-", "v")
        _ip("netns", "add", name)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", link, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        return Host(address, ("nsenter", f"--net=/run/netns/{name}"), link)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
