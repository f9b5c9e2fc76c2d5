"""Plots by batch: size and rows of the state, and times."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from spark_statestore.errors import MissingPackageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


def require_matplotlib(user: str) -> None:
    """Raise `MissingPackageError` if matplotlib, which `user` needs, cannot be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"{user} needs {error.name}: pip install 'spark-statestore[plot]'"
        ) from error


def image_of(figure: Figure, description: str) -> str:
    """Return a figure as an image element of HTML, which has the picture in itself."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    image = base64.b64encode(file.getvalue()).decode()
    return f'<img alt="{description}" src="data:image/png;base64,{image}">'


def draw_sizes(
    axes: Axes, title: str, batches: Sequence[int], sizes: Sequence[int], rows: Sequence[int]
) -> None:
    """Draw the state's size and, with an axis of their own, its rows."""
    divisor, name = unit(max(sizes))
    lines = axes.plot(batches, [size / divisor for size in sizes], marker=".", label="size")
    rows_axes = axes.twinx()
    lines += rows_axes.plot(batches, rows, color="tab:orange", marker=".", linestyle=":", label="rows")
    axes.set(title=title, xlabel="batch", ylabel=name)
    rows_axes.set(ylabel="rows")
    _legend_below(axes, lines)
    _from_zero(axes, rows_axes)
    axes.locator_params(axis="x", integer=True)


def draw_times(
    axes: Axes, title: str, batches: Sequence[int], milliseconds: Mapping[str, Sequence[int]]
) -> None:
    """Draw a line for each kind of time, the longest first; few much longer ones do not set the scale."""
    lines: list[Line2D] = []
    for label, values in milliseconds.items():
        lines += axes.plot(batches, [value / 1000 for value in values], marker=".", label=label)
    axes.set(title=title, xlabel="batch", ylabel="seconds")
    _from_zero(axes)
    longest = [value / 1000 for value in next(iter(milliseconds.values()))]
    if (limit := cut_off(longest)) is not None:
        axes.set_ylim(top=limit * 1.25)
        lines += _mark_cut_off(
            axes,
            [(batch, value) for batch, value in zip(batches, longest, strict=True) if value > limit * 1.25],
        )
    _legend_below(axes, lines)
    axes.locator_params(axis="x", integer=True)


def cut_off(values: Sequence[float]) -> float | None:
    """Return the value at which to end an axis so that a few much larger ones do not set its scale.

    It is the largest value without a twentieth of them, at least one; None if the largest of all is less than
    three times that.
    """
    if len(values) < 3:
        return None
    ordered = sorted(values)
    limit = ordered[-1 - max(1, len(ordered) // 20)]
    return limit if 0 < 3 * limit < ordered[-1] else None


def unit(largest: int) -> tuple[int, str]:
    """Return the unit of sizes: its bytes, and its name."""
    power = min((max(largest, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return 1 << (10 * power), _UNITS[power]


def _mark_cut_off(axes: Axes, points: Sequence[tuple[int, float]]) -> list[Line2D]:
    """Mark values beyond the axis at its upper edge, with a label."""
    edge = axes.get_ylim()[1]
    for batch, value in points:
        axes.annotate(
            f"{value:.3g} s",
            (batch, edge),
            (4, -12),
            textcoords="offset points",
            fontsize=8,
            annotation_clip=False,
        )
    return axes.plot(
        [batch for batch, _ in points],
        [edge] * len(points),
        color="tab:red",
        marker="^",
        linestyle="",
        clip_on=False,
        label="cut off: beyond the scale",
    )


def _legend_below(axes: Axes, lines: Sequence[Line2D]) -> None:
    axes.legend(handles=lines, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=len(lines), fontsize=8)


def _from_zero(*all_axes: Axes) -> None:
    for axes in all_axes:
        axes.set_ylim(0, axes.dataLim.y1 * 1.1 or 1)
