"""A new output directory of Spark's file sink, for a query that resumes after a batch."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from spark_statestore.errors import CheckpointExistsError, OptionError
from spark_statestore.files import join, open_file_system
from spark_statestore.files.failures import failing_to

SINK_LOG: Final = "_spark_metadata"
"""Directory of the file sink's log, in its output."""

_NO_FILES: Final = b"v1"
"""An entry of the log for a batch without files."""


def begin_output(output: str, batch: int, *, compact_interval: int = 10) -> None:
    """Prepare a new output directory of Spark's file sink for a query that resumes after a batch.

    The sink has a log with an entry for each batch, by the batch's number. It skips batches that are in the
    log, so that a query that was rolled back, restored or cloned needs a new output. In an empty directory
    the query ends at the log's next compaction, as entries of earlier batches are missing, and Spark cannot
    read the output. This writes these entries, without files.

    The call can be repeated with the same numbers until the query has started.

    Parameters
    ----------
    output
        URL of the directory, which may not exist yet.
    batch
        The batch after which the query resumes: `restore` and `clone` return it, and the results of
        `write_state` and `bootstrap` have it.
    compact_interval
        The setting ``spark.sql.streaming.fileSink.log.compactInterval`` of the query.

    Raises
    ------
    CheckpointExistsError
        If there are files.
    OptionError
        If a number is too small.
    StorageError
        If a file cannot be read or written.
    """
    for name, number, least in (("batch", batch, 0), ("compact_interval", compact_interval, 1)):
        if number < least:
            raise OptionError(f"the {name} is {number}, but it must be at least {least}.")
    files, root = open_file_system(output, fsync=True)
    root = root.rstrip("/")
    directory = join(root, SINK_LOG)
    # A compacted entry stands for all before it.
    compacted = (batch + 1) // compact_interval * compact_interval - 1
    names = [f"{compacted}.compact"] if compacted >= 0 else []
    names += map(str, range(compacted + 1, batch + 1))
    with failing_to("read", files, root):
        for status in files.list_files(root):
            below, _, name = status.path.rpartition("/")
            is_own = below == directory and name in names and files.read(status.path) == _NO_FILES
            # Spark ignores hidden files, such as those that a killed writer leaves.
            if not is_own and not name.startswith("."):
                raise CheckpointExistsError(
                    f"the output {output} is not empty: it has {status.path[len(root) + 1 :]}, of a query, a "
                    "batch job or a call with another batch. Spark would not read files that are there. Use "
                    "another directory. The file was not changed."
                )
    for name in names:
        path = join(directory, name)
        with failing_to("write", files, path):
            files.make_directory(directory)
            with suppress(FileExistsError):
                files.create(path, _NO_FILES)
