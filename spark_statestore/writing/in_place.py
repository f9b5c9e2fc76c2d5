"""Write of state in the checkpoint of a stopped query: other attempts at its newest batch."""

from __future__ import annotations

import contextlib
import itertools
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from spark_statestore.errors import OptionError, QueryRunningError
from spark_statestore.files import join, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.options import StorageOptions
from spark_statestore.query import QueryCheckpoint, StoreVersion
from spark_statestore.query.layout import new_rolled_back_directory, replace_file
from spark_statestore.query.lease import Lease
from spark_statestore.query.parallel import Progress, parallel_iter
from spark_statestore.query.query_checkpoint import COMMITS
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.savepoint_lookup import is_or_was_savepoint
from spark_statestore.query.store_snapshot import (
    EncodedStore,
    StoreSnapshot,
    discard_store,
    encode_store,
    missing_file,
    read_store,
    write_store,
)
from spark_statestore.savepoints.savepoint_holds import Hold, held_in_place, require_unremoved
from spark_statestore.storage import CheckpointName
from spark_statestore.store.directory import StoreDirectory
from spark_statestore.store.metadata import StoreId

IN_PLACE: Final = "in-place"
"""Directory in ``rolled-back/<time>/`` of the entry before a write in place."""

# The metadata of all stores is in memory before it is in one file.
_SMALL_METADATA: Final = StorageOptions(file_state_threshold=16 << 10)


