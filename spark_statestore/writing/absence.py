"""Proof that keys are in nothing that a query's stores have in storage."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from spark_statestore.query.parallel import Progress
from spark_statestore.query.savepoint_lookup import open_checkpoint
from spark_statestore.writing.key_search import KeySearch, KeysInStream
from spark_statestore.writing.predicate import predicate_of


@dataclass(frozen=True, slots=True)
class Absence:
    """The result of `verify_absent`.

    Attributes
    ----------
    batches
        The retained batches.
    streams
        Number of streams of all batches, which were read to their end.
    found
        Streams with records of the keys.
    unknown
        URLs of files that no retained batch needs, and messages about damaged ones. What is in them was not
        read. Metadata that is merged with that of other stores has the URL that it would have by itself.
    """

    batches: tuple[int, ...]
    streams: int
    found: tuple[KeysInStream, ...]
    unknown: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if the keys are in no stream, and no other file could have them."""
        return not self.found and not self.unknown


def verify_absent(
    path: str,
    condition: str | pc.Expression,
    *,
    operator: int = 0,
    checkpoints_dir: str | None = None,
    progress: Progress | None = None,
) -> Absence:
    """Search for keys in all that the stores of an operator have in storage.

    Every stream of each retained batch is read, with values that were replaced later, deletions, and all that
    Spark derives. A file that no retained batch needs, such as one of an attempt that was not committed, is
    not read, and reported.

    Parameters
    ----------
    path
        The query's ``checkpointLocation``, or a savepoint.
    condition
        A condition on the column ``key``, as in `write_state`. Its fields are the grouping columns, those of
        ``dropDuplicates``, or those of a join, ``field0`` and so on.
    operator
        Number of the stateful operator; 0 is the last one of the query.
    checkpoints_dir
        The option ``checkpointsDir`` of the query, if it was set.
    progress
        Called with the number of stores done and their total.

    Raises
    ------
    OptionError
        If the condition cannot be evaluated on the keys.
    MissingPackageError
        If it is SQL and DuckDB is not installed.
    RescaleError
        If the operator has state whose keys this release does not know.
    CheckpointNotFoundError
        If there is no such checkpoint or operator.
    CorruptCheckpointError, CheckpointIOError
        If a stream cannot be read.
    """
    checkpoint = open_checkpoint(path, checkpoints_dir=checkpoints_dir)
    checkpoint.require_batch(None)
    batches = checkpoint.batches()
    search = KeySearch(checkpoint, operator, predicate_of(condition))
    versions = [(batch, version) for batch in batches for version in checkpoint.stores(batch, operator)]
    report: Progress = progress or (lambda completed, total: None)
    for completed, (batch, version) in enumerate(versions):
        report(completed, len(versions))
        search.read(batch, version)
    report(len(versions), len(versions))
    damaged = (str(error) for error in checkpoint.merged_files().damaged_files())
    unknown = [*search.unknown(), *damaged]
    return Absence(tuple(batches), search.streams, tuple(search.matches), tuple(unknown))
