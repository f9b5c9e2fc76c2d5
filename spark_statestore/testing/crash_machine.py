"""A state machine that compares the versions of a store with plain dicts under storage faults and crashes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import rule

from spark_statestore.errors import StateStoreError
from spark_statestore.testing.faults import FaultInjectingFileSystem
from spark_statestore.testing.faults_plan import CrashedError, Fault, FaultKind
from spark_statestore.testing.version_machine import VersionStoreMachine

T = TypeVar("T")

_kinds: st.SearchStrategy[FaultKind] = st.sampled_from(["fail", "fail_after", "tear", "lose_unsynced"])


class CrashingVersionStoreMachine(VersionStoreMachine):
    """A `VersionStoreMachine` whose operations are interrupted at any of their storage calls.

    A crash replaces all instances. A failed operation may have taken effect or not; in both cases all other
    versions must stay intact.
    """

    def make_file_system(self) -> FaultInjectingFileSystem:
        """Return the file system for one run."""
        return FaultInjectingFileSystem()

    def make_directory(self) -> str:
        self.fs = self.make_file_system()
        self.fault: Fault | None = None
        return self.fs.url(f"{self.store.operator}/{self.store.partition}")

    def remove_directory(self) -> None:
        self.fs.restart()

    @rule(kind=_kinds, at=st.integers(1, 12))
    def inject_fault(self, kind: FaultKind, at: int) -> None:
        """Interrupt the next operation at a storage call, if it makes so many."""
        self.fault = Fault(kind, at)

    def perform(self, operation: Callable[[], T]) -> T | None:
        fault, self.fault = self.fault, None
        if fault is None:
            return operation()
        self.fs.inject(fault)
        try:
            return operation()
        except StateStoreError:
            return None
        except CrashedError:
            self.fs.restart()
            self.merged = {}
            self.instances = [self.new_executor()]
            return None
        finally:
            self.fs.inject()
