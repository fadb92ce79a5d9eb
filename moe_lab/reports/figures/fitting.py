"""Last adjustments to a figure before it is saved: titles that fit, and axes on which small differences look small."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text

LEAST_SPAN = 0.05
"""Of a linear axis of measurements, in its unit: accuracies, bits and nats that differ by 0.001 lie close together."""
MARGIN = 0.98
"""Share of the available width that a title or legend may take."""


def fit(figure: Figure) -> None:
    """Widen vertical axes with less than LEAST_SPAN, and wrap titles that are wider than the figure or their panel."""
    for axis in figure.axes:
        if axis.get_subplotspec() is not None and axis.has_data():
            _widen_y(axis)
    figure.draw_without_rendering()  # places the panels
    for text in figure.texts:
        _wrap(text, figure.bbox.width)
    for axis in figure.axes:
        if axis.get_subplotspec() is not None:
            _wrap(axis.title, _room(axis))


def too_wide(legend: Legend, figure: Figure) -> bool:
    """Whether a legend of the figure is cut at its sides."""
    return bool(legend.get_window_extent().width > MARGIN * figure.bbox.width)


def widen_x(axis: Axes) -> None:
    """Widen the horizontal axis of a drawn panel whose measurements lie across; others hold settings and stay."""
    axis.set_xlim(_widened(*axis.get_xlim()))


def _widen_y(axis: Axes) -> None:
    """Limits that are set by hand stay."""
    if axis.get_yscale() == "linear" and axis.get_autoscaley_on():
        axis.set_ylim(_widened(*axis.get_ylim()))


def _widened(low: float, high: float) -> tuple[float, float]:
    missing = max(0.0, LEAST_SPAN - abs(high - low)) / 2
    return (low - missing, high + missing) if low <= high else (low + missing, high - missing)


def _room(axis: Axes) -> float:
    """Pixels that a title in the middle of a panel may take in the panel's column."""
    spec = axis.get_subplotspec()
    assert spec is not None
    column = axis.figure.bbox.width / spec.get_gridspec().ncols
    box = axis.get_window_extent()
    centre = (box.x0 + box.x1) / 2
    left, right = spec.colspan.start * column, spec.colspan.stop * column
    return float(2 * min(centre - left, right - centre))


def _wrap(text: Text, room: float) -> None:
    """Wrap a text into lines that fit, keeping its own line breaks."""
    width = text.get_window_extent().width
    if width <= MARGIN * room:
        return
    lines = text.get_text().split("\n")
    characters = max(1, int(max(map(len, lines)) * MARGIN * room / width))
    wrapped = [part for line in lines for part in textwrap.wrap(line, characters) or [""]]
    text.set_text("\n".join(wrapped))
