"""Sets a query back to an earlier batch, in place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from spark_statestore.checkpoint.files import join, parent_of
from spark_statestore.checkpoint.files.failures import failing_to
from spark_statestore.checkpoint.query import sources
from spark_statestore.checkpoint.query.checkpoint import (
    COMMITS,
    OFFSETS,
    ROLLED_BACK,
    SOURCES,
    STATE,
    QueryCheckpoint,
)
from spark_statestore.checkpoint.query.layout import (
    entry_before,
    list_below,
    newest_operator_state,
    operator_states,
)
from spark_statestore.checkpoint.query.operators import SCHEMAS
from spark_statestore.checkpoint.storage import METADATA_FILE_NAME
from spark_statestore.errors import IllegalStateError
from spark_statestore.savepoint.content import require_whole
from spark_statestore.state.operator.query import OPERATOR_STATE_DIR

__all__ = ["rollback"]

# In what order goes what was noted of one batch.
_FIRST: Final = 0
_LAST: Final = 9


def rollback(
    path: str, batch: int, *, dry_run: bool = False, checkpoints_dir: str | None = None
) -> list[str]:
    """Set a query back, so that it goes on behind an earlier batch. It must not run meanwhile.

    What Spark and this package noted of later batches is moved to ``rolled-back/<time>/`` in the checkpoint
    location. No state is removed: versions of later batches do not count any more, and go when the query's retention
    comes to them. A savepoint that points at one of them keeps it.

    The query reads again what later batches read, if its sources still have it, and its sink gets those batches
    again, under the same numbers. A sink that knows batches by their number, such as files or Delta
    Lake, takes them for ones that it has: set it back as well.

    A roll-back that was cut short leaves the query at one of the batches in between. Ask for it again.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``.
    batch
        The batch that is the newest one then. The newest one that is done can be named too: then what was
        begun behind it is forgotten.
    dry_run
        Say what would be moved, and move nothing.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.

    Returns
    -------
    list of str
        URLs of what was moved, in that order.

    Raises
    ------
    CheckpointNotFoundError
        If the batch, or state that it left, is not there any more. Nothing was changed.
    CorruptCheckpointError
        If something that the query needs to go on from there is missing. Nothing was changed.
    IllegalStateError
        If the query runs in this process.
    CheckpointError, StorageError
        If something cannot be read or written.
    """
    # What is moved is where it was or where it goes, also after a loss of power.
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=True)
    plan = _Plan(checkpoint, checkpoint.require_batch(batch))
    if not dry_run:
        _require_stopped(checkpoint)
        plan.carry_out()
    return [checkpoint.files.url(checkpoint.path(name)) for name in plan.moved]


@dataclass(frozen=True, slots=True)
class _Cut:
    """What becomes of a file source's log: what goes first, what is written, and what goes then."""

    before: list[str]
    compact: tuple[str, bytes] | None
    after: list[str]


