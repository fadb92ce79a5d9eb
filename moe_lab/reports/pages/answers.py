"""The answers of stored runs, alone and paired with the answers of another run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from moe_lab.results.measured import Interval
from moe_lab.results.model import RunResult, find_run
from moe_lab.results.samples import Sample, metric_values
from moe_lab.results.scores import headline
from moe_lab.results.statistics import tango


def baseline_of(run: RunResult) -> RunResult | None:
    """The run of the base model that a stored run is compared with, in the folder next to its own."""
    run_id = run.other_id()
    return None if run_id is None else find_run(run.stored_in.parent, run_id)


# An answer as lm-eval's sample log has it: a generated text, or the log-probabilities of the choices

PICKED_BY: dict[str, Callable[[float, str], float]] = {
    "acc": lambda score, choice: score,
    "acc_norm": lambda score, choice: score / max(1, len(choice.lstrip())),
}
"""The value that lm-eval's accuracies maximize over the choices: log-probability, or log-probability per character."""


LONGEST_MARK = 40
"""Most characters of the mark that a filter returns if it finds no answer, such as [invalid]."""


@dataclass(frozen=True)
class Answer:
    """An answer to one document."""

    prompt: str
    text: str | None
    """The generated text; None for a scored choice."""
    choices: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    """The log-probability of each choice, in nats."""
    picked: int | None = None
    """The choice that the metric takes; None if this package does not know the metric's rule."""
    extracted: str | None = None
    """The part of the text that the metric reads, such as the number after ####; None if it reads the whole text."""


def answer_of(sample: Sample, metric: str) -> Answer | None:
    """The answer in a sample log; None for a text that is scored as a whole.

    If each choice has its own prompt (WinoGrande), the prompts become the choices, and their common end the prompt.

    Args:
        metric: the name of the metric, without the filter.
    """
    requests = sample.requests
    if not requests or len(requests[0]) < 2:
        return None
    if not isinstance(requests[0][1], str):
        return Answer(str(requests[0][0]), _generated(sample), extracted=_extracted(sample))
    if "acc_mutual_info" in sample.values:  # the second half has the choices without the question
        requests = requests[: len(requests) // 2]
    prompts, endings = ([str(each[part]) for each in requests] for part in (0, 1))
    scores = tuple(float(response[0][0]) for response in sample.responses[: len(requests)])
    if len(set(prompts)) > 1 == len(set(endings)):
        return Answer(endings[0], None, tuple(prompts), scores, _largest(scores) if metric == "acc" else None)
    picked = None
    if len(endings) > 1 and (rule := PICKED_BY.get(metric)) is not None:
        picked = _largest([rule(score, ending) for score, ending in zip(scores, endings, strict=True)])
    return Answer(prompts[0], None, tuple(endings), scores, picked)


def _extracted(sample: Sample) -> str | None:
    """The part of one generated text that the metric reads; None if it reads the text, or prompt and text (code)."""
    if len(sample.responses[0]) != 1 or len(sample.filtered) != 1 or not isinstance(sample.filtered[0], str):
        return None
    found, whole = sample.filtered[0], str(sample.responses[0][0]).strip()
    return found if found.strip() != whole and len(found) <= max(LONGEST_MARK, len(whole)) else None


def _generated(sample: Sample) -> str:
    """The generated text. For several texts the first one, and the result of their vote."""
    first, *others = sample.responses[0]
    if not others:
        return str(first)
    return f"{first}\n\n[first of {len(others) + 1} answers; evaluated: {sample.filtered[0]}]"


def _largest(values: Sequence[float]) -> int:
    return values.index(max(values))


# The answers of a run with their scores, alone and paired with those of another run


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer, and its score by the headline metric."""

    number: int
    """The document's number."""
    answer: Answer
    sample: Sample
    score: Any
    right: bool | None
    """None for a score that is not 0 or 1."""


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one document."""

    number: int
    """The document's number."""
    before: Answer
    after: Answer
    sample: Sample
    """The later run's sample."""
    scores: tuple[Any, Any]
    """The headline metric's values."""
    right: tuple[bool, bool] | None
    """Whether each answer is right; None for scores that are not 0 or 1."""

    @property
    def flipped(self) -> bool:
        """Whether one answer is right and the other wrong."""
        return self.right is not None and self.right[0] is not self.right[1]


def scored_answers(result: RunResult, task: str, samples: Sequence[Sample]) -> Iterator[ScoredAnswer]:
    """The answers of one run to a task, by the filter of its headline metric.

    A text that is scored as a whole has no answer.
    """
    key = headline(result.scores(task), result.metric)
    metric, _, filter_name = key.partition(",")
    lower_is_better = result.lower_is_better(task, key)
    values = metric_values(samples).get(key, {})
    for sample in samples:
        if sample.filter == filter_name and (answer := answer_of(sample, metric)) is not None:
            score = values.get(sample.document)
            right = (score == 1) is not lower_is_better if score in (0, 1) else None
            yield ScoredAnswer(sample.document, answer, sample, score, right)


def answer_pairs(
    result: RunResult, task: str, before: Sequence[Sample], after: Sequence[Sample]
) -> Iterator[AnswerPair]:
    """The answers of two runs to each document of a task that both answered.

    Args:
        result: the later run. Its headline metric scores the answers of both.
        before, after: both sample logs.
    """
    earlier = {scored.number: scored for scored in scored_answers(result, task, before)}
    for own in scored_answers(result, task, after):
        if (first := earlier.get(own.number)) is not None:
            right = None if first.right is None or own.right is None else (first.right, own.right)
            scores = first.score, own.score
            yield AnswerPair(own.number, first.answer, own.answer, own.sample, scores, right)


# The gain of a run by the confidence of the base model

GROUPS = 4
LEAST = 5
"""Fewest documents of a group. With fewer than GROUPS times this number there is no table."""


@dataclass(frozen=True)
class Paired:
    """A question with choices: the base model's confidence, and whether each answer is right."""

    confidence: float
    before: bool
    after: bool


@dataclass(frozen=True)
class Group:
    """Questions of similar confidence."""

    low: float
    high: float
    n: int
    base: float
    """Share that the base model has right."""
    gain: float
    interval: Interval
    """Tango's, at 95%."""
    flips: tuple[int, int]


def confidence(answer: Answer) -> float | None:
    """The probability of the picked choice among the choices; None for an answer without one."""
    most = max(answer.scores, default=-math.inf)
    if answer.picked is None or math.isinf(most):
        return None
    weights = [math.exp(score - most) for score in answer.scores]
    return weights[answer.picked] / sum(weights)


def by_confidence(pairs: Sequence[Paired]) -> list[Group]:
    """GROUPS groups of equal size, in the order of confidence; empty for few questions."""
    if len(pairs) < GROUPS * LEAST:
        return []
    ordered = sorted(pairs, key=lambda pair: pair.confidence)
    edges = [round(len(ordered) * i / GROUPS) for i in range(GROUPS + 1)]
    return [_group(ordered[start:end]) for start, end in pairwise(edges)]


def _group(pairs: Sequence[Paired]) -> Group:
    won = sum(pair.after and not pair.before for pair in pairs)
    lost = sum(pair.before and not pair.after for pair in pairs)
    n = len(pairs)
    return Group(
        low=pairs[0].confidence,
        high=pairs[-1].confidence,
        n=n,
        base=sum(pair.before for pair in pairs) / n,
        gain=(won - lost) / n,
        interval=tango(won, lost, n),
        flips=(won, lost),
    )
