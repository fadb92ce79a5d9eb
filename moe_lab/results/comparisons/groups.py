"""Compares the scores of a group of tasks in two evaluations: all its documents as one sample."""

import math
from collections.abc import Mapping
from dataclasses import replace

from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.comparisons.partial import PartialComparison
from moe_lab.results.score import Score
from moe_lab.results.scores import pooled
from moe_lab.results.task_scores import reported


def compare_group(
    a: Evaluation, b: Evaluation, group: str, of_tasks: Mapping[tuple[str, str], Score]
) -> PartialComparison:
    """The scores of a group that are shares of its documents, and a note on each other score of it.

    Args:
        of_tasks: the compared scores by task and lm-eval's `metric,filter`.
    """
    partial = PartialComparison()
    scores_a = a.results.scores(group)
    scores_b = b.results.scores(group)
    for metric in reported(scores_a):
        if metric not in scores_b:
            continue
        whole = _whole(a, group, metric, scores_b[metric], of_tasks)
        if whole is None or not _is_near(whole.baseline, scores_a[metric]):
            partial.notes.append(
                f"Not compared: {metric} of the group {group}, which is no share of its documents. "
                "Its tasks are."
            )
        else:
            partial.scores.append(whole)
    return partial


def _whole(
    a: Evaluation, group: str, metric: str, value: float, of_tasks: Mapping[tuple[str, str], Score]
) -> Score | None:
    """The score over the documents of all tasks.

    None if one of the tasks is not compared, or if its score is no share of its documents.
    """
    tasks = []
    for task in a.results.leaves(a.samples, group):
        if metric in a.results.scores(task):
            tasks.append(task)
    parts = []
    for task in tasks:
        part = of_tasks.get((task, metric))
        if part is None or part.changed is None:
            return None
        parts.append(part)
    if not parts:
        return None
    n = sum(part.n or 0 for part in parts)
    return pooled(replace(parts[0], task=group, n=n, value=value), parts)


def _is_near(baseline: float | None, stored: float) -> bool:
    """Whether the computed score is the stored one. None counts as 0."""
    return math.isclose(baseline or 0.0, stored, abs_tol=1e-9)
