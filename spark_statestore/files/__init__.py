"""File systems: the interface that checkpoint storage uses, and its implementations."""

from spark_statestore.files.base import FileOutput, FileStatus, FileSystem, join, parent_of
from spark_statestore.files.local import LocalFileSystem
from spark_statestore.files.memory import MemoryFileSystem
from spark_statestore.files.remote import FsspecFileSystem
from spark_statestore.files.urls import check_directories, check_url, open_file_system, split_url

__all__ = [
    "FileOutput",
    "FileStatus",
    "FileSystem",
    "FsspecFileSystem",
    "LocalFileSystem",
    "MemoryFileSystem",
    "check_directories",
    "check_url",
    "join",
    "open_file_system",
    "parent_of",
    "split_url",
]
