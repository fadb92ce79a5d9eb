"""The answers of stored runs, and those that a run changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from moe_lab.reports.pages.page import UNEXPECTED, left_out
from moe_lab.results.measured import Interval
from moe_lab.results.model import RunResult, find_run
from moe_lab.results.samples import MOST_ROUTED, Routing, Sample, metric_values, read_flips, read_samples
from moe_lab.results.scores import headline
from moe_lab.results.statistics import tango
from moe_lab.results.stored_files import DamagedError


def baseline_of(run: RunResult) -> RunResult | None:
    """The run of the base model that a stored run is compared with, in the folder next to its own."""
    run_id = run.other_id()
    return None if run_id is None else find_run(run.stored_in.parent, run_id)


# An answer as lm-eval's sample log has it: a generated text, or the log-probabilities of the choices

PICKED_BY: dict[str, Callable[[float, str], float]] = {
    "acc": lambda score, choice: score,
    "acc_norm": lambda score, choice: score / max(1, len(choice.lstrip())),
}
"""What lm-eval's accuracies take the largest of: log-probability, or that per character."""

LONGEST_PROMPT = 1500
"""Characters of a prompt that are shown, its last ones: few-shot examples come first."""
LONGEST_ANSWER = 2000


@dataclass(frozen=True)
class Answer:
    """An answer to one document."""

    prompt: str
    text: str | None
    """What was generated; None where choices are scored."""
    choices: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    """The log-probability of each choice, in nats."""
    picked: int | None = None
    """The choice that the metric takes; None where its rule is not known here."""


def answer_of(sample: Sample, metric: str) -> Answer | None:
    """The answer in a sample log; None for a text that is scored as a whole.

    Where each choice is a prompt of its own (WinoGrande), the prompts are the choices and their common end the prompt.

    Args:
        metric: the name of the metric, without the filter.
    """
    requests = sample.requests
    if not requests or len(requests[0]) < 2:
        return None
    if not isinstance(requests[0][1], str):
        return Answer(str(requests[0][0]), _generated(sample))
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


def _generated(sample: Sample) -> str:
    """The generated text; the first one of several, and what they voted for."""
    first, *others = sample.responses[0]
    if not others:
        return str(first)
    return f"{first}\n\n[first of {len(others) + 1} answers; evaluated: {sample.filtered[0]}]"


def _largest(values: Sequence[float]) -> int:
    return values.index(max(values))


def first_difference(one: str, other: str) -> int:
    """The position of the first differing character, or the start of the word that contains it."""
    shared = zip(one, other, strict=False)
    same = next((i for i, (mine, theirs) in enumerate(shared) if mine != theirs), min(len(one), len(other)))
    if (one[same : same + 1] + other[same : same + 1]).strip():
        while same and not one[same - 1].isspace():
            same -= 1
    return same


@dataclass(frozen=True, kw_only=True)
class ShownAnswer:
    """Two answers to a document, cut to what a page shows. Its script reads what is not None."""

    run: str
    task: str
    document: int
    kind: str
    """One of KINDS."""
    prompt: str
    cut: int
    """Characters of the prompt that are left out."""
    target: str
    scores: list[Any] | None = None
    """The metric's values of both; None where all are 0 or 1."""
    base: str | None = None
    own: str | None = None
    """Generated texts, and where they begin to differ."""
    differs: int | None = None
    options: list[list[Any]] | None = None
    """Choices, each with its log-probability in both runs."""
    picked: list[int | None] | None = None
    routing: Routing | None = None

    def to_json(self) -> dict[str, object]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def side_by_side(
    before: Answer, after: Answer, target: str, scores: tuple[Any, ...], **place: Any
) -> ShownAnswer:
    """Two answers as a page shows them.

    Args:
        target: the right answer as lm-eval logs it: a text, or the number of the right choice.
        scores: the metric's values of both.
        place: `run`, `task`, `document` and `kind`.
    """
    if target.isdecimal() and int(target) < len(after.choices) > 1:
        target = after.choices[int(target)].strip()
    shown = ShownAnswer(
        prompt=after.prompt[-LONGEST_PROMPT:],
        cut=max(0, len(after.prompt) - LONGEST_PROMPT),
        target=target[:LONGEST_ANSWER],
        scores=list(scores) if any(score not in (0, 1) for score in scores) else None,
        **place,
    )
    if before.text is not None and after.text is not None:
        texts = before.text[:LONGEST_ANSWER], after.text[:LONGEST_ANSWER]
        return replace(shown, base=texts[0], own=texts[1], differs=first_difference(*texts))
    options = zip(after.choices, before.scores, after.scores, strict=True)
    return replace(shown, options=[list(each) for each in options], picked=[before.picked, after.picked])


# The answers of two runs to the same documents


@dataclass(frozen=True)
class AnswerPair:
    """Two answers to one document."""

    number: int
    """Of the document."""
    before: Answer
    after: Answer
    sample: Sample
    """Of the later run."""
    scores: tuple[Any, Any]
    """The headline metric's values."""
    lower_is_better: bool

    @property
    def right(self) -> tuple[bool, bool] | None:
        """Whether each answer is right; None of scores that are not 0 or 1."""
        if any(score not in (0, 1) for score in self.scores):
            return None
        before, after = ((score == 1) is not self.lower_is_better for score in self.scores)
        return before, after

    @property
    def flipped(self) -> bool:
        """Whether one answer is right and the other wrong."""
        return self.right is not None and self.right[0] is not self.right[1]


