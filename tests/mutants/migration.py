"""Mutants of state that is taken to a changed query."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

__all__ = ["MUTANTS"]

_WRITING: Final = "spark_statestore/writing"
_UNIT: Final = "tests/unit/writing/test_migrate.py"
_COLUMNS: Final = "tests/unit/writing/test_columns.py"
_SPARK: Final = "tests/spark/test_migrate.py"

MUTANTS: Final = (
    Mutant(
        "migrate-average-by-name",
        f"{_WRITING}/buffers.py",
        'case "sum", "count" if pa.types.is_decimal(field.type):',
        'case "sum", "mean" if pa.types.is_decimal(field.type):',
        (f"{_COLUMNS}::test_buffers_are_matched_by_kind_and_not_by_name",),
        "The count of an average does not begin with a count of rows.",
    ),
    Mutant(
        "migrate-average-or-sum",
        f"{_WRITING}/buffers.py",
        "if old.get(_EITHER) or new.get(_EITHER):",
        "if old.get(_EITHER) and new.get(_EITHER):",
        (f"{_COLUMNS}::test_buffers_that_cannot_be_told_are_problems",),
        "A sum and a count that may be an average are not told by their order.",
    ),
    Mutant(
        "migrate-several-of-a-kind",
        f"{_WRITING}/buffers.py",
        "elif len(origins) == len(buffers):",
        "elif origins:",
        (f"{_COLUMNS}::test_buffers_that_cannot_be_told_are_problems",),
        "Of several functions of a kind, none is taken for another.",
    ),
    Mutant(
        "migrate-unknown-functions",
        f"{_WRITING}/buffers.py",
        "if kind in unknown or buffers[0].beginning is None:",
        "if kind in unknown or (buffers[0].beginning is None and not origins):",
        (f"{_COLUMNS}::test_buffers_that_cannot_be_told_are_problems",),
        "Fields of functions of several unknown fields are not taken for those of another function.",
    ),
    Mutant(
        "migrate-sums-of-another-type",
        f"{_WRITING}/buffers.py",
        "return min(more) < 0 < max(more)",
        "return False",
        (f"{_COLUMNS}::test_buffers_that_cannot_be_told_are_problems",),
        "A sum does not begin anew because its numbers have another type.",
    ),
    Mutant(
        "migrate-join-of-format-4",
        f"{_WRITING}/migrate.py",
        "is_given=state.operator.id in operators,",
        "is_given=True,",
        (f"{_SPARK}::test_join_of_format_4_goes_on_if_it_is_the_same",),
        "An outer join does not return rows that an inner one has joined.",
    ),
    Mutant(
        "migrate-narrower",
        f"{_WRITING}/columns.py",
        "return bool(old == new or new in _WIDER.get(old, ()) or _is_wider_decimal(old, new))",
        "return True",
        (f"{_COLUMNS}::test_decimals_are_widened_if_all_digits_fit",),
        "Only a type that holds all old values is taken without a word.",
    ),
    Mutant(
        "migrate-renamed-fields",
        f"{_WRITING}/columns.py",
        "if candidates and field.origin is None and field.problem is None and path not in self._beginnings",
        "if False",
        (f"{_COLUMNS}::test_new_fields_that_could_be_renamed_ones_are_problems",),
        "A field that may be an old one of another name does not begin with null.",
    ),
    Mutant(
        "migrate-inexact-rows",
        f"{_WRITING}/taken_state.py",
        "_require_exact(batch, family, version.store)",
        "pass",
        (f"{_UNIT}::test_strings_that_are_not_utf_8_are_not_changed",),
        "Rows that decoding changes are refused.",
    ),
    Mutant(
        "migrate-collapsed-keys",
        f"{_WRITING}/taken_state.py",
        "if self.new.operator.name != _OF_KEYS:",
        "if False:",
        (f"{_UNIT}::test_wrong_arguments_leave_nothing",),
        "Several keys with values do not become one.",
    ),
    Mutant(
        "migrate-overlapping-sessions",
        f"{_WRITING}/taken_state.py",
        "follows = numbers[order][1:] == numbers[order][:-1]",
        "follows = numbers[order][1:] < numbers[order][:-1]",
        (f"{_SPARK}::test_sessions_go_on_unless_they_would_overlap",),
        "Sessions of a new key that overlap are refused.",
    ),
    Mutant(
        "migrate-lost-operator",
        f"{_WRITING}/migrate.py",
        "if keys and (state.operator.id, None) not in dropped_names:",
        "if False:",
        (f"{_UNIT}::test_wrong_arguments_leave_nothing",),
        "State that no operator takes is not lost silently.",
    ),
    Mutant(
        "migrate-lost-variable",
        f"{_WRITING}/state_plans.py",
        "if variable_of(name) not in dropped:",
        "if False:",
        (f"{_UNIT}::test_wrong_arguments_leave_nothing",),
        "A variable that no new one takes is not lost silently.",
    ),
    Mutant(
        "migrate-dropped-expiries",
        f"{_WRITING}/state_plans.py",
        "if before is not None and variable_of(before.name) in dropped:",
        "if before is not None and before.name in dropped:",
        (f"{_SPARK}::test_variables_are_dropped_with_what_belongs_to_them",),
        "A variable is dropped with the expiries of its values.",
    ),
    Mutant(
        "migrate-timeouts",
        f"{_WRITING}/state_plans.py",
        '_NO_TIME: Final = {"value.timeoutTimestamp": -1}',
        '_NO_TIME: Final = {"value.timeoutTimestamp": 0}',
        (f"{_SPARK}::test_new_timeouts_have_not_passed",),
        "Keys do not expire because the query has timeouts now.",
    ),
    Mutant(
        "migrate-partitions",
        f"{_WRITING}/state_plans.py",
        "if old.partitions != new.partitions:",
        "if False:",
        (f"{_UNIT}::test_state_logs_and_sources_are_the_old_ones",),
        "Rows go to the partitions that the changed query has.",
    ),
    Mutant(
        "migrate-operators-by-order",
        f"{_WRITING}/operator_matches.py",
        "if len(old) == len(new) and all(map(_are_alike, old, new)):",
        "if len(old) == len(new):",
        (f"{_UNIT}::test_operators_are_matched_by_kind_and_key",),
        "Operators are matched by their schemas before their order.",
    ),
    Mutant(
        "migrate-description-of-a-later-batch",
        "spark_statestore/savepoints/copy.py",
        "if self._stateful is not self._source and parts[-1] != METADATA:",
        "if False:",
        (f"{_SPARK}::test_variables_are_renamed",),
        "Spark finds the operators' metadata at the batch of the copy.",
    ),
    Mutant(
        "migrate-watermark",
        f"{_WRITING}/migrate.py",
        "changed = commit.with_watermark(int(watermark))",
        "changed = commit",
        (f"{_UNIT}::test_state_logs_and_sources_are_the_old_ones",),
        "The changed query has the watermark of the old one.",
    ),
    Mutant(
        "migrate-other-topics",
        f"{_WRITING}/migrate.py",
        "return not topics[0].isdisjoint(topics[1])",
        "return True",
        (f"{_UNIT}::test_sources_go_on_where_they_are_alike",),
        "A source does not go on at the offsets of other topics.",
    ),
)
