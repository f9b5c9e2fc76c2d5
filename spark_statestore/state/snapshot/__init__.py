"""Snapshots: how they are taken, cancelled, and what they give."""

from spark_statestore.state.snapshot.closeables import Closeable, CloseableRegistry
from spark_statestore.state.snapshot.future import AsyncSnapshotCallable, DoneFuture, SnapshotFuture
from spark_statestore.state.snapshot.result import SnapshotResult
from spark_statestore.state.snapshot.strategy import (
    AbstractSnapshotStrategy,
    Snapshotable,
    SnapshotStrategy,
)
from spark_statestore.state.snapshot.streams import CancellableStream

__all__ = [
    "AbstractSnapshotStrategy",
    "AsyncSnapshotCallable",
    "CancellableStream",
    "Closeable",
    "CloseableRegistry",
    "DoneFuture",
    "SnapshotFuture",
    "SnapshotResult",
    "SnapshotStrategy",
    "Snapshotable",
]
