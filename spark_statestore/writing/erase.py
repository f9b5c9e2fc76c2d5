"""Erasure of keys from all retained batches of a stopped query, and from its savepoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_statestore.errors import IllegalStateError, OptionError, QueryRunningError
from spark_statestore.files import open_file_system, parent_of
from spark_statestore.files.failures import failing_to
from spark_statestore.query import QueryCheckpoint, StatefulOperator
from spark_statestore.query.gc import gc
from spark_statestore.query.parallel import Progress
from spark_statestore.query.running import ActivityCheck
from spark_statestore.query.savepoint import Savepoint
from spark_statestore.query.savepoint_lookup import load_savepoint, require_own_files
from spark_statestore.query.store_snapshot import StoreSnapshot
from spark_statestore.savepoints.savepoint_holds import holders_of, release_in_place
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
        Number of stores of all batches and savepoints that were written anew; the others did not have the
        keys.
    rows
        Number of rows that the newest batch had of the keys, with all that Spark derives.
    files
        Number of files that were deleted, or written anew without what no retained batch needs.
    savepoints
        URLs of the savepoints whose state was written anew.
    absence
        What is left in the checkpoint and the savepoints, see `verify_absent`.
    """

    batches: tuple[int, ...]
    stores: int
    rows: int
    files: int
    savepoints: tuple[str, ...]
    absence: Absence


