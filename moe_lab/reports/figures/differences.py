"""A forest plot: differences to another run with their 95% intervals, one panel per task and metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moe_lab.reports.figures.primitives import stacked_panels
from moe_lab.reports.figures.style import BLUE, GREY, RC
from moe_lab.reports.papers.metrics import quantity
from moe_lab.results.scores import Score
from moe_lab.results.significance import ALPHA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW = 0.24
"""Inches of a row."""
AROUND = 0.8
"""Inches of a panel's title, axis and label."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A row of a forest plot. Rates are fractions."""

    label: str
    """The run. Also the run that it is compared with, if this is not the base model."""
    task: str
    metric: str
    """lm-eval's `metric,filter`."""
    difference: float
    low: float
    high: float
    """Limits of the 95% interval."""
    p: float | None
    """Corrected by Holm."""
    examples: int | None
    lower_is_better: bool = False
    marks: tuple[str, ...] = ()
    """The notes of the score, which pages show next to the label."""

    @property
    def significant(self) -> bool:
        return self.p is not None and self.p < ALPHA


def difference_of(score: Score, label: str) -> Difference:
    """The row of a score that is compared with another run, and whose difference has an interval."""
    assert score.difference is not None and score.tested_interval is not None, score
    low, high = score.tested_interval
    return Difference(
        label=label,
        task=score.task,
        metric=score.metric,
        difference=score.difference,
        low=low,
        high=high,
        p=score.p_holm,
        examples=score.n,
        lower_is_better=score.lower_is_better is True,
        marks=score.marks,
    )


def panels(rows: Sequence[Difference]) -> list[list[Difference]]:
    """The rows of each task and metric, the largest difference first."""
    found: dict[tuple[str, str], list[Difference]] = {}
    for row in sorted(rows, key=lambda row: -abs(row.difference)):
        found.setdefault((row.task, row.metric), []).append(row)
    return list(found.values())


def panel_title(rows: Sequence[Difference]) -> str:
    """The task of a panel and its number of examples."""
    counts = "/".join(dict.fromkeys(f"{row.examples:,}" for row in rows if row.examples))
    return f"{rows[0].task}, {counts} examples" if counts else rows[0].task


def differences_figure(rows: Sequence[Difference], title: str = "") -> Figure:
    """The rows as points with their intervals, the largest difference of a panel first, and a line at 0.

    A point is filled, and its corrected p bold, where the difference is significant. There is at least one row.
    """
    import matplotlib

    groups = panels(rows)
    heights = [ROW * len(group) + AROUND for group in groups]
    with matplotlib.rc_context(RC):
        figure, axes = stacked_panels(sum(heights) + 0.3 * bool(title), heights, title)
        for axis, group in zip(axes, groups, strict=True):
            draw_differences(axis, group)
    return figure


def draw_differences(axis: Axes, rows: Sequence[Difference]) -> None:
    """The rows in their order, with p at the right."""
    first, places = rows[0], range(len(rows))
    axis.axvline(0, color=GREY, ls=":", lw=1.1)
    for place, row in zip(places, rows, strict=True):
        axis.plot([row.low, row.high], [place, place], "-", color=BLUE, lw=1.2)
        axis.plot(row.difference, place, "o", color=BLUE, mfc=BLUE if row.significant else "white")
    axis.set_yticks(places, [row.label for row in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    p = axis.secondary_yaxis("right")
    p.set_yticks(places, ["" if row.p is None else f"p = {row.p:.2g}" for row in rows])
    p.tick_params(length=0)
    p.spines["right"].set_visible(False)
    for text, row in zip(p.get_yticklabels(), rows, strict=True):
        text.set_fontweight("bold" if row.significant else "normal")
    better = " (lower is better)" if first.lower_is_better else ""
    filled = "; filled: significant after Holm" if any(row.p is not None for row in rows) else ""
    axis.set(
        title=panel_title(rows),
        xlabel=f"difference of {quantity(first.metric)}{better}, 95% interval{filled}",
    )
