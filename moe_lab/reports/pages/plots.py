"""Comparisons on pages: sentences, forest plots of differences, and plots of scores against cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moe_lab.reports.figures.primitives import difference_panels, panel_title
from moe_lab.reports.pages.page import number, percent
from moe_lab.reports.papers.metrics import quantity
from moe_lab.results.score_table import ScoreLine
from moe_lab.results.scores import BASE, BETTER, DIFFERENT, EQUAL_RUNS, NOT_SIGNIFICANT, PART, WORSE, Score

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
    def over(cls, values: Iterable[float], label: str, signed: bool = False) -> Axis:
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


@dataclass(frozen=True)
class Point:
    """A run: its label, its cost, its score, and the interval of the score."""

    label: str
    cost: float
    score: float
    interval: Sequence[float]


@dataclass(frozen=True)
class Plot:
    """Scores against a cost."""

    title: str
    across: Axis
    upwards: Axis
    points: Sequence[Point]


def plot(title: str, cost: str, score: str, points: Sequence[Point]) -> Plot:
    """The plot of some points, costs from 0 on. `cost` and `score` are the labels of the axes."""
    upwards = Axis.over([end for point in points for end in point.interval], score)
    return Plot(title, Axis(cost, 0.0, max(point.cost for point in points) or 1.0), upwards, points)


# The result of a comparison with another run, in sentences that can be quoted


BASE_MODEL = "the base model"
TESTS = {
    "McNemar": "McNemar's",
    "permutation": "permutation test's",
    "seeds": "over seeds and documents,",
    "average": "over tasks,",
}


@dataclass(frozen=True)
class Verdict:
    """A comparison in sentences."""

    score: Score
    text: str


def verdicts(lines: Iterable[ScoreLine]) -> list[Verdict]:
    """The verdicts on the scores of one page. Only scores that are compared with another run have one.

    A single one of several seeds has none, because the mean over the seeds has one.
    """
    return [made_verdict(line.name, line.score) for line in lines if has_verdict(line.score)]


def has_verdict(score: Score) -> bool:
    """Whether a score is compared with another run, and is neither one of several seeds nor a part of a group."""
    one_of_several_seeds = score.p is not None and score.p_holm is None
    return score.difference is not None and not one_of_several_seeds and PART not in score.marks


def by_outcome(found: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """The verdicts by outcome. The keys `different` and `equal within rounding` are absent without such a verdict."""
    rare = [kind for kind in (DIFFERENT, EQUAL_RUNS) if any(one.score.verdict == kind for one in found)]
    kinds = [BETTER, WORSE, *rare, NOT_SIGNIFICANT]
    return {kind: [one for one in found if one.score.verdict == kind] for kind in kinds}


def made_verdict(name: str, score: Score, against: str | None = None) -> Verdict:
    """A verdict with its sentences.

    Args:
        name: of the score: method, settings and task.
        against: the name of the run that it is compared with; by default the base model or `score.other`.
    """
    against = against or (BASE_MODEL if score.other == BASE else score.other.replace("_", " "))
    show, unit, points = (number, "", "") if score.flips is None else (percent, "%", " points")
    text = f"{name}: {score.metric} {show(score.value)}{unit} against {show(score.baseline)}{unit} of {against}, "
    text += f"a difference of {show(score.difference, True)}{points}"
    if score.tested_interval is not None:
        low, high = (show(bound, True) for bound in score.tested_interval)
        text += f" (95% interval over {score.tested_over} {low} to {high})"
    text += "" if score.n is None else f", on {score.n:,} documents"
    text += f" and over {score.seeds} seeds" if score.seeds > 1 else ""
    if score.flips is not None:
        right, wrong = score.flips
        text += f". {right:,} answer{'' if right == 1 else 's'} turned right and {wrong:,} wrong"
    if score.p is not None:
        by_holm = ""
        if (score.family or 1) > 1 and score.p_holm is not None:
            by_holm = f", {score.p_holm:.2g} by Holm for {score.family} {score.question or 'comparisons'}"
        text += f" ({TESTS[score.test or '']} p = {score.p:.2g}{by_holm})"
    conclusions = {
        EQUAL_RUNS: "They are equal within rounding in every document.",
        NOT_SIGNIFICANT: "The difference is not statistically significant.",
    }
    significant = f"It is {score.verdict}, and the difference is statistically significant."
    text += f". {conclusions.get(score.verdict, significant)}"
    return Verdict(score, text + (f" [{', '.join(score.marks)}]" if score.marks else ""))
