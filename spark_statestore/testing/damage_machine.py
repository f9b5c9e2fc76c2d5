"""A state machine of a store whose files are damaged for a while."""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from spark_statestore.errors import CheckpointNotFoundError, CorruptCheckpointError
from spark_statestore.files import open_file_system
from spark_statestore.testing.stores import load
from spark_statestore.testing.version_machine import VersionStoreMachine


class DamagedVersionStoreMachine(VersionStoreMachine):
    """A `VersionStoreMachine` in which each version is read exactly or refused while a file is damaged.

    The files of the store itself are damaged, not those that merge the metadata of several stores.
    """

    @precondition(lambda self: self.timeline)
    @rule(data=st.data(), is_missing=st.booleans())
    def damage(self, data: st.DataObject, is_missing: bool) -> None:
        """Damage one or two files; another instance reads the versions, from other streams if it must."""
        files, _ = open_file_system(self.url)
        # By content, since names are random.
        listed = sorted((status.path for status in files.list_files(self.directory)), key=files.read)
        broken = data.draw(st.sets(st.integers(0, len(listed) - 1), min_size=1, max_size=2)) if listed else ()
        contents = {listed[i]: files.read(listed[i]) for i in broken}
        for path, content in contents.items():
            at = data.draw(st.integers(0, 1 << 16)) % len(content)
            files.delete(path)
            if not is_missing:
                files.create(path, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        fresh = self.new_instance().store
        for name in [*self.timeline.values(), *self.pending]:
            with suppress(CorruptCheckpointError, CheckpointNotFoundError):
                assert load(fresh, name, healed=True) == self.stored[name][0], name
        for name, rows, attempt_id in self.held_versions.values():
            with suppress(CorruptCheckpointError, CheckpointNotFoundError):
                assert load(fresh, name, attempt_id, healed=True) == rows, name
        for path, content in contents.items():
            files.replace(path, content)
