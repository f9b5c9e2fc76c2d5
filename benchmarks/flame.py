"""Flame graphs as SVG, from samples of stacks."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

Stacks = Counter[tuple[str, ...]]
"""Number of samples of each stack; the outermost frame first."""

_WIDTH = 1200
_ROW = 17
_LETTER = 6.6
_NARROWEST = 0.6


def from_jfr(printed: str, thread: str | None = None) -> Stacks:
    """Return the stacks in the output of ``jfr print --json --events jdk.ExecutionSample,jdk.NativeMethodSample``.

    Parameters
    ----------
    thread
        Only threads whose name starts with this.
    """
    stacks: Stacks = Counter()
    for event in json.loads(printed)["recording"]["events"]:
        values = event["values"]
        name = (values.get("sampledThread") or {}).get("javaName") or ""
        trace = values.get("stackTrace")
        if trace and (thread is None or name.startswith(thread)):
            stacks[tuple(_frame(frame) for frame in reversed(trace["frames"]))] += 1
    return stacks


def from_folded(lines: Iterable[str]) -> Stacks:
    """Return the stacks in lines of frames separated by semicolons, and a count."""
    stacks: Stacks = Counter()
    for line in lines:
        frames, _, count = line.rpartition(" ")
        if frames:
            stacks[tuple(frames.split(";"))] += int(count)
    return stacks


def below(stacks: Stacks, frame: str) -> Stacks:
    """Return the samples in the outermost frame that contains `frame`."""
    inside: Stacks = Counter()
    for stack, count in stacks.items():
        at = next((i for i, name in enumerate(stack) if frame in name), None)
        if at is not None:
            inside[stack[at:]] += count
    return inside


def shares(stacks: Stacks, most: int = 12) -> list[tuple[str, float]]:
    """Return the frames with the most samples of their own, and their share."""
    own: Counter[str] = Counter()
    for stack, count in stacks.items():
        own[stack[-1]] += count
    total = own.total() or 1
    return [(frame, count / total) for frame, count in own.most_common(most)]


def draw(stacks: Stacks, title: str, path: Path) -> None:
    """Draw a flame graph: width is the number of samples, callers are below callees."""
    total = stacks.total()
    root = _tree(stacks)
    depth = _depth(root)
    height = (depth + 2) * _ROW + 12
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            'font-family="monospace" font-size="11">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="6" y="16" font-size="13">{escape(title)} ({total:,} samples)</text>',
    ]
    _boxes(root, 0.0, _WIDTH / total if total else 0.0, height - _ROW - 4, total, parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>", ""]))


def _frame(frame: dict[str, Any]) -> str:
    method = frame["method"]
    kind = method["type"]["name"].rpartition("/")[2].rpartition(".")[2]
    return f"{kind}.{method['name']}"


class _Node:
    __slots__ = ("children", "count")

    def __init__(self) -> None:
        self.count = 0
        self.children: dict[str, _Node] = {}


def _tree(stacks: Stacks) -> _Node:
    root = _Node()
    for stack, count in stacks.items():
        root.count += count
        node = root
        for frame in stack:
            node = node.children.setdefault(frame, _Node())
            node.count += count
    return root


def _depth(node: _Node) -> int:
    return 1 + max(map(_depth, node.children.values()), default=0)


def _boxes(node: _Node, x: float, scale: float, y: int, total: int, parts: list[str]) -> None:
    for frame, child in sorted(node.children.items()):
        width = child.count * scale
        if width >= _NARROWEST:
            share = f"{escape(frame)}, {child.count / total:.1%}"
            # The same frame has the same colour everywhere.
            hue = 10 + zlib.crc32(frame.encode()) % 45
            parts.append(
                f'<g><title>{share}</title><rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 1}" '
                f'fill="hsl({hue},85%,70%)"/>'
            )
            letters = int((width - 4) / _LETTER)
            if letters >= 4:
                label = frame if len(frame) <= letters else frame[: letters - 1] + "…"
                parts.append(f'<text x="{x + 2:.1f}" y="{y + 12}">{escape(label)}</text>')
            parts.append("</g>")
            _boxes(child, x, scale, y - _ROW, total, parts)
        x += width
