"""Change of the number of state partitions of a stopped query in its own checkpoint location."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import sys
from collections.abc import Callable, Iterator

from spark_statestore.errors import (
    ForeignCheckpointError,
    OptionError,
    QueryRunningError,
    StateLostError,
)
from spark_statestore.options import MOST_PARTITIONS, PROVIDER_CLASS, PROVIDER_KEY, StorageOptions
from spark_statestore.query import QueryCheckpoint, StatefulOperator
from spark_statestore.query.journal import Change, complete_change
from spark_statestore.query.logs import SHUFFLE_PARTITIONS, CommitEntry
from spark_statestore.query.parallel import Progress, parallel_iter
from spark_statestore.query.query_checkpoint import COMMITS, METADATA, OFFSETS, STATE
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.savepoint_lookup import is_or_was_savepoint
from spark_statestore.query.store_snapshot import StoreSnapshot, discard_store, missing_file, write_store
from spark_statestore.rescaling.redistribute import keeps_one_partition, rescaled, write_rescaled
from spark_statestore.savepoints.savepoint_holds import Hold, held_in_place, require_unremoved, state_removed
from spark_statestore.storage import CheckpointName
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId


def rescale_in_place(
    checkpoint: QueryCheckpoint,
    partitions: int | None,
    *,
    with_ids: bool = False,
    stopped: bool = False,
    progress: Progress | None = None,
) -> int | None:
    """Give a stopped query another number of state partitions, at its newest committed batch.

    The stores get attempts of their own at that batch, in as many partitions, which are held meanwhile; then
    the entries of Spark's logs and the metadata of the operators change at once, see `Change`. A batch that
    is planned and not committed stays planned, with the same input. Earlier batches keep their partitions.

    Parameters
    ----------
    checkpoint
        A checkpoint that writes with fsync.
    partitions
        Number of state partitions. None keeps the number of the offset log, and completes what was
        interrupted.
    with_ids
        Take a query in checkpoint format v1 to v2, whose ids let all stores of a batch change at once.
    stopped
        The query is stopped: do not check its logs for activity.
    progress
        Called with the number of stores that are written and their total.

    Returns
    -------
    int or None
        The newest committed batch; None if the query has not committed one.

    Raises
    ------
    ForeignCheckpointError
        If another state store's provider wrote the state. Nothing was changed.
    OptionError
        If the checkpoint is a savepoint, if it has format v1 and is not taken to v2, or if the number is out
        of range.
    QueryRunningError
        If the query seems to run. Nothing was changed.
    RescaleError
        If the partition of a row is unknown. Nothing was changed.
    """
    if partitions is not None and not 1 <= partitions <= MOST_PARTITIONS:
        raise OptionError(
            f"the number of partitions is {partitions}, but it must be from 1 to {MOST_PARTITIONS}. Nothing "
            "was changed."
        )
    if is_or_was_savepoint(checkpoint):
        raise OptionError(
            f"{checkpoint.url} is a savepoint, which is not changed. Restore it with another number of "
            "partitions instead. Nothing was changed."
        )
    activity = ActivityCheck(checkpoint)
    activity.require_stopped(stopped=stopped)
    if complete_change(checkpoint):
        activity = ActivityCheck(checkpoint)
    planned = sorted(checkpoint.logged(OFFSETS))
    if not planned:
        return None
    if partitions is None:
        partitions = checkpoint.offsets(planned[-1]).shuffle_partitions
    batch = max(checkpoint.batches(), default=None)
    if partitions is not None:
        _Rescale(checkpoint, batch, partitions, activity, progress, with_ids=with_ids).run(planned)
    return batch


class _Rescale:
    def __init__(
        self,
        checkpoint: QueryCheckpoint,
        batch: int | None,
        partitions: int,
        activity: ActivityCheck,
        progress: Progress | None,
        *,
        with_ids: bool,
    ) -> None:
        self._checkpoint = checkpoint
        self._with_ids = with_ids
        self._batch = batch
        self._partitions = partitions
        self._activity = activity
        self._progress: Progress = progress or (lambda completed, total: None)
        self._operators = list(checkpoint.operator_files(batch))
        self._attempts: list[tuple[StoreDirectory, CheckpointName]] = []
        self._hold: Hold | None = None

    def run(self, planned: list[int]) -> None:
        """Write the stores, then Spark's files; nothing, if all have the number."""
        if self._batch is not None and not self._operators:
            # The query has no state.
            return
        change = Change(self._checkpoint, planned[-1] + 1)
        # Entries of earlier batches go with the state of their batches.
        later = [number for number in planned if self._batch is None or number >= self._batch]
        for number in later:
            change.watch(f"{OFFSETS}/{number}")
        if self._batch is not None:
            change.watch(f"{COMMITS}/{self._batch}")
        with contextlib.ExitStack() as stack:
            try:
                self._prepare(change, later, stack)
                if change.is_empty:
                    return
                self._require_stopped()
                if self._hold is not None:
                    require_unremoved(self._hold, self._missing_files())
                change.make()
            except BaseException:
                if not self._is_named(change):
                    for versions, attempt in self._attempts:
                        discard_store(versions, attempt)
                raise
            # Collections keep the attempts of before as well, until it is certain that these are there.
            if missing := next(filter(None, self._missing_files()), None):
                change.undo()
                raise state_removed(missing)
        if added := self._activity.added():
            raise QueryRunningError(
                f"the query of {self._checkpoint.url} runs: it has written {', '.join(added)} while its "
                f"state was given {self._partitions} partitions. Stop it, then run 'spark-statestore rescale "
                f"{self._checkpoint.url} {self._partitions} --in-place' once more, which takes the state of "
                "its newest batch."
            )

    def _prepare(self, change: Change, later: list[int], stack: contextlib.ExitStack) -> None:
        if self._batch is not None and (commit := self._commit(self._batch, stack)) is not None:
            change.replace(f"{COMMITS}/{self._batch}", commit.encode())
        for number in later:
            entry = self._checkpoint.offsets(number)
            if entry.shuffle_partitions != self._partitions:
                entry = entry.with_conf(SHUFFLE_PARTITIONS, str(self._partitions))
                change.replace(f"{OFFSETS}/{number}", entry.encode())
        for name, data in self._metadata().items():
            change.replace(name, data)

    def _missing_files(self) -> Iterator[str | None]:
        """Yield for each attempt that was written a file of it that does not exist, None if all do."""
        return parallel_iter(lambda attempt: missing_file(*attempt), self._attempts, self._checkpoint.files)

    def _require_stopped(self) -> None:
        if added := self._activity.added():
            raise QueryRunningError(
                f"the query of {self._checkpoint.url} runs: it has written {', '.join(added)} meanwhile. "
                "Stop it, then try again; nothing was changed."
            )

    def _is_named(self, change: Change) -> bool:
        """Return True unless it is certain that no file names the attempts that were written."""
        try:
            return change.complete_own() or any(
                name.id is not None and name.id in self._checkpoint.read(COMMITS, str(self._batch)).decode()
                for _, name in self._attempts[:1]
            )
        except Exception:  # noqa: BLE001 - the first error counts
            return True

    def _commit(self, batch: int, stack: contextlib.ExitStack) -> CommitEntry | None:
        """Write the stores; return the entry of the commit log that names them, or None for no change.

        The context holds what is written.
        """
        commit = self._checkpoint.commit(batch)
        before = commit.state_ids or {}
        operators = [operator for _, operator in self._operators]
        if not all(operator.id in before for operator in operators):
            if all(operator.partitions == self._partitions for operator in operators):
                return None
            self._require_ids_allowed(batch)
        changed = []
        for operator in operators:
            present = len(before.get(operator.id, ()))
            if present == self._partitions:
                continue
            count = 1 if keeps_one_partition(self._checkpoint, batch, operator) else self._partitions
            if present != count:
                changed.append((operator, count))
        total = sum(count * len(operator.stores) for operator, count in changed)
        counter = itertools.count(1)
        if changed:
            self._hold = stack.enter_context(held_in_place(self._checkpoint, batch))
        self._progress(0, total)
        ids = {
            operator.id: self._write(operator, batch, count, lambda: self._progress(next(counter), total))
            for operator, count in changed
        }
        return commit.with_state_ids({**before, **ids}) if ids else None

    def _require_ids_allowed(self, batch: int) -> None:
        """Raise for a query in checkpoint format v1 that cannot be taken to v2."""
        provider = self._checkpoint.offsets(batch).conf.get(PROVIDER_KEY, PROVIDER_CLASS)
        if provider != PROVIDER_CLASS:
            raise ForeignCheckpointError(
                f"the state of {self._checkpoint.url} was written by {provider}, and this package "
                "changes its own alone. Convert it with 'spark-statestore convert "
                f"{self._checkpoint.url} NEW_CHECKPOINT', then try again. Nothing was changed."
            )
        if not self._with_ids:
            raise OptionError(
                f"the query of {self._checkpoint.url} has checkpoint format v1, in which the stores of a "
                "batch cannot change at once. A rescale in place takes it to v2, if it may: with "
                "'--checkpoint-format 2', and for a start in a session that sets "
                "spark.sql.streaming.stateStore.checkpointFormatVersion to 2. Nothing was changed."
            )

    def _write(
        self, operator: StatefulOperator, batch: int, partitions: int, count_one: Callable[[], None]
    ) -> list[list[str]]:
        """Write the stores of an operator, and return their attempts by partition and store."""

        def write(content: StoreSnapshot) -> tuple[StoreId, str]:
            attempt_id = secrets.token_hex(8)
            name, versions = CheckpointName(batch + 1, attempt_id), self._checkpoint.open(content.store)
            write_store(versions, name, attempt_id, content)
            self._attempts.append((versions, name))
            return content.store, attempt_id

        spread = rescaled(self._checkpoint, batch, operator, self._partitions)
        attempts: dict[StoreId, str] = {}
        for store, attempt_id in write_rescaled(write, spread, self._checkpoint.files):
            attempts[store] = attempt_id
            count_one()
        return [
            [attempts[StoreId(operator.id, partition, store.name)] for store in operator.stores]
            for partition in range(partitions)
        ]

    def _metadata(self) -> dict[str, bytes]:
        """Return the operators' metadata with the number of partitions, by path in the checkpoint."""
        files = {}
        for path, operator in self._checkpoint.operator_files(self._batch, as_written=True):
            if operator.partitions == self._partitions:
                continue
            directory, _, file = path[len(self._checkpoint.root) + 1 :].rpartition("/")
            if file != METADATA and self._batch is not None:
                # Version 2 has a file for each run, by its first batch; earlier batches keep theirs.
                file = str(self._batch)
            files[f"{directory}/{file}"] = operator.with_partitions(self._partitions).encode()
        return files | self._metadata_of_planned()

    def _metadata_of_planned(self) -> dict[str, bytes]:
        """Return the metadata that a run has written whose first batch is not committed."""
        later = range(0 if self._batch is None else self._batch + 1, sys.maxsize)
        return {
            f"{STATE}/{operator.id}/_metadata/v2/{first}": run.with_partitions(self._partitions).encode()
            for _, operator in self._operators
            for first, run in self._checkpoint.operator_runs(operator.id, later)
        }


def settle_partitions(
    url: str, options: StorageOptions, query: str | None, can_have_ids: bool, progress: Progress
) -> int | None:
    """Give a query that is about to start the partitions of its session, and complete interrupted changes.

    Parameters
    ----------
    url
        The query's ``checkpointLocation``.
    query
        Its name, if it has one.
    can_have_ids
        The session can continue it in checkpoint format v2.

    Returns
    -------
    int or None
        The number of partitions of the option; None if it has none for the query.
    """
    partitions = options.partitions_of(query)
    if options.is_on_driver:
        if partitions is not None:
            raise StateLostError(
                "the option 'partitions' is set, and with the storage 'memory' the state is gone with the "
                "application, so that it cannot be redistributed. Take the option out, and set "
                f"{SHUFFLE_PARTITIONS} before the first start."
            )
        return None
    checkpoint = QueryCheckpoint(url, checkpoints_dir=options.checkpoints_dir, fsync=True)
    rescale_in_place(checkpoint, partitions, with_ids=can_have_ids, stopped=True, progress=progress)
    return partitions
