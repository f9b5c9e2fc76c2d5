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
    done = subprocess.run(fuzzing, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    print(done.stdout)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert sum(runs for runs in figures.values() if isinstance(runs, int)) > SECONDS
