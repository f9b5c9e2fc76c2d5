"""Exclusion of other processes while one of them changes Spark's logs of a stopped query.

A rollback, a rescale and a write in place find that nothing was changed since they began, and change the logs
then. Another one in between would be undone without a word. `tests/model/lease_spec.py` specifies the
protocol.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from typing import Final, Self

from spark_statestore.errors import IllegalStateError, QueryRunningError
from spark_statestore.files import join
from spark_statestore.files.failures import failing_to
from spark_statestore.query.query_checkpoint import OFFSETS, QueryCheckpoint

LEASE_SECONDS: Final = 120.0
"""Time after which a process that sees the same lease takes it for that of a killed one."""

_RENEWAL_SECONDS: Final = 20.0

_PREFIX: Final = ".lease-"

_logger = logging.getLogger(__name__)


class Lease:
    """The right to change Spark's logs of a checkpoint, within a context.

    It is a hidden file in the log of offsets, which Spark and all readers skip. A process creates its own,
    and has the lease if a listing shows no other. A lease that stays for `LEASE_SECONDS` is that of a killed
    process. No clocks are compared.

    Raises
    ------
    QueryRunningError
        If other processes have the lease for too long. Nothing was changed.
    StorageError
        If storage fails.
    """

    def __init__(self, checkpoint: QueryCheckpoint) -> None:
        self._files = checkpoint.files
        self._directory = checkpoint.path(OFFSETS)
        self._url = checkpoint.url
        self._name = ""
        self._created = 0.0

    def __enter__(self) -> Self:
        first_seen: dict[str, float] = {}
        begun = time.monotonic()
        is_waiting = False
        while True:
            self._create()
            try:
                names = self._names_beside()
                now = time.monotonic()
                live = [name for name in names if now - first_seen.setdefault(name, now) < LEASE_SECONDS]
                if not live:
                    for name in names:
                        self._delete(name)
                    return self
            except BaseException:
                self._release()
                raise
            self._release()
            if not is_waiting:
                _logger.warning(
                    "Another process changes %s, or was killed when it did: waiting for at most %.0f s.",
                    self._url,
                    2 * LEASE_SECONDS,
                )
                is_waiting = True
            if now - begun >= 2 * LEASE_SECONDS:
                raise QueryRunningError(
                    f"other processes change {self._url}: "
                    f"{self._files.url(join(self._directory, live[0]))} is the lease of one. Let them end, "
                    "then try again. Nothing was changed."
                )
            # About half a second, at random: processes that create their files in step all withdraw them.
            time.sleep(LEASE_SECONDS * (100 + secrets.randbelow(900)) / 120_000)

    def __exit__(self, *_: object) -> None:
        self._release()

    def renew(self) -> None:
        """Extend the lease, before each change of a file.

        Raises
        ------
        IllegalStateError
            If another process took it, as this one was paused for too long.
        """
        while time.monotonic() - self._created >= _RENEWAL_SECONDS:
            name = self._name
            self._create()
            if self._names_beside() != [name]:
                self._delete(name)
                raise IllegalStateError(
                    f"this process was paused while it changed {self._url}, and another one may have changed "
                    "it since. Verify it with 'spark-statestore verify', then try again."
                )
            self._delete(name)

    def _create(self) -> None:
        self._name = f"{_PREFIX}{secrets.token_hex(8)}"
        path = join(self._directory, self._name)
        self._created = time.monotonic()
        with failing_to("write", self._files, path):
            self._files.create(path, b"")

    def _names_beside(self) -> list[str]:
        """Return the names of the leases without the own one."""
        with failing_to("list", self._files, self._directory):
            statuses = self._files.list_files(self._directory)
            names = [status.path.rpartition("/")[2] for status in statuses]
        return [name for name in names if name.startswith(_PREFIX) and name != self._name]

    def _delete(self, name: str) -> None:
        path = join(self._directory, name)
        with failing_to("delete", self._files, path), contextlib.suppress(FileNotFoundError):
            self._files.delete(path)

    def _release(self) -> None:
        # The next process takes one that stays for that of a killed process.
        with contextlib.suppress(Exception):
            self._delete(self._name)
