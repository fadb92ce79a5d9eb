"""The scores of a results.json: value, interval, comparison with the base model, notes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moe_lab.results.marks import EQUAL, PART, marks_of
from moe_lab.results.measured import Paired
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.score import MCNEMAR, PERMUTATION, Score
from moe_lab.results.statistics import mcnemar, tango, wilson
from moe_lab.results.task_scores import is_mean, reported


def scores_of(result: RunResult, metric: str | None = None, other: str = BASE) -> list[Score]:
    """The scores of a run, one per group and task: its headline metric, or `metric` (lm-eval's
    `metric,filter`).

    The tasks that `task.name` lists come first, then the groups within them, then all tasks; names
    without scores are left out. A task that does not report the metric has the score of its first
    metric. The parts of a listed group that is compared as a whole (MMLU's subjects) have the note
    `part` and no p, since the group's comparison was asked for.

    Args:
        other: the run that they are compared with: the base model's, or a key of `compared` in
            results.json.
    """
    names = dict.fromkeys([*result.task.names, *result.lm_eval.groups, *result.task.tasks])
    metric = metric or result.metric
    scores = []
    for name in names:
        if name not in result.lm_eval.results:
            continue
        score = _score(result, name, metric, other)
        if name not in result.samples:
            score = _of_group(result, score, metric, other)
        scores.append(score)
    pooled_tasks = _tasks_of_pooled_groups(result, scores)
    return [_without_needless_test(result, score, pooled_tasks) for score in scores]


def _without_needless_test(result: RunResult, score: Score, pooled_tasks: set[str]) -> Score:
    """The score; without p where it is a part of a group that is compared as a whole."""
    listed = score.task in result.task.names
    if not listed and pooled_tasks.issuperset(result.tasks_of(score.task)):
        return replace(score, p=None, test=None, marks=(*score.marks, PART))
    return score


def _of_group(result: RunResult, score: Score, metric: str | None, other: str) -> Score:
    """The score of a group over its documents as one sample, where it is their mean; else the score
    itself."""
    tasks = result.tasks_of(score.task)
    for task in tasks:
        if not is_mean(result.lm_eval.configs.get(task, {}), score.metric):
            return score
    scores_of_tasks = [_score(result, task, metric, other) for task in tasks]
    return pooled(score, scores_of_tasks) or score


def _tasks_of_pooled_groups(result: RunResult, scores: Sequence[Score]) -> set[str]:
    """The tasks of each group that was asked for and whose score is over all its documents as one
    sample."""
    tasks: set[str] = set()
    for score in scores:
        asked = score.task in result.task.names and score.task not in result.samples
        if asked and score.interval is not None:
            tasks.update(result.tasks_of(score.task))
    return tasks


def empty_score(result: RunResult, metric: str) -> Score:
    """The first score of a run with another metric and no numbers but its documents."""
    first = scores_of(result)[0]
    return Score(
        model=first.model,
        method=first.method,
        task=first.task,
        metric=metric,
        run_id=first.run_id,
        n=first.n,
        marks=first.marks,
    )


def shown_scores(result: RunResult, other: str = BASE) -> list[Score]:
    """The scores of the headline metric and of every judge's first metric; `other` as in
    `scores_of`."""
    metrics = [result.metric]
    for judge in result.judges.values():
        metrics.append(judge.metrics[0])
    scores: dict[tuple[str, str], Score] = {}
    for metric in dict.fromkeys(metrics):
        for score in scores_of(result, metric, other):
            scores[score.task, score.metric] = score
    return list(scores.values())


def pooled(whole: Score, tasks: Sequence[Score]) -> Score | None:
    """The score of a group whose metric is a mean, over the documents of its tasks as one sample of
    0s and 1s.

    None where the scores are no shares of documents, or where the group counts its tasks alike.
    Without the numbers of changed documents it has no difference.
    """
    right = 0
    for task in tasks:
        right_in_task = _right_answers(task.value, task.n or 0)
        if right_in_task is None:
            return None
        right += right_in_task
    total = whole.n or 0
    if right != _right_answers(whole.value, total):
        return None
    score = replace(whole, interval=wilson(right, total) if total > 1 else None)
    won = 0
    lost = 0
    for task in tasks:
        if task.changed is None:
            return score
        won += task.changed[0]
        lost += task.changed[1]
    up, down = (lost, won) if score.lower_is_better else (won, lost)
    return replace(
        score,
        baseline=(right - up + down) / total,
        difference=(up - down) / total,
        difference_interval=tango(up, down, total) if total > 1 else None,
        p=mcnemar(won, lost),
        test=MCNEMAR,
        changed=(won, lost),
    )


def _right_answers(share: float | None, documents: int) -> int | None:
    """The number of right answers of which it is the share; None if it is no share of the
    documents."""
    if share is None or not math.isfinite(share):
        return None
    right = round(share * documents)
    is_share = abs(right / max(documents, 1) - share) <= 1e-9
    return right if is_share else None


def _score(result: RunResult, task: str, metric: str | None, other: str) -> Score:
    """The score of a task or a group as results.json has it. Numbers that the file lacks are
    None."""
    scores = result.lm_eval.scores(task)
    metric = headline(scores, metric)
    difference = result.difference(task, metric, other)
    marks = marks_of(result, task, metric)
    if difference.equal:
        marks = (*marks, EQUAL)
    score = Score(
        model=result.model.name,
        method=result.method.name,
        task=task,
        metric=metric,
        run_id=result.run_id,
        n=_documents(result, task, metric),
        value=_number(scores.get(metric)),
        stderr=_number(scores.get(metric.replace(",", "_stderr,", 1))),
        interval=result.interval(task, metric),
        baseline=_number(result.other_scores(task, other).get(metric)),
        other=other,
        lower_is_better=result.lm_eval.better(task, metric) is False,
        marks=marks,
    )
    return compared(score, difference)


def compared(score: Score, difference: Paired) -> Score:
    """The score with its difference to another run, and the p of its test; `test` and `p` are None
    where there was none."""
    test = None
    p = None
    if difference.p_mcnemar is not None:
        test = MCNEMAR
        p = difference.p_mcnemar
    elif difference.p_permutation is not None:
        test = PERMUTATION
        p = difference.p_permutation
    return replace(
        score,
        difference=difference.difference,
        difference_interval=difference.interval,
        equal=difference.equal,
        p=p,
        test=test,
        changed=difference.changed,
    )


def headline(scores: Mapping[str, Any], metric: str | None) -> str:
    """`metric` where the task reports it, else the first reported `metric,filter`; a dash with
    predict_only."""
    reported_metrics = reported(scores)
    if metric in reported_metrics:
        return str(metric)
    return reported_metrics[0] if reported_metrics else "-"


def _documents(result: RunResult, name: str, metric: str) -> int:
    """Documents of a task, or of all tasks of a group; of a judge's metric those that have a
    verdict."""
    counts = result.judge_counts(name, metric)
    if counts is not None:
        return counts.judged
    return sum(len(result.samples[task]) for task in result.tasks_of(name))


def _number(value: Any) -> float | None:
    """The value as a float; None if it is no number, such as lm-eval's "N/A"."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
