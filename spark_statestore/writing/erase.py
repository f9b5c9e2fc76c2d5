"""Erasure of keys from all retained batches of a stopped query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_statestore.query import QueryCheckpoint, StatefulOperator
from spark_statestore.query.gc import gc
from spark_statestore.query.parallel import Progress
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.store.metadata import StoreId
from spark_statestore.writing.absence import Absence, verify_absent
from spark_statestore.writing.changes import KeyCounts
from spark_statestore.writing.in_place import InPlaceWrite
from spark_statestore.writing.key_search import KeySearch, keys_of_families
from spark_statestore.writing.predicate import Predicate, is_match, predicate_of


@dataclass(frozen=True, slots=True)
class Erasure:
    """The result of `erase`.

    Attributes
    ----------
    batches
        Retained batches whose state was written anew.
    stores
        Number of stores of all batches that were written anew; the others did not have the keys.
    rows
        Number of rows that the newest batch had of the keys, with all that Spark derives.
    files
        Number of files that were deleted, or written anew without what no retained batch needs.
    absence
        What is left, see `verify_absent`.
    """

    batches: tuple[int, ...]
    stores: int
    rows: int
    files: int
    absence: Absence


def erase(
    path: str,
    condition: str | pc.Expression,
    *,
    operator: int = 0,
    stopped: bool = False,
    memory: int = 1 << 29,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erase keys of a stopped query's operator from all retained batches, in place.

    Each store that has the keys is written anew without them, at each batch that has them; then the files of
    before are deleted, and what is left is searched. All states of the operator are meant, with all that
    Spark derives: both sides of a join, each variable and the timers. An interrupted erasure is repeated. It
    cannot be undone: there is no copy.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, in checkpoint format v2.
    condition
        A condition on the column ``key``, see `verify_absent`.
    operator
        Number of the stateful operator; 0 is the last one of the query.
    stopped
        The query is stopped: do not check its logs for activity, see `rollback`.
    memory
        See `write_state`.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of batches done and their total.

    Raises
    ------
    OptionError
        If the condition cannot be evaluated on the keys, or if the checkpoint has format v1.
    MissingPackageError
        If it is SQL and DuckDB is not installed.
    QueryRunningError
        If the query seems to run. Nothing was changed.
    RescaleError
        If the operator has state whose keys this release does not know.
    CheckpointNotFoundError
        If there is no such checkpoint or operator.
    CheckpointError, StorageError
        If a file cannot be read or written. Batches that were done have no key, the others are as before.
    """
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=True)
    predicate = predicate_of(condition)
    activity = ActivityCheck(checkpoint)
    activity.require_stopped(stopped=stopped)
    checkpoint.require_batch(None)
    batches = checkpoint.batches()
    # Raises for another checkpoint format.
    places = {batch: InPlaceWrite(checkpoint, batch, operator, activity) for batch in batches}
    search = KeySearch(checkpoint, operator, predicate)
    report: Progress = progress or (lambda done, total: None)
    written: dict[int, int] = {}
    rows = 0
    for done, batch in enumerate(batches):
        report(done, len(batches))
        versions = checkpoint.stores(batch, operator)
        found = {version.store for version in versions if search.read(batch, version)}
        if found:
            without = _Without(predicate, checkpoint.operator(operator, batch), found)
            places[batch].write(without.apply, memory, keeps_entry=False)
            written[batch] = len(found)
            rows = without.counts.removed if batch == batches[-1] else 0
    report(len(batches), len(batches))
    # The second collection removes what only metadata needed that the first one has removed.
    removed = [gc(path, stopped=True, purge=True, checkpoints_dir=checkpoints_dir).orphans for _ in range(2)]
    return Erasure(
        tuple(written),
        sum(written.values()),
        rows,
        sum(map(len, removed)),
        verify_absent(path, condition, operator=operator, checkpoints_dir=checkpoints_dir),
    )


class _Without:
    """Some stores without the rows of keys that match."""

    def __init__(self, predicate: Predicate, operator: StatefulOperator, stores: set[StoreId]) -> None:
        self._predicate = predicate
        self._operator = operator
        self._stores = stores
        self.counts = KeyCounts()
        """Numbers of rows."""

    def apply(self, content: StoreSnapshot) -> StoreSnapshot:
        """Return a store without the keys; one that does not have them is returned unchanged."""
        if content.store not in self._stores:
            return content
        return replace(content, rows=lambda: self._kept(content))

    def _kept(self, content: StoreSnapshot) -> Iterator[tuple[str, pa.Table]]:
        keys = keys_of_families(self._operator, content.store, content.column_families)
        for name, table in content.rows():
            matches = is_match(self._predicate, table, keys[name])
            self.counts.add(removed=pc.sum(matches).as_py() or 0)
            yield name, table.filter(pc.invert(matches))
