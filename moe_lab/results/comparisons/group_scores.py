"""The score of a group of tasks in two evaluations, where it is the mean over all documents (MMLU)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from moe_lab.results.comparisons.compared_score import ComparedScore, compared_score
from moe_lab.results.comparisons.evaluation import Evaluation
from moe_lab.results.comparisons.task_scores import Values
from moe_lab.results.samples import reported


def compare_group(
    a: Evaluation,
    b: Evaluation,
    group: str,
    values: Mapping[tuple[str, str], tuple[ComparedScore, Values]],
    notes: list[str],
) -> list[ComparedScore]:
    """The rows of a group, of all its documents as one sample; what is left out is added to `notes`.

    Args:
        values: the row and values of each (task, metric).
    """
    rows = []
    for metric in (key for key in reported(a.scores(group)) if key in b.scores(group)):
        parts = [values.get((task, metric)) for task in _tasks_of(a, group) if metric in a.scores(task)]
        known = [part for part in parts if part is not None]
        pooled = [pair for _, pairs in known for pair in pairs]
        if len(known) < len(parts) or not _is_mean(a, b, group, metric, pooled):
            notes.append(
                f"Not compared: {metric} of the group {group}, which is no mean over documents. Its tasks are."
            )
            continue
        better = known[0][0].higher_is_better
        rows.append(
            compared_score(
                b.key, group, metric, pooled, aggregate=None, higher_is_better=better, documents=None
            )
        )
    return rows


def _is_mean(a: Evaluation, b: Evaluation, group: str, metric: str, pooled: Values) -> bool:
    """Whether both scores of the group are the mean of the values."""
    if not all(isinstance(value, int | float) for pair in pooled for value in pair):
        return False
    return all(
        math.isclose(
            sum(pair[side] for pair in pooled) / len(pooled), one.scores(group)[metric], rel_tol=1e-6
        )
        for side, one in enumerate((a, b))
    )


def _tasks_of(evaluation: Evaluation, name: str) -> list[str]:
    """A task itself; the tasks of a group, and of the groups in it."""
    if name in evaluation.samples:
        return [name]
    children = evaluation.results.get("group_subtasks", {}).get(name, [])
    return [task for child in children for task in _tasks_of(evaluation, child)]
