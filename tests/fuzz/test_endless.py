"""Fuzzing of the readers for FUZZ_SECONDS, an hour by default."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

SECONDS = int(os.environ.get("FUZZ_SECONDS", "3600"))


@pytest.mark.soak
@pytest.mark.timeout(2 * SECONDS + 600)
def test_readers_accept_or_reject_an_hour_of_mutations() -> None:
    fuzzing = [sys.executable, "-m", "tests.fuzz.endless", str(SECONDS)]
    process = subprocess.run(fuzzing, capture_output=True, text=True, cwd=ROOT, check=False)
    assert process.returncode == 0, process.stderr[-4000:]
    print(process.stdout)
    figures = json.loads(process.stdout.splitlines()[-1])
    assert sum(runs for runs in figures.values() if isinstance(runs, int)) > SECONDS
