"""Several answers to each document (`samples_per_document=k`): pass@j, the mean over answers, and
their vote.

A task is asked `k` times (lm-eval's `repeats`), its filters keep all answers, and its own metric
scores each. With c right answers of k, a document has

    pass@j = 1 - C(k - c, j) / C(k, j)    (Chen et al., 2021, arXiv 2107.03374),
    avg@k  = c / k,
    maj@k  = whether the most frequent answer is right (self-consistency).

pass@j is the unbiased estimate of the probability that one of j answers is right. A score is the
mean over documents, so that intervals and tests have documents as units, with their answers inside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from moe_lab.errors import TaskError
from moe_lab.results.code import versioned
from moe_lab.tasks.answer_numbers import vote
from moe_lab.tasks.judges import score
from moe_lab.tasks.lm_eval_versions import has_scorers
from moe_lab.tasks.self_consistency import sampling

TAKE_FIRST = "take_first"
TAKE_SEVERAL = ("majority_vote", "take_first_k")
"""lm-eval's filters that make one answer of several."""


@versioned("all answers of a document, scored one by one", 1)
def keep_answers(responses: Any, documents: Any) -> list[list[Any]]:
    """lm-eval filter: all answers of each document."""
    return [list(answers) for answers in responses]


def with_answers(config: dict[str, Any], count: int) -> dict[str, Any]:
    """An lm-eval task's configuration with `count` answers to each document, all of which its
    filters return.

    Filters that vote themselves are left out. Raises TaskError for a task without generated
    answers that are right or wrong one by one.
    """
    reason = _obstacle(config)
    filters = []
    for ensemble in _filters(config):
        steps = ensemble["filter"]
        if any(step["function"] in TAKE_SEVERAL for step in steps):
            continue
        if _takes_first(ensemble):
            steps = steps[:-1]
        keep_step = {"function": "custom", "filter_fn": keep_answers}
        filters.append({**ensemble, "filter": [*steps, keep_step]})
    if reason is None and not filters:
        reason = "has no filter that takes one answer"
    if reason is not None:
        raise TaskError(
            f"samples_per_document={count} scores each of several generated answers, and "
            f"{config['task']} {reason}.\nLeave it out."
        )
    generation = sampling(config)
    return {**config, "repeats": count, "filter_list": filters, "generation_kwargs": generation}


def _obstacle(config: dict[str, Any]) -> str | None:
    """Why a task's answers cannot be scored one by one; None if they can."""
    if "class" in config:
        return "is a Python class"
    if config.get("output_type") != "generate_until":
        return "scores given texts"
    if config.get("process_results") is score:
        return "is judged"
    if has_scorers():
        return "has scorers, as all tasks of lm-eval 0.5 (use 0.4)"
    return None


def _filters(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The filters of a task; lm-eval's own where it has none."""
    default = [{"name": "none", "filter": [{"function": TAKE_FIRST}]}]
    return config.get("filter_list") or default


def _takes_first(ensemble: dict[str, Any]) -> bool:
    """Whether a filter returns the first answer, and not a list of all."""
    return bool(ensemble["filter"][-1]["function"] == TAKE_FIRST)


class SeveralAnswers:
    """Scores all answers of a document by the task's own metric, its first one.

    Args:
        task: made of `with_answers(config, count)`.
        config: as it was before.

    Raises TaskError for a metric whose score is not the mean over documents.
    """

    def __init__(self, task: Any, config: dict[str, Any], count: int):
        from lm_eval.api.metrics import mean

        self.count = count
        self._score_answer = task.process_results
        self._metric = next(iter(task.aggregation()))
        if task.aggregation()[self._metric] is not mean:
            raise TaskError(
                f"samples_per_document={count} needs answers that are right or wrong, and the "
                f"first metric of {config['task']}, {self._metric}, is no mean over them.\n"
                "Leave it out."
            )
        filters = _filters(config)
        self._takes_first = all(_takes_first(ensemble) for ensemble in filters)
        extracts = all(len(ensemble["filter"]) > 1 for ensemble in filters)
        self._votes = self._takes_first and extracts

    @property
    def metrics(self) -> list[str]:
        """The metrics of a document; the mean over answers is the first one."""
        names = [f"avg@{self.count}", *(f"pass@{j}" for j in reported(self.count))]
        if self._votes:
            names.append(f"maj@{self.count}")
        return names

    def install(self, task: Any) -> None:
        """Let the task report these metrics, all of them means of which higher ones are better."""
        from lm_eval.api.metrics import mean

        task.several_answers = self
        task.process_results = self.process_results
        task.aggregation = lambda: dict.fromkeys(self.metrics, mean)
        task.higher_is_better = lambda: dict.fromkeys(self.metrics, True)

    def process_results(self, document: Any, results: Sequence[Any]) -> dict[str, float]:
        """lm-eval's `process_results`: each metric of a document, from a list of its answers."""
        [answers] = results
        right = sum(self.is_right(document, answer) for answer in answers)
        values = {f"avg@{self.count}": right / self.count}
        for j in reported(self.count):
            values[f"pass@{j}"] = pass_at(self.count, right, j)
        if self._votes:
            [[voted]] = vote([list(answers)], [document])
            values[f"maj@{self.count}"] = float(self.is_right(document, voted))
        return values

    def is_right(self, document: Any, answer: Any) -> int:
        """Whether an answer is right: 1 or 0. Raises ValueError for another value."""
        given = answer if self._takes_first else [answer]
        value = self._score_answer(document, [given])[self._metric]
        if value not in (0, 1):
            raise ValueError(f"{self._metric} of an answer is {value}, and not 0 or 1")
        return int(value)


def reported(count: int) -> list[int]:
    """The j of the pass@j that are reported: powers of two, and the number of answers."""
    numbers = []
    j = 1
    while j < count:
        numbers.append(j)
        j *= 2
    return [*numbers, count]


def pass_at(count: int, right: int, j: int) -> float:
    """The share of all choices of j among `count` answers that have a right one.

    >>> pass_at(4, 1, 2)
    0.5
    """
    return 1 - math.comb(count - right, j) / math.comb(count, j)