class _Plan:
    def __init__(self, checkpoint: QueryCheckpoint, batch: int) -> None:
        self._checkpoint = checkpoint
        self._batch = batch
        self._require_state()
        self._logs = self._later_logs()
        self._cuts = list(self._source_cuts())

    @property
    def moved(self) -> list[str]:
        """What is to be moved, by path in the checkpoint location."""
        return self._logs + [name for cut in self._cuts for name in cut.before + cut.after]

    def carry_out(self) -> None:
        checkpoint = self._checkpoint
        names = self.moved
        if not names:
            return
        time = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        self._write_entry_before()
        # All of it is safe before anything goes.
        for name in names:
            for beside in self._with_checksum(name):
                self._copy(beside, join(checkpoint.path(ROLLED_BACK), time, beside))
        # At any moment the checkpoint is one of a batch in between, which Spark can start from: of each batch first
        # goes that it is done, and last that it was begun. What a file source has noted beyond that does no harm.
        self._remove(self._logs)
        for cut in self._cuts:
            self._remove(cut.before)
            if cut.compact is not None:
                name, data = cut.compact
                with failing_to("write", checkpoint.files, checkpoint.path(name)):
                    checkpoint.files.create(checkpoint.path(name), data)
            self._remove(cut.after)

    def _write_entry_before(self) -> None:
        files, path = self._checkpoint.files, self._checkpoint.path(OFFSETS, str(self._batch - 1))
        with failing_to("write", files, path):
            if self._batch > 0 and not files.exists(path):
                files.create(path, entry_before(self._checkpoint, self._batch).encode())

    def _require_state(self) -> None:
        """Fail unless all that the batch left is there, as far as that can be told without reading it."""
        for version in self._checkpoint.stores(self._batch):
            require_whole(self._checkpoint, version)

    def _later_logs(self) -> list[str]:
        """What was noted of later batches, in the order in which it is to go."""
        found: list[tuple[int, int, str]] = []
        for rank, log in ((_FIRST, COMMITS), (_LAST, OFFSETS)):
            found += ((int(name), rank, f"{log}/{name}") for name in self._list(log) if name.isdigit())
        for operator in self._checkpoint.operators(self._batch):
            # Of each run, by its first batch. Spark would not write over one that is there.
            directory = f"{STATE}/{operator.id}"
            runs = self._list(directory, "_metadata", "v2")
            found += ((int(name), 2, f"{directory}/_metadata/v2/{name}") for name in runs if name.isdigit())
            for name in self._list(directory, SCHEMAS):
                number = name.rpartition("/")[2].partition("_")[0]
                if number.isdigit():
                    found.append((int(number), 3, f"{directory}/{SCHEMAS}/{name}"))
        for operator_name, states in operator_states(self._list(OPERATOR_STATE_DIR)).items():
            directory = f"{OPERATOR_STATE_DIR}/{operator_name}"
            where = self._checkpoint.files.url(self._checkpoint.path(directory))
            newest_operator_state(states, self._batch, where)
            for state, names in states.items():
                for name in names:
                    rank = _FIRST if name == METADATA_FILE_NAME else 1
                    found.append((state.version, rank, f"{directory}/{state.directory}/{name}"))
        later = [one for one in found if one[0] > self._batch]
        return [name for _, _, name in sorted(later, key=lambda one: (-one[0], *one[1:]))]

    def _source_cuts(self) -> Iterator[_Cut]:
        checkpoint = self._checkpoint
        for source, offset in checkpoint.source_offsets(checkpoint.offsets(self._batch)).items():
            names = sources.log_files(self._list(SOURCES, source))
            last = sources.position(offset)
            if last is None or not sources.is_file_source(names, partial(self._read, SOURCES, source)):
                continue
            where = checkpoint.files.url(checkpoint.path(SOURCES, source))
            part = sources.cut(names, last, where)
            dropped = [f"{SOURCES}/{source}/{name}" for name in part.dropped]
            if part.compact is None:
                yield _Cut([], None, dropped)
                continue
            name, origin = part.compact
            data = sources.compacted(self._read(SOURCES, source, origin), last, join(where, origin))
            # What is left before the new file goes first: Spark works with the distance of compacted files.
            older = [
                path
                for path, file in zip(dropped, part.dropped, strict=True)
                if sources.newest_entry(file) <= last
            ]
            newer = [path for path in dropped if path not in older]
            yield _Cut(older, (f"{SOURCES}/{source}/{name}", data), newer)

    def _with_checksum(self, name: str) -> list[str]:
        """A file's path and, before it, that of the checksum that Hadoop keeps of a local file."""
        directory, _, file = name.rpartition("/")
        checksum = f"{directory}/.{file}.crc"
        checkpoint = self._checkpoint
        with failing_to("look for", checkpoint.files, checkpoint.path(checksum)):
            known = checkpoint.files.scheme == "file" and checkpoint.files.exists(checkpoint.path(checksum))
        return [checksum, name] if known else [name]

    def _copy(self, name: str, to: str) -> None:
        files = self._checkpoint.files
        data = self._read(name)
        with failing_to("write", files, to):
            files.make_directory(parent_of(to))
            files.create(to, data)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            for beside in self._with_checksum(name):
                path = self._checkpoint.path(beside)
                with failing_to("delete", self._checkpoint.files, path):
                    self._checkpoint.files.delete(path)
                    self._checkpoint.files.sync_directory(parent_of(path))

    def _list(self, *names: str) -> list[str]:
        return list_below(self._checkpoint.files, self._checkpoint.path(*names))

    def _read(self, *names: str) -> bytes:
        path = self._checkpoint.path(*names)
        with failing_to("read", self._checkpoint.files, path):
            return self._checkpoint.files.read(path)


def _require_stopped(checkpoint: QueryCheckpoint) -> None:
    """Fail if the query runs in this process. Of other processes nothing is known."""
    module: Any = sys.modules.get("pyspark.sql.session")
    session = module and module.SparkSession.getActiveSession()
    if session and any(query.id == checkpoint.query_id for query in session.streams.active):
        raise IllegalStateError(
            f"the query {checkpoint.query_id} of {checkpoint.url} runs in this process. Stop it, then set it back; nothing "
            "was changed."
        )
