"""A checkpoint or a snapshot of one version in the making."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_statestore._version import __version__
from spark_statestore.checkpoint import chain
from spark_statestore.checkpoint.metadata.format import INLINE_STATE_OFFSET, InlineState
from spark_statestore.checkpoint.metadata.store import CheckpointMetadata, NamedState, encode_metadata
from spark_statestore.checkpoint.streams import (
    CheckpointedStateScope,
    CheckpointStateOutputStream,
    FsCheckpointStateOutputStream,
)
from spark_statestore.state.changes import ChangeStreamWriter
from spark_statestore.state.handles import (
    IncrementalStateHandle,
    OperatorStreamStateHandle,
    SegmentFileStateHandle,
)
from spark_statestore.state.handles.codec import encode_handle

if TYPE_CHECKING:
    from spark_statestore.checkpoint.storage import CheckpointName, CheckpointStorageLocation
    from spark_statestore.checkpoint.versions import VersionStore

__all__ = ["Committed", "PendingCheckpoint", "PendingSnapshot"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Committed:
    """A version that was just published.

    Attributes
    ----------
    handle
        Its streams.
    encoded_handle
        The handle as it travels and is stored.
    bytes_written, objects_written
        What went to storage for it.
    metadata
        Its metadata, if that is in no file: the version exists as long as somebody keeps this.
    """

    handle: IncrementalStateHandle
    encoded_handle: bytes
    bytes_written: int
    objects_written: int
    metadata: bytes | None = None


class PendingSnapshot:
    """A full snapshot in the making: write its rows, then finish or abandon it.

    Parameters
    ----------
    version
        The version.
    states
        Its column families. They may be described anew, with rows counted meanwhile, until it is published.
    stream
        Where it goes.
    codec
        Compresses it.
    """

    def __init__(
        self,
        version: int,
        states: tuple[NamedState, ...],
        stream: CheckpointStateOutputStream,
        codec: str | None,
    ) -> None:
        self._version = version
        self.states = states
        self._stream = stream
        self._writer = ChangeStreamWriter(stream, codec)

    def write(self, state: int, message: pa.Buffer) -> None:
        """Append a batch of changes.

        Parameters
        ----------
        state
            Which of the states it belongs to, by position.
        message
            An Arrow record batch message with the schema of changes.
        """
        self._writer.write(self.states[state].name, message)

    def write_sealed(self, state: int, message: pa.Buffer, checksum: int) -> None:
        """Append a batch of changes that is compressed already, and whose CRC-32 is known."""
        self._writer.write_sealed(self.states[state].name, message, checksum)

    def abandon(self) -> None:
        """Remove what was written."""
        self._stream.close()

    def finish(self) -> IncrementalStateHandle:
        """Finish it, as a file of its own: until a commit takes it, no metadata could hold it."""
        if self._stream.get_pos() and isinstance(self._stream, FsCheckpointStateOutputStream):
            self._stream.flush_to_file()
        return chain.start(self._version, self._writer.finish())


class PendingCheckpoint(PendingSnapshot):
    """A checkpoint in the making: write its changes, then publish it or abandon it.

    Parameters
    ----------
    versions
        The store's versions.
    location
        The place of the checkpoint.
    name, attempt, states
        See `VersionStore.begin`.
    codec
        Compresses it.
    """

    def __init__(
        self,
        versions: VersionStore,
        location: CheckpointStorageLocation,
        name: CheckpointName,
        attempt: str,
        states: tuple[NamedState, ...],
        codec: str | None,
    ) -> None:
        self._versions = versions
        self._location = location
        self._name = name
        self._attempt = attempt
        stream = location.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED)
        super().__init__(name.version, states, stream, codec)

    def abandon(self) -> None:
        super().abandon()
        self._versions.forget_directory(self._name)

    def publish(
        self,
        parent: IncrementalStateHandle | None,
        parent_attempt: str | None,
        base: IncrementalStateHandle | None,
        oldest_base: int = 0,
    ) -> Committed:
        """Publish the version.

        Parameters
        ----------
        parent
            The version that the changes apply to; None if they are a full snapshot.
        parent_attempt
            The attempt that wrote it.
        base
            A full snapshot of an earlier version to start from, see `PendingSnapshot.finish`.
        oldest_base
            The oldest version that other instances keep while this one is not accepted. No metadata names a
            snapshot yet, so one of an older version may be discarded by them at any moment: it is not used.

        Raises
        ------
        CheckpointExistsError
            If another attempt at the version was accepted.
        CheckpointIOError
            If it cannot be published.
        """
        try:
            return self._publish(parent, parent_attempt, base, oldest_base)
        except BaseException:
            # Whether metadata names the streams already is not known here.
            self._versions.expect_strays()
            raise

    def _publish(
        self,
        parent: IncrementalStateHandle | None,
        parent_attempt: str | None,
        base: IncrementalStateHandle | None,
        oldest_base: int,
    ) -> Committed:
        stream, inline = self._finish_state()
        objects = 0
        file_bytes = 0
        if stream is not None and not inline.size:
            objects = 1
            file_bytes = stream.state_size
        version = self._version
        handle = chain.start(version, stream) if parent is None else chain.extend(parent, version, stream)
        if base is not None:
            handle = self._rebase(handle, base, oldest_base)
        metadata = CheckpointMetadata(
            store=self._versions.store,
            version=version,
            attempt=self._attempt,
            parent_attempt=parent_attempt,
            created_ms=time.time_ns() // 1_000_000,
            written_by=__version__,
            states=self.states,
            handle=handle,
        )
        encoded_handle = encode_handle(handle, self._versions.context)
        encoded = encode_metadata(metadata, inline, encoded_handle)
        written, kept = self._versions.publish(self._location, self._name, self._attempt, encoded)
        self._versions.note(self._name, handle, self._attempt, encoded_handle)
        return Committed(handle, encoded_handle, encoded.size + file_bytes, objects + written, kept)

    def _rebase(
        self, handle: IncrementalStateHandle, base: IncrementalStateHandle, oldest: int
    ) -> IncrementalStateHandle:
        if base.version < oldest:
            _logger.warning(
                "a snapshot of version %d of %s took so long that it comes too late for version %d: other executors "
                "keep what is of version %d on. It is not used. Raise "
                "spark.sql.streaming.stateStore.backend.numRetained.",
                base.version, self._versions.store, self._version, oldest,
            )  # fmt: skip
        elif base.version > handle.base_version and self._versions.holds(base):
            return chain.rebase(handle, base)
        # A snapshot in the background can be overtaken by a commit of everything.
        self._versions.expect_strays()
        return handle

    def _finish_state(self) -> tuple[OperatorStreamStateHandle | None, InlineState]:
        """Finish the stream; what needs no file goes into the metadata."""
        if (in_memory := self._stream.close_if_in_memory()) is not None:
            parts, checksum = in_memory
            inline = InlineState(parts, sum(map(len, parts)), checksum)
        else:
            stream = self._writer.finish()
            data = None if stream is None else stream.as_bytes_if_in_memory()
            if data is None:
                return stream, InlineState()
            inline = InlineState.of(data)
        segment = SegmentFileStateHandle(
            self._versions.files,
            self._versions.metadata_path(self._name),
            INLINE_STATE_OFFSET,
            inline.size,
            self._attempt,
            inline.checksum,
        )
        return self._writer.in_stream(segment), inline
