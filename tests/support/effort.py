"""Effort of the property-based tests: `make soak` multiplies their examples."""

from __future__ import annotations

import os

EFFORT = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 1
