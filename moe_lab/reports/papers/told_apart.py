"""Which differences in a paper's table are told from chance: p-values of all its cells, corrected together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from moe_lab.reports.papers.cell import TableCell, compared_names
from moe_lab.reports.scores import Score, corrected
from moe_lab.results.significance import ALPHA

Place = tuple[tuple[str, ...], str | None]
"""The coordinates of a cell, and what it is compared with; None is the untouched model."""


OVER_SEEDS = (
    "; of a mean over five seeds or more it is that of one test over seeds and documents (their variances are added), "
    "with fewer seeds the larger p of two: Student's paired test over the seeds, and the permutation test over the "
    "documents. Expert metrics have the test over seeds alone, and no p where all seeds have the same difference"
)


def corrected_scores(cells: Sequence[TableCell]) -> dict[Place, Score]:
    """The scores of the cells against the untouched model and each other run, their p corrected all together."""
    others = [None, *compared_names(cells)]
    found = {
        place_of(cell, other): score for cell in cells for other in others if (score := cell.score(other))
    }
    return dict(zip(found, corrected(list(found.values())), strict=True))


def count_tests(scores: Iterable[Score]) -> int:
    """The number of scores that have a p."""
    return sum(score.p_holm is not None for score in scores)


def place_of(cell: TableCell, other: str | None = None) -> Place:
    """Where a score stands in `corrected_scores`."""
    return tuple(cell.coordinates.values()), other


def correction_note(scores: Iterable[Score]) -> list[str]:
    """A paragraph about bold differences, for a table that has a p."""
    scores = list(scores)
    tests = count_tests(scores)
    if not tests:
        return []
    what = "p is of McNemar's test"
    if any(score.p_randomization is not None for score in scores):
        what += ", or of the randomization test where scores are not 0 or 1"
    if any(score.p_seeds is not None for score in scores):
        what += OVER_SEEDS
    how = "p" if tests == 1 else f"p, corrected by Holm for the table's {tests} comparisons,"
    return [f"{what}. Bold differences are told from chance: {how} is below {ALPHA}.", ""]


def difference_text(score: Score | None, several: bool) -> str:
    """The difference with its interval and p as Markdown, bold where it is told from chance; empty without one.

    Args:
        several: whether the table has several p, so that the corrected one stands beside it.
    """
    if score is None or score.difference is None:
        return ""
    text = f"{score.difference:+.4f}{bounds_text(score.difference_interval, '+')}"
    text += seed_bounds_text(score.difference_seed_interval, "+")
    if score.p is None or score.p_holm is None:
        return text
    shown = f"**{text}**" if score.p_holm < ALPHA else text
    holm = f", Holm {score.p_holm:.3g}" if several else ""
    return f"{shown} (p={score.p:.3g}{holm})"


def seed_bounds_text(bounds: tuple[float, float] | None, sign: str = "") -> str:
    """` seeds [low, high]`, or nothing."""
    return "" if bounds is None else f" seeds{bounds_text(bounds, sign)}"


def bounds_text(bounds: tuple[float, float] | None, sign: str = "") -> str:
    """` [low, high]`, or nothing."""
    return "" if bounds is None else f" [{bounds[0]:{sign}.4f}, {bounds[1]:{sign}.4f}]"
