"""Storage whose calls are delayed or hang, for a backend in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.spark.counting import wait_until
from tests.support.commands import interpreter
from tests.support.paths import ROOT

DRIVERS = Path(__file__).parent / "drivers"

_ENTRY = "[fsspec.specs]\nslow = slow_storage:SlowFileSystem\n"


class SlowStorage:
    """A directory that a backend accesses as ``slow://``, with control files beside it."""

    def __init__(self, scratch: Path) -> None:
        self.directory = scratch / "slow"
        self.directory.mkdir()
        self.url = f"slow://{self.directory}"
        self._control = scratch / "slow.json"
        self._scratch = scratch
        self._hangs: list[dict[str, str]] = []
        self._resets = 0
        self.calls()
        # As if pip had installed the driver.
        installed = scratch / "site" / "slow_storage-1.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-storage\nVersion: 1\n")
        (installed / "entry_points.txt").write_text(_ENTRY)

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that a backend needs."""
        path = [str(self._scratch / "site"), str(DRIVERS), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return {"SLOW_STORAGE": str(self._control), "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def interpreter(self) -> str:
        """Return a Python with this environment, for the option ``python``."""
        lines = [f'export {name}="{value}"' for name, value in self.environment.items()]
        return interpreter(self._scratch, "\n".join(lines))

    def calls(self, **behaviour: Any) -> None:
        """Set the behaviour of calls from now on; see the driver."""
        new = self._control.with_suffix(".new")
        new.write_text(json.dumps(behaviour))
        new.replace(self._control)

    def reset(self, operation: str, path: str, times: int) -> None:
        """Make this many of the next matching calls fail with a connection reset."""
        markers = [str(self._scratch / f"reset-{self._resets + number}") for number in range(times)]
        self._resets += times
        self.calls(reset=[{"operation": operation, "path": path, "mark": marker} for marker in markers])

    @contextlib.contextmanager
    def hanging(self, operation: str, path: str) -> Iterator[Hang]:
        """Make the next matching call hang until it is released, at the latest at the end of the context."""
        hang = Hang(self._scratch / f"release-{len(self._hangs)}")
        self._hangs.append({"operation": operation, "path": path, "until": str(hang.file)})
        self.calls(hang=self._hangs)
        try:
            yield hang
        finally:
            hang.release()


class Hang:
    """A call that hangs until a file exists."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def is_met(self) -> bool:
        return self.file.with_name(self.file.name + ".hung").exists()

    def wait(self, seconds: float = 60.0) -> None:
        assert wait_until(self.is_met, seconds), "no call hangs"

    def release(self) -> None:
        self.file.touch()

    def holds_back(self, function: Callable[[], object], seconds: float = 0.5) -> None:
        """Check that a function waits for the call, and ends once it is released."""
        thread = threading.Thread(target=function)
        thread.start()
        thread.join(seconds)
        assert thread.is_alive()
        self.release()
        thread.join(60)
        assert not thread.is_alive()
