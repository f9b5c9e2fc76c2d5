"""Size of the state that is converted, and the space for it on a local target."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import zipfile
import zlib
from typing import Any, Final

from spark_statestore.conversion.plan import Source
from spark_statestore.conversion.providers import is_own
from spark_statestore.errors import ConversionError, CorruptCheckpointError, restore_from_backup
from spark_statestore.files import open_file_system, split_url
from spark_statestore.files.failures import failing_to
from spark_statestore.formats.metadata import parse_json
from spark_statestore.query.query_checkpoint import STATE
from spark_statestore.query.summary import summarize

# Bytes of the list of tables in a snapshot; one table is about 100 of them, and 64 MiB of state.
_LARGEST_METADATA: Final = 1 << 24

# A version of HDFSBackedStateStoreProvider is the newest snapshot and the deltas behind it.
_HDFS_FILE: Final = re.compile(r"(\d+)\.(delta|snapshot)")

# A version of RocksDBStateStoreProvider is an archive that names tables, and perhaps change logs behind it.
_ROCKSDB_FILE: Final = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(zip|changelog)")


def state_bytes(source: Source) -> int | None:
    """Return the size of the files with the state of the batch; None if it is unknown."""
    if is_own(source.provider):
        return sum(summary.bytes for summary in summarize(source.checkpoint, source.batch))
    files = source.checkpoint.files
    state = source.checkpoint.path(STATE)
    files_below: dict[str, dict[str, int]] = {}
    with failing_to("list", files, state):
        for status in files.list_files(state):
            directory, _, name = status.path.rpartition("/")
            files_below.setdefault(directory, {})[name] = status.size
    total = 0
    for directory, sizes in files_below.items():
        for pattern, full in ((_HDFS_FILE, "snapshot"), (_ROCKSDB_FILE, "zip")):
            versions = [
                (int(match[1]), match[2], name) for name in sizes if (match := pattern.fullmatch(name))
            ]
            versions = [version for version in versions if version[0] <= source.batch + 1]
            base = max((version for version in versions if version[1] == full), default=(0, full, None))
            total += sum(sizes[name] for number, kind, name in versions if number > base[0] and kind != full)
            if base[2] is not None:
                total += sizes[base[2]]
            if base[2] is not None and full == "zip":
                path = f"{directory}/{base[2]}"
                with failing_to("read", files, path):
                    total += _table_bytes(files.read(path), files.url(path))
    return total


def require_space(target: str, size: int | None) -> None:
    """Raise if a local target has less space than the state takes at the source."""
    if size is None or split_url(target)[0] != "file":
        return
    directory = open_file_system(target)[1]
    while not os.path.isdir(directory):
        directory = os.path.dirname(directory)
    free = shutil.disk_usage(directory).free
    if free < size:
        raise ConversionError(
            f"the state takes {size} bytes, but {directory} has {free} bytes free. Free space there, or use "
            "another target; "
            "nothing was changed."
        )


def _table_bytes(archive: bytes, where: str) -> int:
    """Return the size of the tables that a RocksDB snapshot names; 0 if its metadata has another form."""
    metadata = b""
    unreadable = contextlib.suppress(zipfile.BadZipFile, KeyError, ValueError, zlib.error)
    with unreadable, zipfile.ZipFile(io.BytesIO(archive)) as files:
        info = files.getinfo("metadata")
        # Other methods, which Spark does not use, allocate as much memory as an archive says.
        if info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with files.open(info) as file:
                metadata = file.read(_LARGEST_METADATA + 1)
    if len(metadata) > _LARGEST_METADATA:
        raise CorruptCheckpointError(
            f"the file metadata in {where} is more than {_LARGEST_METADATA} bytes, which no list of "
            "RocksDB's tables is. " + restore_from_backup("the archive", "use an earlier batch")
        )
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
        node: dict[str, Any] = parse_json(metadata.partition(b"\n")[2])
        return sum(int(table["sizeBytes"]) for table in node.get("sstFiles", ()))
    return 0
