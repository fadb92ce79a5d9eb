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
    from matplotlib.figure import Figure


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
    p_holm: float | None
    examples: int | None
    seeds: int = 1
    lower_is_better: bool = False
    marks: tuple[str, ...] = ()
    """The notes of the score, which pages show next to the label."""

    @property
    def significant(self) -> bool:
        return self.p_holm is not None and self.p_holm < ALPHA


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
        p_holm=score.p_holm,
        examples=score.n,
        seeds=score.seeds,
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


def differences_figure(rows: Sequence[Difference]) -> Figure:
    """The rows as points with their intervals, the largest difference of a panel first. There is at least one row."""
    import matplotlib

    groups = panels(rows)
    with matplotlib.rc_context(RC):
        return draw_differences(groups, list(map(panel_title, groups)))


def draw_differences(
    groups: Sequence[Sequence[Difference]], titles: Sequence[str], title: str = ""
) -> Figure:
    """A panel for each group: its rows in their order with p at the right, and a line at 0.

    A point is filled, and its corrected p bold, where the difference is significant.
    """
    heights = [0.24 * len(rows) + 0.8 for rows in groups]
    figure, axes = stacked_panels(sum(heights) + 0.3 * bool(title), heights, title)
    for axis, rows, name in zip(axes, groups, titles, strict=True):
        places = range(len(rows))
        axis.axvline(0, color=GREY, ls=":", lw=1.1)
        for place, row in zip(places, rows, strict=True):
            axis.plot([row.low, row.high], [place, place], "-", color=BLUE, lw=1.2)
            axis.plot(row.difference, place, "o", color=BLUE, mfc=BLUE if row.significant else "white")
        axis.set_yticks(places, [row.label for row in rows])
        axis.set_ylim(len(rows) - 0.5, -0.5)
        axis.grid(axis="y", visible=False)
        p = axis.secondary_yaxis("right")
        p.set_yticks(places, ["" if row.p_holm is None else f"p = {row.p_holm:.2g}" for row in rows])
        p.tick_params(length=0)
        p.spines["right"].set_visible(False)
        for text, row in zip(p.get_yticklabels(), rows, strict=True):
            text.set_fontweight("bold" if row.significant else "normal")
        better = " (lower is better)" if rows[0].lower_is_better else ""
        filled = "; filled: significant after Holm" if any(row.p_holm is not None for row in rows) else ""
        axis.set(
            title=name,
            xlabel=f"difference of {quantity(rows[0].metric)}{better}, 95% interval{filled}",
        )
    return figure
