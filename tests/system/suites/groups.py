"""Spark's suites that face a state store, by operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

_KINDS: Final = ("WithVCF", "WithoutVCF", "V4")

GROUPS: Final[Mapping[str, Sequence[str]]] = {
    "aggregation": (
        "streaming.StreamingAggregationSuite",
        "streaming.StreamingAggregationDistributionSuite",
        "streaming.EventTimeWatermarkSuite",
        "streaming.MultiStatefulOperatorsSuite",
    ),
    "deduplication": (
        "streaming.StreamingDeduplicationSuite",
        "streaming.StreamingDeduplicationWithinWatermarkSuite",
        "streaming.StreamingDeduplicationDistributionSuite",
    ),
    "session windows": (
        "streaming.StreamingSessionWindowSuite",
        "streaming.StreamingSessionWindowDistributionSuite",
    ),
    "groups with state": (
        "streaming.FlatMapGroupsWithStateSuite",
        "streaming.FlatMapGroupsWithStateWithInitialStateSuite",
    ),
    "inner joins": tuple(f"streaming.StreamingInnerJoin{kind}Suite" for kind in _KINDS),
    "outer joins": tuple(f"streaming.StreamingOuterJoin{kind}Suite" for kind in _KINDS),
    "full outer joins": tuple(f"streaming.StreamingFullOuterJoin{kind}Suite" for kind in _KINDS),
    "semi joins": tuple(f"streaming.StreamingLeftSemiJoin{kind}Suite" for kind in _KINDS),
    "variables": (
        "streaming.TransformWithListStateSuite",
        "streaming.TransformWithListStateTTLSuite",
        "streaming.TransformWithMapStateSuite",
    ),
    # Their cases of TTL are those of lists, and a distribution has no state.
    "more of groups and variables": (
        "streaming.FlatMapGroupsWithStateDistributionSuite",
        "streaming.TransformWithMapStateTTLSuite",
        "streaming.TransformWithValueStateTTLSuite",
    ),
    "transformWithState": (
        "streaming.TransformWithStateChainingSuite",
        "streaming.TransformWithStateInitialStateSuite",
        "streaming.TransformWithStateInitialStateSuiteCheckpointV2",
        "streaming.TransformWithStateUnsafeRowSuite",
    ),
    "batches": (
        "streaming.StreamSuite",
        "streaming.StreamingQuerySuite",
        "streaming.TriggerAvailableNowSuite",
        "streaming.StreamingQueryOptimizationCorrectnessSuite",
        "streaming.StreamingSelfUnionSuite",
        "execution.streaming.MicroBatchExecutionSuite",
        "execution.streaming.sources.ForeachBatchSinkSuite",
    ),
}

QUICK: Final = ("groups with state", "variables")
"""Groups that take a few minutes together."""
