"""Pre-trained designs ranked by the loss on held-out rows, with their accuracy and the chance level next to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from moe_lab.reports.papers.cells import TableCell, averages, uncorrected_scores
from moe_lab.reports.papers.experiment import MEASURE, Experiment
from moe_lab.reports.papers.files import table_lines
from moe_lab.reports.papers.metrics import LOSS, NO_TASK, training_of
from moe_lab.results.measured import Interval, bounds_text
from moe_lab.results.score_table import BEST_DESIGN, Family
from moe_lab.results.scores import Comparison, Score
from moe_lab.results.significance import ALPHA, p_over_seeds
from moe_lab.results.statistics import bootstrap_interval, over_seeds

Design = tuple[str, ...]
"""The coordinates of a design."""
EXPLAINED = (
    "Ranked by the loss on held-out rows, in nats per token. Its interval is over rows, or after the word seeds over "
    "seeds. Differences to the first design are paired: by seed if there are several seeds (Student's interval), else "
    "by row. Designs that do not differ significantly from the first share its rank (Student's paired test over seeds, "
    "p corrected by Holm, 0.05 or more). A single seed has no test. The first design is chosen by the same numbers, so "
    "its lead is too large on average."
)


@dataclass(frozen=True)
class Ranked:
    """A design with its loss, the difference to the best one, and its accuracy."""

    rank: int
    """1 for the first design and all that do not differ significantly from it, else the place in the list."""
    design: str
    """The coordinates in which it differs from other designs."""
    loss: Score
    difference: float | None
    interval: Interval | None
    p: float | None
    """The p of Student's paired test over seeds, corrected by Holm for the command; None with a single seed."""
    accuracy: Score | None
    chance: float | None

    @property
    def significant(self) -> bool:
        """Whether its loss differs significantly from the first one's."""
        return self.p is not None and self.p < ALPHA


def ranking(experiment: Experiment, cells: Sequence[TableCell], family: Family) -> list[Ranked]:
    """The measured designs, the lowest loss first; none in a table without a loss on held-out rows."""
    uncorrected = _uncorrected(experiment, cells)
    ranked = [replace(one, p=family.corrected.get(_comparison(one.loss))) for one in uncorrected]
    return [replace(one, rank=place if one.significant else 1) for place, one in enumerate(ranked, start=1)]


def p_values(experiment: Experiment, cells: Sequence[TableCell]) -> dict[Comparison, float | None]:
    """The uncorrected p of each comparison of an experiment: of its cells, averages and ranked designs."""
    scores = uncorrected_scores([*cells, *averages(experiment, cells)]).values()
    ranked = {_comparison(one.loss): one.p for one in _uncorrected(experiment, cells)}
    return {score.comparison: score.p for score in scores} | ranked


def _comparison(loss: Score) -> Comparison:
    return replace(loss, other=BEST_DESIGN).comparison


def _uncorrected(experiment: Experiment, cells: Sequence[TableCell]) -> list[Ranked]:
    losses = {_design(experiment, cell): cell for cell in cells if cell.metric == LOSS and cell.score()}
    order = sorted(losses, key=lambda design: _value(losses[design].score()))
    varied = [len(set(values)) > 1 for values in zip(*order, strict=True)]
    named = {
        design: [value for value, shown in zip(design, varied, strict=True) if shown] for design in order
    }
    return [_ranked(experiment, losses[own], losses[order[0]], cells, named[own]) for own in order]


def ranking_lines(experiment: Experiment, cells: Sequence[TableCell], family: Family) -> list[str]:
    """The ranking as Markdown."""
    ranked = ranking(experiment, cells, family)
    if not ranked:
        return []
    scored = any(one.accuracy for one in ranked)
    header = ["rank", "design", "held-out loss", "more than the first", *["accuracy", "chance"] * scored]
    rows = []
    for one in ranked:
        spread = "" if one.loss.std is None else f" ± {one.loss.std:.4f}"
        texts = [
            str(one.rank),
            one.design,
            f"{one.loss.value:.4f}{spread}{_loss_bounds(one.loss)}",
            _difference_text(one),
        ]
        if scored:
            value = one.accuracy
            texts += ["" if value is None else f"{value.value:.4f}{bounds_text(value.interval)}"]
            texts += ["" if one.chance is None else f"{one.chance:.3g}"]
        rows.append(texts)
    return [EXPLAINED, "", *table_lines(header, rows), ""]


