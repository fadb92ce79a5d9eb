"""Plots on pages: differences, and scores against cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

from moe_lab.reports.papers.metrics import quantity
from moe_lab.reports.scores import ScoreLine, difference_panels, has_verdict, panel_title

LEAST_SPAN = 0.02
"""The least length of an axis of scores or differences, so that a difference of 0.001 looks small."""


@dataclass(frozen=True)
class Axis:
    """The axis of a plot."""

    label: str
    low: float
    high: float
    signed: bool = False
    """Whether ticks above 0 have a plus sign."""

    @classmethod
    def over(cls, values: Iterable[float], label: str, signed: bool = False) -> Self:
        """The axis from the least to the largest value, at least LEAST_SPAN long."""
        low, high = min(found := list(values)), max(found)
        spare = max(0.0, LEAST_SPAN - (high - low)) / 2
        return cls(label, low - spare, high + spare, signed)

    def share(self, value: float) -> float:
        """The place of a value: 0 at the low end, 1 at the high end."""
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """At most six round numbers: the place of each (`share`), and its text with a minus sign."""
        from matplotlib.ticker import MaxNLocator

        found = map(float, MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(self.low, self.high))
        ticks, sign = [tick for tick in found if self.low <= tick <= self.high], "+" if self.signed else ""
        return [
            (self.share(tick), f"{tick:{sign}g}".replace("-", "\u2212") if tick else "0") for tick in ticks
        ]


@dataclass(frozen=True)
class ForestPanel:
    """The rows of one task and metric."""

    title: str
    axis: Axis
    rows: list[ScoreLine]


def forest(lines: Iterable[ScoreLine]) -> list[ForestPanel]:
    """The panels of the differences that have a verdict and an interval, the largest difference of a panel first."""
    found = []
    for group in difference_panels(line for line in lines if has_verdict(line.score)):
        first = group[0].score
        better = ", lower is better" if first.lower_is_better else ""
        ends = [end for line in group for end in line.score.tested_interval or ()]
        axis = Axis.over([0.0, *ends], f"difference of {quantity(first.metric)}{better}", signed=True)
        found.append(ForestPanel(panel_title(group), axis, group))
    return found


def plot(title: str, cost: str, score: str, points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores against a cost, from 0 on. `cost` and `score` are the labels of the axes.

    A point has the `label`, `cost` and `score` of a run, and the `interval` of its score.
    """
    upwards = Axis.over([end for point in points for end in point["interval"]], score)
    across = Axis(cost, 0.0, max(point["cost"] for point in points) or 1.0)
    return {"title": title, "across": across, "upwards": upwards, "points": points}
