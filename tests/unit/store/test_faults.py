"""Faults at every storage call of every operation of a store, on a simulated object store and disk."""

from __future__ import annotations

import zlib

import pytest

from tests.unit.store.fault_bench import MODELS, OPERATIONS, every_operation, some

STRIDES = {
    ("disk", False): 11,
    ("disk", True): 7,
    ("objects", True): 7,
}
"""Distance of the faults that the second tier injects; `test_faults_local` injects them on local files."""


@pytest.mark.parametrize(
    ("model", "survives"),
    [
        pytest.param("objects", False, id="objects"),
        pytest.param("objects", True, id="objects-and-go-on", marks=pytest.mark.slow),
        pytest.param("disk", False, id="disk", marks=pytest.mark.slow),
        pytest.param("disk", True, id="disk-and-go-on", marks=pytest.mark.slow),
        pytest.param("disk-with-empty-files", False, id="disk-with-empty-files", marks=pytest.mark.slow),
        pytest.param("unsynced-disk", True, id="unsynced-disk-and-go-on"),
    ],
)
@every_operation
def test_interrupted_operation_damages_no_version_and_can_be_retried(
    operation: str, model: str, survives: bool
) -> None:
    faults = list(OPERATIONS[operation].faults(MODELS[model], survives=survives))
    assert faults
    stride = STRIDES.get((model, survives), 1)
    # Operations with the same calls have other ones of their faults.
    first = zlib.crc32(operation.encode()) % min(stride, len(faults))
    for _, fault in some(faults, stride, first):
        OPERATIONS[operation].run(MODELS[model], fault, survives=survives)
