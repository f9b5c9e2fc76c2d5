"""Counters of the generated cases that tests have run.

``FIGURES=<file> make test`` makes every test process append to that file, and ``python -m
tests.support.figures <file>`` sums it up.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections import Counter
from pathlib import Path

__all__ = ["count"]

_counts: Counter[str] = Counter()


def count(case: str, number: int = 1) -> None:
    _counts[case] += number


@atexit.register
def _note() -> None:
    if (path := os.environ.get("FIGURES")) and _counts:
        with open(path, "a") as file:
            file.write(json.dumps(_counts) + "\n")


if __name__ == "__main__":
    totals: Counter[str] = Counter()
    for line in Path(sys.argv[1]).read_text().splitlines():
        totals.update(json.loads(line))
    for case, number in sorted(totals.items()):
        print(f"{number:9,}  {case}")
