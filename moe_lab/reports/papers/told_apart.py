"""Which differences in a paper's table are significant: the p-values of its cells, corrected for the whole command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moe_lab.reports.papers.cells import TableCell, compared_names
from moe_lab.results.measured import Interval, bounds_text
from moe_lab.results.score_table import Family
from moe_lab.results.scores import BASE, Score
from moe_lab.results.significance import ALPHA

Place = tuple[tuple[str, ...], str]
"""The coordinates of a cell, and the run that it is compared with."""


OVER_SEEDS = (
    "; of a mean over five seeds or more it is that of one test over seeds and documents (their variances are added), "
    "with fewer seeds the larger p of two: Student's paired test over the seeds, and the permutation test over the "
    "documents. Expert metrics have the test over seeds alone, and no p where all seeds have the same difference"
)


def corrected_scores(cells: Sequence[TableCell], family: Family) -> dict[Place, Score]:
    """The scores of the cells against base and each other run, with the corrected p of the command's family."""
    return {place: family.correct(score) for place, score in uncorrected_scores(cells).items()}


def uncorrected_scores(cells: Sequence[TableCell]) -> dict[Place, Score]:
    """The scores of the cells against base and each other run."""
    others = [BASE, *compared_names(cells)]
    return {
        place_of(cell, other): score for cell in cells for other in others if (score := cell.score(other))
    }


def place_of(cell: TableCell, other: str = BASE) -> Place:
    """The place of a score in `corrected_scores`."""
    return tuple(cell.coordinates.values()), other


def correction_note(scores: Iterable[Score]) -> list[str]:
    """A paragraph about bold differences, for a table that has a p."""
    scores = [score for score in scores if score.p_holm is not None]
    if not scores:
        return []
    what = "p is of McNemar's test"
    if any(score.p_randomization is not None for score in scores):
        what += ", or of the paired permutation test where scores are not 0 or 1"
    if any(score.p_seeds is not None for score in scores):
        what += OVER_SEEDS
    if any(score.p_average is not None for score in scores):
        what += "; that of an average over tasks belongs to its interval"
    tests = scores[0].family or 1
    how = "p" if tests == 1 else f"p, corrected by Holm for the {tests} comparisons of the command,"
    return [f"{what}. Bold differences are statistically significant: {how} is below {ALPHA}.", ""]


def difference_text(score: Score | None) -> str:
    """The difference with its interval and p as Markdown, bold where it is significant; empty without one."""
    if score is None or score.difference is None:
        return ""
    text = f"{score.difference:+.4f}{bounds_text(score.difference_interval, '+')}"
    text += seed_bounds_text(score.difference_seed_interval, "+")
    if score.p is None or score.p_holm is None:
        return text
    shown = f"**{text}**" if score.significant else text
    holm = f", Holm {score.p_holm:.3g}" if (score.family or 1) > 1 else ""
    return f"{shown} (p={score.p:.3g}{holm})"


def seed_bounds_text(bounds: Interval | None, sign: str = "") -> str:
    """` seeds [low, high]`, or nothing."""
    return "" if bounds is None else f" seeds{bounds_text(bounds, sign)}"
