"""What a figure shows: its artists by kind, and its texts with the places that they take."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, Tick
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.path import Path as Outline
from matplotlib.text import Text

from moe_lab.reports.figures.drawing import DPI, Drawing
from moe_lab.reports.figures.fit import fit
from moe_lab.reports.figures.style import styled

TOUCH = 1.5
"""Pixels by which two texts may touch: a text's box is a little larger than its letters."""


def as_saved(drawing: Drawing, title: str) -> Figure:
    """The figure as `Drawing.save` draws it, with every artist in its place."""
    with styled():
        figure = drawing.draw(title)
        fit(figure)
        placed(figure)
    return figure


def placed(figure: Figure) -> None:
    """Give every artist its place at the resolution of the saved PNG."""
    figure.set_dpi(DPI)
    with styled():
        figure.draw_without_rendering()


def artists(axis: Axes) -> dict[str, int]:
    """The number of artists of each kind in a panel; kinds without any are absent.

    `lines` join points or cross the panel, `markers` are points alone, `intervals` are vertical
    segments, `bands` are filled.
    """
    counts: Counter[str] = Counter()
    for bars in axis.containers:
        counts["bars"] += len(bars)
    counts["bands"] = len(axis.patches) - counts["bars"]
    counts["images"] = len(axis.images)
    for line in axis.lines:
        if len(line.get_xdata()):
            joins = line.get_linestyle() not in ("None", "", " ")
            counts["lines" if joins else "markers"] += 1
    for collection in axis.collections:
        if isinstance(collection, LineCollection):
            counts["intervals"] += len(collection.get_segments())
        elif isinstance(collection, PolyCollection):
            counts["bands"] += 1
    return {kind: count for kind, count in counts.items() if count}


def texts(figure: Figure) -> Iterator[Text]:
    """The visible texts of a figure: titles, labels, labels of visible ticks,
    legends, numbers in panels."""
    of_ticks = set()
    for tick in figure.findobj(Tick):
        of_ticks |= {tick.label1, tick.label2}
    visible = [text for text in figure.findobj(Text) if text not in of_ticks]
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            visible += _tick_labels(axis)
    for text in visible:
        if text.get_visible() and text.get_text().strip():
            yield text


def _tick_labels(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    margin = 1e-9 * (high - low)
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [tick.label1 for tick in ticks if low - margin <= tick.get_loc() <= high + margin]


def outline(text: Text) -> np.ndarray:
    """The four corners of a text in pixels, float [4, 2]. Slanted labels have slanted corners."""
    angle = text.get_rotation()
    if angle % 90 == 0:
        return text.get_window_extent().corners()[[0, 1, 3, 2]]
    assert text.get_rotation_mode() == "anchor"
    text.set_rotation(0)
    corners = text.get_window_extent().corners()[[0, 1, 3, 2]]
    text.set_rotation(angle)
    anchor = text.get_transform().transform(text.get_position())
    turn = np.deg2rad(angle)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return (corners - anchor) @ matrix.T + anchor


def cut_texts(figure: Figure) -> list[str]:
    """The texts that do not lie in the canvas."""
    width = figure.bbox.width
    height = figure.bbox.height
    cut = []
    for text in texts(figure):
        corners = outline(text)
        inside = (corners >= -TOUCH).all() and (corners <= (width + TOUCH, height + TOUCH)).all()
        if not inside:
            cut.append(text.get_text())
    return cut


def covered_texts(figure: Figure) -> list[tuple[str, str]]:
    """The pairs of texts of which one covers part of the other."""
    places = [(text.get_text(), outline(text)) for text in texts(figure)]
    covered = []
    for (text_a, corners), (other_text, other_corners) in combinations(places, 2):
        if _overlap(_shrunk(corners), _shrunk(other_corners)):
            covered.append((text_a, other_text))
    return covered


def _shrunk(corners: np.ndarray) -> np.ndarray:
    """The corners moved towards their centre by TOUCH."""
    centre = corners.mean(axis=0)
    sides = np.linalg.norm(corners - centre, axis=1, keepdims=True)
    return centre + (corners - centre) * np.maximum(0.0, 1 - 1.5 * TOUCH / sides)


def _overlap(corners: np.ndarray, other_corners: np.ndarray) -> bool:
    are_apart = (corners.max(axis=0) < other_corners.min(axis=0)) | (
        other_corners.max(axis=0) < corners.min(axis=0)
    )
    if are_apart.any():
        return False
    text_outline = Outline(np.vstack([corners, corners[:1]]), closed=True)
    other_outline = Outline(np.vstack([other_corners, other_corners[:1]]), closed=True)
    return bool(text_outline.intersects_path(other_outline, filled=True))
