"""Last adjustments to a figure before it is saved: axes that span enough, texts that fit."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from moe_lab.reports.figures.style import styled

LEAST_SPAN = 0.05
"""The least span of a linear axis, in its unit. Values that differ by 0.001 look close together."""
LABEL_WIDTH = 44
"""Most characters in a line of a label next to a panel, about two fifths of a page."""


def fit(figure: Figure) -> None:
    """Widen vertical axes with less than LEAST_SPAN; wrap titles and labels so that they fit."""
    # a colour bar is no panel
    panels = [axis for axis in figure.axes if axis.get_subplotspec() is not None]
    for axis in panels:
        is_linear = axis.has_data() and axis.get_yscale() == "linear"
        if is_linear and axis.get_autoscaley_on():  # limits that are set by hand stay
            axis.set_ylim(_widened(*axis.get_ylim()))
    with styled():
        for text in figure.texts:
            _wrap(text, figure.bbox.width)
        _settle(figure)
        for axis in panels:
            _wrap(axis.title, axis.bbox.width)
            _wrap(axis.xaxis.label, axis.bbox.width)
            _wrap(axis.yaxis.label, axis.bbox.height)
        _settle(figure)


def _settle(figure: Figure) -> None:
    """Give every artist its place.

    A drawing begins with the layout, which knows the ticks of the drawing before. The first one has
    none, and the second one may get others, because the panels have changed their sizes.
    """
    for _ in range(2):
        figure.draw_without_rendering()


def _wrap(text: Text, room: float) -> None:
    """Wrap a text to a length in pixels: its width, or of a vertical text its height."""
    lines = text.get_text().split("\n")
    characters = max(len(line) for line in lines)
    length = _length(text)
    while length > room and characters > 1:
        characters = min(characters - 1, int(characters * room / length))
        wrapped = [textwrap.fill(line, max(1, characters)) for line in lines]
        text.set_text("\n".join(wrapped))
        length = _length(text)


def _length(text: Text) -> float:
    """The length of a text in pixels, along its direction."""
    extent = text.get_window_extent()
    is_vertical = text.get_rotation() == 90
    return extent.height if is_vertical else extent.width


def wrapped_label(label: str) -> str:
    """The label of a line of a panel, in as many lines as it takes."""
    return textwrap.fill(label, LABEL_WIDTH)


def widen_x(axis: Axes) -> None:
    """Widen the horizontal axis of a panel if it shows measurements.

    An axis of settings is not widened.
    """
    axis.set_xlim(_widened(*axis.get_xlim()))


def _widened(start: float, end: float) -> tuple[float, float]:
    """The limits of an axis, moved apart to LEAST_SPAN.

    An inverted axis has its larger limit first.
    """
    margin = max(0.0, LEAST_SPAN - abs(end - start)) / 2
    if start <= end:
        return start - margin, end + margin
    return start + margin, end - margin
