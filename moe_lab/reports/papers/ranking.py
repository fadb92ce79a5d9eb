"""Pre-trained designs ranked by the loss on held-out rows, with their accuracy and the chance level next to it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from moe_lab.reports.columns import Column, count, numbers, texts
from moe_lab.reports.papers.cells import TableCell, averages
from moe_lab.reports.papers.experiment import MEASURE, Experiment
from moe_lab.reports.papers.metrics import LOSS, NO_TASK, training_of
from moe_lab.reports.scores import limits
from moe_lab.results.measured import number
from moe_lab.results.score_table import BEST_DESIGN, Family
from moe_lab.results.scores import NO_SCORE, SEEDS, ComparisonKey, Score
from moe_lab.results.significance import p_over_seeds
from moe_lab.results.statistics import bootstrap_interval, over_seeds

EXPLAINED = (
    "Ranked by the loss on held-out rows, in nats per token. Its interval is over rows, or after the word seeds over "
    "seeds. Differences to the first design are paired: by seed if there are several seeds (Student's interval), else "
    "by row. Designs that do not differ significantly from the first share its rank (Student's paired test over seeds, "
    "p corrected by Holm, 0.05 or more). A single seed has no test. The first design is chosen by the same numbers, so "
    "its lead is too large on average."
)

Design = tuple[str, ...]
"""The coordinates of a design."""


@dataclass(frozen=True)
class Ranked:
    """A design with its loss and its accuracy."""

    rank: int
    """1 for the first design and all that do not differ significantly from it, else the place in the list."""
    design: str
    """The coordinates in which it differs from other designs."""
    loss: Score
    """With the difference to the first design, where there is one: over rows of a single seed, else over seeds."""
    accuracy: Score | None
    chance: float | None


def ranking(experiment: Experiment, cells: Sequence[TableCell], family: Family) -> list[Ranked]:
    """The measured designs, the lowest loss first; none in a table without a loss on held-out rows."""
    losses = _losses(experiment, cells)
    varied = [len(set(values)) > 1 for values in zip(*losses, strict=True)]
    ranked = []
    for place, (design, (cell, loss)) in enumerate(losses.items(), start=1):
        asked = [one for one in cells if one.metric == "headline" and _design(experiment, one) == design]
        scores = [one.score() for one in averages(experiment, asked) or asked]
        name = [value for value, shown in zip(design, varied, strict=True) if shown and value != NO_TASK]
        not_causal = " (reads later tokens)" if training_of(cell.results[0]).get("leak") else ""
        corrected = family.correct(loss)
        ranked.append(
            Ranked(
                rank=place if corrected.significant else 1,
                design=", ".join(name) + not_causal,
                loss=corrected,
                accuracy=scores[0] if len(scores) == 1 else None,
                chance=chance_of(experiment, asked),
            )
        )
    return ranked


def ranking_columns(ranked: Sequence[Ranked]) -> list[Column]:
    """The ranking of designs."""
    losses = [one.loss for one in ranked]
    accuracies = [one.accuracy or NO_SCORE for one in ranked]
    return [
        numbers("rank", [one.rank for one in ranked], count),
        texts("design", [one.design for one in ranked]),
        numbers("held-out loss", [one.value for one in losses], number),
        limits("95% over rows", [one.interval for one in losses]),
        numbers("std", [one.std for one in losses], number),
        limits("95% over seeds", [one.seed_interval for one in losses]),
        numbers("more than the first", [one.difference for one in losses], partial(number, sign=True)),
        limits("95% of it", [one.tested_interval for one in losses], sign=True),
        numbers("p (Holm)", [one.p_holm for one in losses], number),
        numbers("accuracy", [one.value for one in accuracies], number),
        limits("95% over documents", [one.interval for one in accuracies]),
        numbers("chance", [one.chance for one in ranked], "{:.3g}".format),
    ]


def p_values(experiment: Experiment, cells: Sequence[TableCell]) -> dict[ComparisonKey, float | None]:
    """The uncorrected p of each comparison of an experiment: of its cells, averages and ranked designs."""
    scores = [score for cell in [*cells, *averages(experiment, cells)] for score in cell.scores().values()]
    losses = [loss for _, loss in _losses(experiment, cells).values()]
    return {score.comparison: score.p for score in [*scores, *losses]}


def chance_of(experiment: Experiment, cells: Sequence[TableCell]) -> float | None:
    """The mean accuracy of random answers to the cells' tasks; None if it is unknown for a task."""
    tasks = list(dict.fromkeys(cell.coordinates.get("task", NO_TASK) for cell in cells))
    known = [experiment.chance[task] for task in tasks if task in experiment.chance]
    return sum(known) / len(known) if known and len(known) == len(tasks) else None


def _design(experiment: Experiment, cell: TableCell) -> Design:
    keys = [key for key in experiment.keys if key not in (MEASURE, experiment.average)]
    return tuple(cell.coordinates.get(key, NO_TASK) for key in keys)


def _losses(experiment: Experiment, cells: Sequence[TableCell]) -> dict[Design, tuple[TableCell, Score]]:
    """The cell and the loss of each design, the lowest first, with the differences to it and their uncorrected p."""
    found = [
        (score.value, cell, replace(score, other=BEST_DESIGN))
        for cell in cells
        if cell.metric == LOSS and (score := cell.score()) and score.value is not None
    ]
    best: TableCell | None = None
    losses = {}
    for _, cell, loss in sorted(found, key=lambda one: one[0]):
        losses[_design(experiment, cell)] = cell, loss if best is None else _compared(loss, cell, best)
        best = best or cell
    return losses


def _compared(loss: Score, cell: TableCell, best: TableCell) -> Score:
    """The loss with its difference to that of another design on the same rows.

    Without one where their seeds or their numbers of rows differ.
    """
    own, other = (
        {each.seed: training_of(each)["validation"]["row_losses"] for each in one.results}
        for one in (cell, best)
    )
    if {seed: len(rows) for seed, rows in own.items()} != {seed: len(rows) for seed, rows in other.items()}:
        return loss
    by_seed = [np.subtract(rows, other[seed]).tolist() for seed, rows in own.items()]
    means = [sum(rows) / len(rows) for rows in by_seed]
    if len(means) == 1:
        return replace(loss, difference=means[0], difference_interval=bootstrap_interval(by_seed[0]))
    spread, p = over_seeds(means), p_over_seeds(means)
    return replace(
        loss,
        difference=spread.mean,
        difference_seed_interval=spread.interval,
        tested_over=SEEDS,
        p=p,
        test=SEEDS,
    )
