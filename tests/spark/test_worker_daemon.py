"""Python workers whose loaded modules are not part of garbage collections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.counting import Program


@pytest.mark.spark
@pytest.mark.oldest
def test_worker_daemon_freezes_modules_and_collects_garbage_of_tasks(built: Path) -> None:
    with Program("worker_daemon") as program:
        # pandas alone has more objects than that.
        assert program.next("frozen") > 20_000
        assert program.next("cycle") == [True, False]
        program.end()
