"""Mutants of state that moves between executors, and of loads that take later changes alone."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["PYTHON", "SCALA"]

_LINEAGE: Final = "spark_statestore/store/lineage.py"
_LINEAGES: Final = "tests/unit/store/test_lineage.py"
_SHIM: Final = "jvm-shim/src/main/scala/org/apache/spark/sql/statestore"
_LATER: Final = "tests/spark/test_later_changes.py"
_MOVES: Final = "tests/spark/test_partition_moves.py"
_CLUSTER: Final = "tests/spark/test_partition_moves.py::test_state_moves_to_executors_that_join"

PYTHON: Final = (
    Mutant(
        "later-changes-of-another-attempt",
        _LINEAGE,
        "commit.name.version == version + 1 and commit.metadata.parent_attempt_id == attempt_id",
        "commit.name.version == version + 1",
        (f"{_LINEAGES}::test_streams_since_another_attempt_or_a_distant_version_are_none",),
        "Changes are applied to the attempt alone that they build on.",
    ),
)

SCALA: Final = (
    Mutant(
        "later-changes-to-a-family-that-was-removed",
        f"{_SHIM}/provider/StateLoader.scala",
        "if (familyKeys.toSet != state.families.map(family => (family.name, family.createdAtVersion)).toSet)",
        "if (familyKeys.isEmpty)",
        (f"{_LATER}::test_family_that_was_created_anew_is_not_the_one_in_memory",),
        "Changes are not applied to the rows of a family that was removed.",
    ),
    Mutant(
        "whole-state-after-each-move",
        f"{_SHIM}/provider/StateLoader.scala",
        "val earlierId = earlier.map(state => (state.newest.version, state.newest.stored.get.attemptId))",
        "val earlierId = None",
        (f"{_LATER}::test_changes_of_later_versions_alone_are_loaded",),
        "A state that returns to an executor costs what has changed since.",
    ),
    Mutant(
        "returned-state-is-not-compacted",
        f"{_SHIM}/CheckpointStateStoreProvider.scala",
        "if (earlier.exists(_ eq loaded) && loaded.compactIfWanted()) counters.compactions += 1",
        "if (earlier.contains(null) && loaded.compactIfWanted()) counters.compactions += 1",
        (f"{_LATER}::test_state_that_always_returns_is_compacted",),
        "The memory of a state that always returns is bounded.",
    ),
    Mutant(
        "moved-state-is-not-used",
        f"{_SHIM}/CheckpointStateStoreProvider.scala",
        "private def adoptPrepared(): Unit = PreparedStates.take(id, kind.run).foreach { prepared =>",
        'private def adoptPrepared(): Unit = PreparedStates.take(id, "").foreach { prepared =>',
        (_CLUSTER,),
        "A task on a new executor finds the state that was loaded before.",
    ),
    Mutant(
        "ids-of-another-store-of-a-join",
        f"{_SHIM}/driver/Rebalancer.scala",
        "def indexOf(name: String): Int = math.max(0, names.indexOf(name))",
        "def indexOf(name: String): Int = math.min(0, names.indexOf(name))",
        (_CLUSTER,),
        "All stores of a join move.",
    ),
    Mutant(
        "rebalance-is-ignored",
        f"{_SHIM}/provider/BackendOptions.scala",
        '!get("rebalance").contains("false")',
        '!get("rebalance").contains("no")',
        (_CLUSTER,),
        "State stays where it is with rebalance=false.",
    ),
    Mutant(
        "all-partitions-move-at-once",
        f"{_SHIM}/driver/PartitionMoves.scala",
        "from != null && moves.size - gone < most && partitionsOf(from).size - partitionsOf(least).size > 1",
        "from != null && partitionsOf(from).size - partitionsOf(least).size > 1",
        (f"{_MOVES}::test_moves_are_bounded_and_partitions_that_moved_stay",),
        "A bounded part of the state is on the move.",
    ),
    Mutant(
        "state-moves-for-little",
        f"{_SHIM}/driver/PartitionMoves.scala",
        "final val Tolerance = 0.2",
        "final val Tolerance = 0.0",
        (f"{_MOVES}::test_nothing_moves_without_need",),
        "State does not move for a small difference.",
    ),
)
