"""A store behaves like a dict of versions on S3, served by moto."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from spark_statestore.testing.version_machine import VersionStoreMachine
from tests.support.effort import EFFORT
from tests.system.object_stores.test_s3 import bucket, endpoint, pytestmark  # noqa: F401


@pytest.mark.parametrize("with_ids", [False, True], ids=["v1", "v2"])
def test_version_store_machine_on_s3(bucket: str, with_ids: bool) -> None:  # noqa: F811
    class S3Machine(VersionStoreMachine):
        def make_directory(self) -> str:
            return f"s3://{bucket}/{uuid.uuid4()}/0/3"

        def remove_directory(self) -> None:
            pass

    run_state_machine_as_test(
        type("S3Machine", (S3Machine,), {"with_ids": with_ids}),
        settings=settings(max_examples=4 * EFFORT, stateful_step_count=25),
    )
