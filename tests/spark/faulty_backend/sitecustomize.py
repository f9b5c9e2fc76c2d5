"""Interpreter start-up hook of a backend whose system calls fail, see `tests.spark.backend_faults`."""

from __future__ import annotations

import os

from tests.spark.backend_faults import strike_in_this_process

strike_in_this_process(os.environ["BACKEND_FAULTS"])
