"""The scores of several answers to a document (`samples_per_document`), as a table."""

import re
from collections.abc import Sequence

from moe_lab.reports.columns import Column, names, numbers, print_table
from moe_lab.reports.labels import run_labels
from moe_lab.reports.score_columns import interval_column, signed_number
from moe_lab.results.measured import number
from moe_lab.results.model import RunResult
from moe_lab.results.score import Score
from moe_lab.results.scores import scores_of

MEAN = "avg@"
"""The beginning of the metric that a task has with several answers alone: HumanEval's own is
`pass@1`."""
OF_ANSWERS = re.compile(r"(avg|pass|maj)@\d+,")
"""Beginnings of their metrics."""


def print_answers(results: Sequence[RunResult]) -> None:
    """Print one table of all results with several answers to a document; nothing without any."""
    scores = []
    settings = []
    for result, label in zip(results, run_labels(results), strict=True):
        of_result = answer_scores(result)
        scores += of_result
        settings += [label] * len(of_result)
    if scores:
        print()
        print_table("Several answers to a document", _columns(scores, settings))


def answer_scores(result: RunResult) -> list[Score]:
    """The scores of each task of a run whose metrics are of several answers, by metric."""
    scores = []
    for task, reported in result.lm_eval.results.items():
        if not any(metric.startswith(MEAN) for metric in reported):
            continue
        for metric in reported:
            if OF_ANSWERS.match(metric):
                scores += [score for score in scores_of(result, metric) if score.task == task]
    return scores


def _columns(scores: Sequence[Score], settings: Sequence[str]) -> list[Column]:
    """The columns of the table."""
    return [
        *names(
            model=[score.model for score in scores],
            method=[score.method for score in scores],
            settings=list(settings),
            task=[score.task for score in scores],
            metric=[score.metric for score in scores],
        ),
        numbers("value", [score.value for score in scores], number),
        interval_column("95% interval", [score.interval for score in scores], spare=2),
        numbers("to base", [score.difference for score in scores], signed_number),
        interval_column(
            "95% interval", [score.difference_interval for score in scores], sign=True, spare=3
        ),
    ]
