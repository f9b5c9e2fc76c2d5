"""File systems: the one interface that checkpoint storage writes through, and who implements it."""

from spark_statestore.checkpoint.files.base import FileOutput, FileStatus, FileSystem, join, parent_of
from spark_statestore.checkpoint.files.local import LocalFileSystem
from spark_statestore.checkpoint.files.memory import MemoryFileSystem
from spark_statestore.checkpoint.files.remote import FsspecFileSystem
from spark_statestore.checkpoint.files.urls import check_url, open_file_system, split_url

__all__ = [
    "FileOutput",
    "FileStatus",
    "FileSystem",
    "FsspecFileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "check_url",
    "join",
    "open_file_system",
    "parent_of",
    "split_url",
]