def _difference_text(one: Ranked) -> str:
    """The difference to the first, bold where it is significant; empty without one."""
    if one.difference is None:
        return ""
    text = f"{one.difference:+.4f}{bounds_text(one.interval)}"
    p = "" if one.p is None else f" (Holm {one.p:.3g})"
    return (f"**{text}**" if one.significant else text) + p


def chance_of(experiment: Experiment, cells: Sequence[TableCell]) -> float | None:
    """The mean accuracy of random answers to the cells' tasks; None if it is unknown for a task."""
    tasks = list(dict.fromkeys(cell.coordinates.get("task", NO_TASK) for cell in cells))
    known = [experiment.chance[task] for task in tasks if task in experiment.chance]
    return sum(known) / len(known) if known and len(known) == len(tasks) else None


def _ranked(
    experiment: Experiment, cell: TableCell, best: TableCell, cells: Sequence[TableCell], name: Sequence[str]
) -> Ranked:
    design = _design(experiment, cell)
    own = [each for each in cells if each.metric == "headline" and _design(experiment, each) == design]
    scores = [each.score() for each in averages(experiment, own) or own]
    loss = cell.score()
    assert loss is not None
    difference, interval, p = (None, None, None) if cell is best else _difference(cell, best)
    not_causal = [" (reads later tokens)"] if training_of(cell.results[0]).get("leak") else []
    return Ranked(
        rank=1,
        design="".join([", ".join(value for value in name if value != NO_TASK), *not_causal]),
        loss=loss,
        difference=difference,
        interval=interval,
        p=p,
        accuracy=scores[0] if len(scores) == 1 else None,
        chance=chance_of(experiment, own),
    )


def _difference(cell: TableCell, best: TableCell) -> tuple[float | None, Interval | None, float | None]:
    """The loss minus that of another design on the same rows, its interval, and the p over seeds.

    None where their seeds or their numbers of rows differ.
    """
    own, other = _rows_by_seed(cell), _rows_by_seed(best)
    if {seed: len(rows) for seed, rows in own.items()} != {seed: len(rows) for seed, rows in other.items()}:
        return None, None, None
    by_seed = [
        [mine - theirs for mine, theirs in zip(rows, other[seed], strict=True)] for seed, rows in own.items()
    ]
    means = [sum(rows) / len(rows) for rows in by_seed]
    if len(means) == 1:
        return means[0], bootstrap_interval(by_seed[0]), None
    spread = over_seeds(means)
    return spread.mean, spread.interval, p_over_seeds(means)


def _rows_by_seed(cell: TableCell) -> dict[int | None, list[float]]:
    """The losses on the held-out rows of each seed's training."""
    return {each.seed: training_of(each)["validation"]["row_losses"] for each in cell.results}


def _design(experiment: Experiment, cell: TableCell) -> Design:
    keys = [key for key in experiment.keys if key not in (MEASURE, experiment.average)]
    return tuple(cell.coordinates.get(key, NO_TASK) for key in keys)


def _value(score: Score | None) -> float:
    assert score is not None and score.value is not None
    return score.value


def _loss_bounds(loss: Score) -> str:
    """The interval over rows of one seed, or over seeds."""
    return bounds_text(loss.interval) + seed_bounds_text(loss.seed_interval)


def seed_bounds_text(bounds: Interval | None, sign: str = "") -> str:
    """` seeds [low, high]`, or nothing."""
    return "" if bounds is None else f" seeds{bounds_text(bounds, sign)}"
