"""Plots that templates draw as SVG: scores against cost, and forest plots of differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from moe_lab.reports.figures.differences import Difference, panel_title, panels
from moe_lab.reports.pages.page import interval, number
from moe_lab.reports.papers.metrics import quantity


def round_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from low to high, at most `most` of them.

    >>> round_ticks(-0.03, 0.11)
    [0.0, 0.05, 0.1]
    """
    span = high - low
    if span <= 0:
        return [low]
    size = 10.0 ** math.floor(math.log10(span / most))
    for step in (size * factor for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def tick_labels(ticks: Sequence[float], sign: bool = False) -> list[str]:
    """The ticks with as many decimals as the finest one needs, and a minus sign."""
    decimals = max((len(f"{tick:.10f}".rstrip("0").partition(".")[2]) for tick in ticks), default=0)
    signs = ["+" if sign and tick > 0 else "" for tick in ticks]
    return [
        f"{plus}{tick:.{decimals}f}".replace("-", "\u2212") if tick else "0"
        for plus, tick in zip(signs, ticks, strict=True)
    ]


# A forest plot. Its places are in per cent of the width, so that it fills the screen

FOREST_SPAN = 0.02
"""The least width of the axis, so that a difference of 0.001 looks small."""
MARGIN = 0.06
"""The share of the axis that is left free at both ends for the labels of ticks."""


@dataclass(frozen=True)
class ForestRow:
    """A row: its texts, and the places of its point and of both ends of its interval."""

    label: str
    marks: tuple[str, ...]
    outcome: str
    """`better`, `worse`, `different` or `not significant`."""
    difference: str
    interval: str
    p: str
    x: float
    low: float
    high: float


@dataclass(frozen=True)
class ForestPanel:
    """The rows of one task and metric."""

    title: str
    axis: str
    """The quantity of the axis."""
    zero: float
    ticks: list[tuple[float, str]]
    rows: list[ForestRow]


def forest(rows: Sequence[Difference], outcomes: Sequence[str]) -> list[ForestPanel]:
    """The panels of differences, each with its outcome (`verdict.py`), the largest difference of a panel first."""
    by_row = {id(row): outcome for row, outcome in zip(rows, outcomes, strict=True)}
    return [_panel(group, [by_row[id(row)] for row in group]) for group in panels(rows)]


def _panel(rows: Sequence[Difference], outcomes: Sequence[str]) -> ForestPanel:
    low, high = min(0.0, *(row.low for row in rows)), max(0.0, *(row.high for row in rows))
    spare = max(0.0, FOREST_SPAN - (high - low)) / 2
    low, high = low - spare, high + spare

    def x(value: float) -> float:
        return round(100 * (MARGIN + (1 - 2 * MARGIN) * (value - low) / (high - low)), 2)

    ticks = round_ticks(low, high)
    better = ", lower is better" if rows[0].lower_is_better else ""
    return ForestPanel(
        title=panel_title(rows),
        axis=f"difference of {quantity(rows[0].metric)}{better}",
        zero=x(0.0),
        ticks=[(x(tick), label) for tick, label in zip(ticks, tick_labels(ticks, True), strict=True)],
        rows=[
            ForestRow(
                label=row.label,
                marks=row.marks,
                outcome=outcome,
                difference=number(row.difference, True),
                interval=interval((row.low, row.high), True),
                p="" if row.p is None else f"{row.p:.2g}",
                x=x(row.difference),
                low=x(row.low),
                high=x(row.high),
            )
            for row, outcome in zip(rows, outcomes, strict=True)
        ],
    )


# A scatter plot in SVG coordinates: scores against cost

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 12, 40
ACROSS, UP = 18, 12
"""The least number of pixels between two labels."""
LEAST_SPAN = 0.02
"""The least height of the vertical axis, so that a difference of 0.001 looks small."""


@dataclass(frozen=True)
class Point:
    """A run: its label, its cost, its score, and the interval of the score."""

    label: str
    cost: float
    score: float
    interval: Sequence[float] | None


@dataclass(frozen=True)
class Plot:
    """Points in pixels, and the labels of the axes."""

    title: str
    horizontal: str
    """The quantity of the horizontal axis, with its unit."""
    vertical: str
    points: list[dict[str, float]]
    labels: list[tuple[float, float, str]]
    """Place and text. Points at the same place share a label."""
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]


def plot(title: str, horizontal: str, vertical: str, points: Sequence[Point]) -> Plot:
    """The plot of some points, costs from 0 on."""
    bounds = [bound for each in points for bound in (each.interval or [each.score])]
    low, high = min(bounds), max(bounds)
    spare = max(0.0, LEAST_SPAN - (high - low)) / 2
    low, high = low - spare, high + spare
    most = max(each.cost for each in points) or 1.0

    across, upwards = round_ticks(0.0, most), round_ticks(low, high)

    def x(cost: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * cost / most, 1)

    def y(score: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (high - score) / (high - low), 1)

    return Plot(
        title=title,
        horizontal=horizontal,
        vertical=vertical,
        points=[
            {
                "x": x(each.cost),
                "y": y(each.score),
                "low": y((each.interval or [each.score])[0]),
                "high": y((each.interval or [each.score])[-1]),
            }
            for each in points
        ],
        labels=_shared_labels([(x(each.cost), y(each.score), each.label) for each in points]),
        x_ticks=list(zip(map(x, across), tick_labels(across), strict=True)),
        y_ticks=list(zip(map(y, upwards), tick_labels(upwards), strict=True)),
    )


def _shared_labels(labels: Sequence[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    """The labels. Labels that would overlap are joined at the place of the first one."""
    placed: list[tuple[float, float, str]] = []
    for x, y, label in labels:
        near = next(
            (i for i, (left, top, _) in enumerate(placed) if abs(x - left) < ACROSS and abs(y - top) < UP),
            None,
        )
        if near is None:
            placed.append((x, y, label))
        else:
            left, top, text = placed[near]
            placed[near] = (left, top, f"{text}, {label}")
    return placed