class InPlaceWrite:
    """A write of an operator's state in its checkpoint, which one file makes count as a whole.

    The stores get attempts of their own at a batch, beside those that are there. In checkpoint format v2 one
    file of the commit log names them then. A copy of the file as it was, in
    ``rolled-back/<time>/in-place/``, has the state of before, which stays as long as the batch is retained.
    In format v1, where the last attempt counts, their metadata is published in one merged file; without it
    the attempts of before count again, which stay as long. Until then a hold keeps collections from what is
    written, which nothing names.

    Parameters
    ----------
    checkpoint
        A checkpoint that writes with fsync.
    activity
        A check of its query, which has found that it is stopped.
    is_savepoint
        The checkpoint is a canonical savepoint, which is refused otherwise.

    Attributes
    ----------
    has_ids
        Whether the commit log names the attempts: checkpoint format v2.

    Raises
    ------
    CheckpointNotFoundError
        If there is no such operator.
    """

    def __init__(
        self,
        checkpoint: QueryCheckpoint,
        batch: int,
        operator: int,
        activity: ActivityCheck,
        *,
        is_savepoint: bool = False,
    ) -> None:
        self._checkpoint = checkpoint
        self._activity = activity
        self._batch = batch
        self._operator = operator
        if not is_savepoint and is_or_was_savepoint(checkpoint):
            raise OptionError(
                f"{checkpoint.url} is a savepoint, which is not changed. Restore it, and change what was "
                "restored. Nothing was changed."
            )
        self._before = checkpoint.read(COMMITS, str(batch))
        self._commit = checkpoint.commit(batch)
        # Raises if there is none.
        checkpoint.operator(operator, batch)
        self.has_ids = operator in (self._commit.state_ids or {})
        self._names_before = self._merged_names()

    def write(
        self,
        change: Callable[[StoreSnapshot], StoreSnapshot],
        memory: int | None = None,
        progress: Progress | None = None,
        *,
        keeps_entry: bool = True,
    ) -> None:
        """Write the stores with their changes, and have them count at once.

        Stores that `change` returns as they are stay. Without `keeps_entry` the file of the commit log is not
        copied before.
        """
        with held_in_place(self._checkpoint, self._batch) as state_hold:
            self._write(state_hold, change, memory, progress, keeps_entry=keeps_entry)
        if added := self._activity.added():
            before = (
                "the entry of its commit log as it was is in rolled-back/."
                if self.has_ids
                else "without the newest file of state/_merged/ it is that of before."
            )
            raise QueryRunningError(
                f"the query of {self._checkpoint.url} runs: it has written {', '.join(added)} while state "
                "was written in place, and may go on with the state of before. Stop the query, and see which "
                f"state it has; {before}"
            )

    def _write(
        self,
        state_hold: Hold,
        change: Callable[[StoreSnapshot], StoreSnapshot],
        memory: int | None,
        progress: Progress | None,
        *,
        keeps_entry: bool,
    ) -> None:
        versions = self._checkpoint.stores(self._batch, self._operator)
        parents = self._parents()
        report: Progress = progress or (lambda completed, total: None)
        report(0, len(versions))

        attempts: list[tuple[StoreDirectory, CheckpointName]] = []
        encoded: list[EncodedStore] = []

        def write(version: StoreVersion) -> str:
            content = read_store(self._checkpoint, version, memory)
            changed = change(content)
            if changed is content:
                return str(version.name.id)
            attempt_id = secrets.token_hex(8)
            parent = content.parent_attempt_id
            if self.has_ids:
                store = self._checkpoint.open(version.store)
                name = CheckpointName(version.name.version, attempt_id)
                parent = parent and parents.get(version.store, parent)
                write_store(store, name, attempt_id, changed, parent)
                attempts.append((store, name))
            else:
                store = self._checkpoint.open(version.store, _SMALL_METADATA)
                encoded.append(encode_store(store, version.name, attempt_id, changed, parent))
            return attempt_id

        with contextlib.ExitStack() as stack:
            try:
                ids = []
                for completed, attempt_id in enumerate(
                    parallel_iter(write, versions, self._checkpoint.files), 1
                ):
                    ids.append(attempt_id)
                    report(completed, len(versions))
                lease = stack.enter_context(Lease(self._checkpoint))
                files = self._checkpoint.files
                missing = (
                    *parallel_iter(lambda attempt: missing_file(*attempt), attempts, files),
                    *parallel_iter(EncodedStore.missing_file, encoded, files),
                )
                require_unremoved(state_hold, missing)
                self._require_unchanged()
                if self.has_ids and keeps_entry:
                    self._keep()
                lease.renew()
            except BaseException:
                for store, name in attempts:
                    discard_store(store, name)
                for attempt in encoded:
                    attempt.discard()
                raise
            if self.has_ids:
                self._publish(ids)
            elif encoded:
                self._publish_merged(encoded)

    def _parents(self) -> dict[StoreId, str | None]:
        """Return the attempts at the version before that the commit log names, in checkpoint format v2."""
        if not self.has_ids or self._batch - 1 not in self._checkpoint.batches():
            return {}
        before = self._checkpoint.stores(self._batch - 1, self._operator)
        return {version.store: version.name.id for version in before if version.name.id}

    def _publish(self, ids: Sequence[str]) -> None:
        before = self._commit.state_ids or {}
        flat = iter(ids)
        changed = [list(itertools.islice(flat, len(stores))) for stores in before[self._operator]]
        entry = self._commit.with_state_ids({**before, self._operator: changed})
        replace_file(self._checkpoint, f"{COMMITS}/{self._batch}", entry.encode())

    def _publish_merged(self, encoded: Sequence[EncodedStore]) -> None:
        objects = ((attempt.path, attempt.attempt_id, attempt.metadata) for attempt in encoded)
        with failing_to("write", *self._checkpoint.open_state()):
            self._checkpoint.merged_files().write(objects, lambda *_: self._require_unchanged())

    def _merged_names(self) -> frozenset[str]:
        """Return the merged files that may have the batch's versions without ids; none with them."""
        if self.has_ids:
            return frozenset()
        with failing_to("list", *self._checkpoint.open_state()):
            return frozenset(map(str, self._checkpoint.merged_files().names_of(self._batch + 1)))

    def _require_unchanged(self) -> None:
        """Raise if the query runs, or if another process has changed the state of the batch."""
        added = self._activity.added()
        has = "written"
        name = f"{COMMITS}/{self._batch}"
        if not added and (entry := self._checkpoint.read_if_present(name)) != self._before:
            added = [name]
            # A rollback moves it.
            has = "moved" if entry is None else has
        if not added:
            added = sorted(self._merged_names() - self._names_before)
        if added:
            raise QueryRunningError(
                f"the query of {self._checkpoint.url} runs, or another process changes it, which has {has} "
                f"{', '.join(added)}. Stop it, then try again; nothing was changed."
            )

    def _keep(self) -> None:
        """Copy the entry of the commit log to where a rollback moves those of later batches."""
        files, path = self._checkpoint.files, self._checkpoint.path(COMMITS, str(self._batch))
        # Not where a rollback has moved entries, which are moved back into gaps.
        backup = join(new_rolled_back_directory(self._checkpoint), IN_PLACE, COMMITS, str(self._batch))
        with failing_to("write", files, backup):
            files.make_directory(parent_of(backup))
            files.create(backup, files.read(path))
