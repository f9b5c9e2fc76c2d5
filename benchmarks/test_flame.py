"""Flame graphs have a box for each frame, as wide as its number of samples."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks import flame

STACKS = flame.from_folded(["run;read 3", "run;write;sync 1", "wait 4", ""])


def frame(kind: str, name: str) -> dict[str, object]:
    return {"method": {"type": {"name": kind}, "name": name}}


def test_flight_recorder_stacks_start_with_the_outermost_frame():
    trace = {"frames": [frame("org/apache/Log", "append"), frame("java.lang.Thread", "run")]}
    events = [
        {"values": {"sampledThread": {"javaName": name}, "stackTrace": trace}} for name in ("main", "other")
    ]
    printed = json.dumps({"recording": {"events": events}})
    assert flame.from_jfr(printed, "main") == {("Thread.run", "Log.append"): 1}
    assert flame.from_jfr(printed).total() == 2


def test_within_selects_the_stacks_of_a_frame():
    assert flame.below(STACKS, "run") == {("run", "read"): 3, ("run", "write", "sync"): 1}
    assert flame.shares(flame.below(STACKS, "run")) == [("read", 0.75), ("sync", 0.25)]


def test_box_width_is_proportional_to_samples(tmp_path: Path):
    path = tmp_path / "images" / "graph.svg"
    flame.draw(STACKS, "a < b", path)
    boxes = re.findall(r'<title>(.+), .+</title><rect x="(.+?)" y="(.+?)" width="(.+?)"', path.read_text())
    widths = {name: float(width) for name, _, _, width in boxes}
    assert widths == {"run": 600, "read": 450, "write": 150, "sync": 150, "wait": 600}
    heights = {name: float(y) for name, _, y, _ in boxes}
    assert heights["sync"] < heights["write"] == heights["read"] < heights["run"]
    assert "a &lt; b" in path.read_text()