def erase(
    path: str,
    condition: str | pc.Expression,
    *,
    operator: int = 0,
    savepoints: Sequence[str] = (),
    stopped: bool = False,
    memory: int = 1 << 29,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Erasure:
    """Erase keys of a stopped query's operator from all retained batches and from savepoints, in place.

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
    savepoints
        URLs of canonical savepoints of the query, in checkpoint format v2. Each stays where it is, and an
        interrupted erasure leaves it whole, with the keys or without.
    stopped
        The query is stopped: do not check its logs for activity, see `rollback`.
    memory
        See `write_state`.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of batches and savepoints done and their total.

    Raises
    ------
    OptionError
        If the condition cannot be evaluated on the keys, if the checkpoint or a savepoint has format v1, or
        if a savepoint is a pointer or of another query.
    MissingPackageError
        If it is SQL and DuckDB is not installed.
    QueryRunningError
        If the query seems to run, or one was started in the directory of a savepoint. Nothing was changed.
    IllegalStateError
        If pointer savepoints or running copies need a savepoint. Nothing was changed.
    RescaleError
        If the operator has state whose keys this release does not know.
    CheckpointNotFoundError, SavepointNotFoundError
        If there is no such checkpoint, operator or savepoint.
    CheckpointError, StorageError
        If a file cannot be read or written. Batches and savepoints that were done have no key, the others are
        as before.
    """
    checkpoint = QueryCheckpoint(path, checkpoints_dir=checkpoints_dir, fsync=True)
    predicate = predicate_of(condition)
    activity = ActivityCheck(checkpoint)
    activity.require_stopped(stopped=stopped)
    checkpoint.require_batch(None)
    batches = checkpoint.batches()
    places = {batch: InPlaceWrite(checkpoint, batch, operator, activity) for batch in batches}
    # In format v1 the attempts of before stay beside those that replace them.
    if not all(place.has_ids for place in places.values()):
        raise OptionError(
            f"the query of {checkpoint.url} has checkpoint format v1, in which the attempts of before stay "
            "with the key. Write a copy without it. Nothing was changed."
        )
    query = _Location(checkpoint, operator, predicate, places)
    copies = {
        copy.path: _location_of(copy, checkpoint, operator, predicate)
        for copy in map(load_savepoint, savepoints)
    }
    report: Progress = progress or (lambda completed, total: None)
    total = len(batches) + len(copies)
    stores_by_batch: dict[int, int] = {}
    rows = 0
    for completed, batch in enumerate(batches):
        report(completed, total)
        if rewrite := query.erase(batch, memory):
            stores_by_batch[batch] = rewrite.stores
            rows = rewrite.rows if batch == batches[-1] else 0
    removed = query.collect(checkpoints_dir)
    written_copies: dict[str, int] = {}
    for completed, (copy, location) in enumerate(copies.items(), len(batches)):
        report(completed, total)
        for batch in location.places:
            if rewrite := location.erase(batch, memory):
                written_copies[copy] = rewrite.stores
        removed += location.collect(None)
    report(total, total)
    absent = [
        verify_absent(path, condition, operator=operator, checkpoints_dir=checkpoints_dir),
        *(verify_absent(copy, condition, operator=operator) for copy in copies),
    ]
    return Erasure(
        tuple(stores_by_batch),
        sum(stores_by_batch.values()) + sum(written_copies.values()),
        rows,
        removed,
        tuple(written_copies),
        Absence(
            absent[0].batches,
            sum(place.streams for place in absent),
            tuple(keys for place in absent for keys in place.found),
            tuple(url for place in absent for url in place.unknown),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Numbers of stores that were written anew, and of rows that they do not have any more."""

    stores: int
    rows: int


class _Location:
    """A checkpoint location or a savepoint, with a write in place for each batch."""

    def __init__(
        self,
        checkpoint: QueryCheckpoint,
        operator: int,
        predicate: Predicate,
        places: Mapping[int, InPlaceWrite],
    ) -> None:
        self.checkpoint = checkpoint
        self._operator = operator
        self._predicate = predicate
        self.places = places
        self._search = KeySearch(checkpoint, operator, predicate)

    def search(self, batch: int) -> set[StoreId]:
        """Return the stores that may have the keys at a batch."""
        versions = self.checkpoint.stores(batch, self._operator)
        return {version.store for version in versions if self._search.read(batch, version)}

    def erase(self, batch: int, memory: int) -> _Rewrite | None:
        """Write the stores anew that may have the keys at a batch; return None if there are none."""
        if not (stores := self.search(batch)):
            return None
        without = _Without(self._predicate, self.checkpoint.operator(self._operator, batch), stores)
        self.places[batch].write(without.apply, memory, keeps_entry=False)
        return _Rewrite(len(stores), without.counts.removed)

    def collect(self, checkpoints_dir: str | None) -> int:
        """Delete what no batch needs, durably, and return the number of files."""
        # Of an erasure that was killed, and has written what nothing names.
        release_in_place(self.checkpoint)
        # The second collection removes what only metadata needed that the first one has removed.
        removed = [
            orphan.url
            for _ in range(2)
            for orphan in gc(
                self.checkpoint.url, stopped=True, purge=True, checkpoints_dir=checkpoints_dir
            ).orphans
        ]
        files, _ = self.checkpoint.open_state(fsync=True)
        parents = {parent_of(open_file_system(url)[1]) for url in removed}
        # The directory of a version is removed, too.
        for directory in sorted(parents | set(map(parent_of, parents))):
            with failing_to("sync", files, directory), contextlib.suppress(FileNotFoundError):
                files.sync_directory(directory)
        return len(removed)


def _location_of(
    savepoint: Savepoint, query: QueryCheckpoint, operator: int, predicate: Predicate
) -> _Location:
    """Return the location of a savepoint of a query if keys can be erased from it; change nothing."""
    if savepoint.kind == "pointer":
        raise OptionError(
            f"{savepoint} has its state in the checkpoint, {savepoint.state_url}, and retains it there with "
            "the key. Dispose of it, then erase the key; to keep one, take a canonical savepoint of it "
            "before, and pass that. Nothing was changed."
        )
    if savepoint.query_id != query.query_id:
        raise OptionError(
            f"{savepoint} is of the query {savepoint.query_id}, but {query.url} is the checkpoint of the "
            f"query {query.query_id}. Pass savepoints of one query. If the other query has no checkpoint any "
            "more, restore the savepoint, erase the key from what was restored, take a savepoint of that, "
            "and dispose of this one. Nothing was changed."
        )
    checkpoint = QueryCheckpoint(savepoint.path, fsync=True)
    require_own_files(savepoint, checkpoint)
    if later := [batch for batch in checkpoint.logged_batches() if batch > savepoint.batch]:
        raise QueryRunningError(
            f"a query was started with {savepoint.path} as its checkpointLocation: it has batch {later[-1]}, "
            f"and the savepoint is of batch {savepoint.batch}. Stop the query, clone the checkpoint to a "
            "location of its own, erase the key from that, and delete the directory by hand. Nothing was "
            "changed."
        )
    if needed := holders_of(checkpoint):
        raise IllegalStateError(
            f"{savepoint} is needed by {needed}, with the key. Dispose of those first; if a holder does not "
            "exist, remove its hold with spark-statestore holds --remove. Nothing was changed."
        )
    place = InPlaceWrite(checkpoint, savepoint.batch, operator, ActivityCheck(checkpoint), is_savepoint=True)
    if not place.has_ids:
        raise OptionError(
            f"{savepoint} has checkpoint format v1, in which its stores cannot change at once. Copy it "
            "without the key (spark-statestore state delete SAVEPOINT NEW_CHECKPOINT --where ...), take a "
            "savepoint of the copy, and dispose of this one. Nothing was changed."
        )
    location = _Location(checkpoint, operator, predicate, {savepoint.batch: place})
    # Raises for a condition on other columns, and for a damaged file.
    location.search(savepoint.batch)
    return location


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
        return replace(content, rows=lambda: self._remaining_rows(content))

    def _remaining_rows(self, content: StoreSnapshot) -> Iterator[tuple[str, pa.Table]]:
        keys = keys_of_families(self._operator, content.store, content.column_families)
        for name, table in content.rows():
            matches = is_match(self._predicate, table, keys[name])
            self.counts.add(removed=pc.sum(matches).as_py() or 0)
            yield name, table.filter(pc.invert(matches))