def answer_pairs(
    result: RunResult, task: str, before: Sequence[Sample], after: Sequence[Sample]
) -> Iterator[AnswerPair]:
    """The answers to each document of a task, by the filter of its headline metric.

    Texts that are scored as a whole have none.

    Args:
        result: the later run.
        before, after: both sample logs.
    """
    key = headline(result.scores(task), result.metric)
    metric, _, filter_name = key.partition(",")
    lower = result.lower_is_better(task, key)
    values = [metric_values(samples).get(key, {}) for samples in (before, after)]
    earlier = {one.document: one for one in before if one.filter == filter_name}
    for one in (each for each in after if each.filter == filter_name and each.document in earlier):
        number = one.document
        without, own = answer_of(earlier[number], metric), answer_of(one, metric)
        if without is not None and own is not None:
            scores = values[0].get(number), values[1].get(number)
            yield AnswerPair(number, without, own, one, scores, lower)


# What a run gains on questions that the base model was sure of, and on those that it was not

GROUPS = 4
LEAST = 5
"""Documents of a group; with fewer than GROUPS times as many there is no table."""


@dataclass(frozen=True)
class Paired:
    """A question with choices: how sure the base model was, and who was right."""

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
    """GROUPS groups of equal size from the least to the greatest confidence; none of few questions."""
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


# The documents whose answer a run changed: from wrong to right, from right to wrong, or without consequence

TO_RIGHT, TO_WRONG = "wrong to right", "right to wrong"
STILL_RIGHT, STILL_WRONG = "right, with another answer", "wrong, with another answer"
CHANGED = "changed"
KINDS = (TO_RIGHT, TO_WRONG, STILL_RIGHT, STILL_WRONG, CHANGED)
MOST = 20_000
"""Changed answers on one page."""


@dataclass
class ChangedAnswers:
    """What a page shows of them."""

    answers: list[ShownAnswer] = field(default_factory=list)
    documents: int = 0
    """Documents that were compared."""
    left_out: int = 0
    """Changed answers beyond MOST."""
    problems: list[str] = field(default_factory=list)
    """Why the answers of a run cannot be compared."""
    unrouted: int = 0
    """Flips beyond MOST_ROUTED, whose routing is not shown."""
    pairs: dict[str, list[Paired]] = field(default_factory=dict)
    """By run: all questions with choices that are right or wrong."""


def changed_answers(runs: Sequence[RunResult], labels: Sequence[str]) -> ChangedAnswers:
    """The changed answers of all runs that are compared with a baseline, next to the baseline's answers.

    Args:
        labels: a name for each run.
    """
    found, read = ChangedAnswers(), dict[str, dict[str, list[Sample]]]()
    for run, label in zip(runs, labels, strict=True):
        if run.other_id() is None:
            continue
        baseline = baseline_of(run)
        if baseline is None:
            found.problems.append(f"{label}: the run of the base model is not stored here.")
            continue
        try:
            own = read_samples(run)
            if baseline.run_id not in read:
                read[baseline.run_id] = read_samples(baseline)
        except DamagedError as error:
            found.problems.append(f"{label}: {error.problem}")
            continue
        try:
            of_run = ChangedAnswers()
            for task, lines in own.items():
                _add(of_run, run, label, task, read[baseline.run_id].get(task, []), lines)
        except UNEXPECTED as error:
            found.problems.append(f"{label}: {left_out(run.stored_in, error)}")
            continue
        found.answers += of_run.answers
        found.documents += of_run.documents
        found.pairs |= of_run.pairs
        _add_routing(found, run, label)
    found.answers.sort(key=lambda each: KINDS.index(each.kind))
    found.left_out = max(0, len(found.answers) - MOST)
    del found.answers[MOST:]
    return found


def _add(
    found: ChangedAnswers,
    run: RunResult,
    label: str,
    task: str,
    before: Sequence[Sample],
    after: Sequence[Sample],
) -> None:
    """Add the changed answers to the documents of one task."""
    for pair in answer_pairs(run, task, before, after):
        found.documents += 1
        sure = confidence(pair.before)
        if sure is not None and pair.right is not None:
            found.pairs.setdefault(label, []).append(Paired(sure, *pair.right))
        if _same(pair.before, pair.after) and pair.scores[0] == pair.scores[1]:
            continue
        target, place = str(pair.sample.target), {"run": label, "task": task, "document": pair.number}
        found.answers.append(
            side_by_side(pair.before, pair.after, target, pair.scores, kind=_kind(pair), **place)
        )


def _add_routing(found: ChangedAnswers, run: RunResult, label: str) -> None:
    """Add to a run's answers what routing changed there, where that is stored."""
    try:
        flips = read_flips(run.stored_in) or []
    except DamagedError as error:
        found.problems.append(f"{label}: {error.problem}")
        return
    found.unrouted += len(flips[MOST_ROUTED:])
    routing = {(flip.task, flip.document): flip.routing for flip in flips[:MOST_ROUTED]}
    found.answers = [
        replace(one, routing=routing.get((one.task, one.document))) if one.run == label else one
        for one in found.answers
    ]


def _same(before: Answer, after: Answer) -> bool:
    return before.text == after.text and before.picked == after.picked


def _kind(pair: AnswerPair) -> str:
    """One of KINDS."""
    if pair.right is None:
        return CHANGED
    before, after = pair.right
    if before is after:
        return STILL_RIGHT if after else STILL_WRONG
    return TO_RIGHT if after else TO_WRONG
