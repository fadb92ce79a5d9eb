"""All answers of stored runs as pages show them, next to the base model's answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moe_lab.reports.pages.answers import (
    Answer,
    AnswerPair,
    Paired,
    answer_pairs,
    baseline_of,
    confidence,
    scored_answers,
)
from moe_lab.reports.pages.page import UNEXPECTED, left_out
from moe_lab.results.model import RunResult
from moe_lab.results.samples import Sample, read_samples
from moe_lab.results.stored_files import DamagedError

PROMPTS = 8_000_000
"""Characters of all prompts on a page, so that one with 10,000 answers still opens at once."""
SHORTEST_CUT = 1500
"""Characters of each prompt that a page has in any case, its last ones."""
LONGEST_ANSWER = 2000
MOST = 20_000
"""Answers on one page."""

TO_RIGHT, TO_WRONG = "wrong to right", "right to wrong"
STILL_RIGHT, STILL_WRONG = "right, with another answer", "wrong, with another answer"
CHANGED = "changed"
CHANGES = (TO_RIGHT, TO_WRONG, STILL_RIGHT, STILL_WRONG, CHANGED)
"""Kinds of answers that differ from the base model's."""
SAME_RIGHT, SAME_WRONG, UNCHANGED = "right, unchanged", "wrong, unchanged", "unchanged"
RIGHT, WRONG, ANSWERED = "right", "wrong", "answered"
KINDS = (*CHANGES, SAME_WRONG, SAME_RIGHT, UNCHANGED, WRONG, RIGHT, ANSWERED)
"""How an answer differs from the base model's. The last three kinds belong to runs without a base model."""


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
    """One or two answers to a document, cut to the shown length. The page's script reads the fields that are set."""

    run: str
    task: str
    document: int
    kind: str
    """One of KINDS."""
    prompt: str
    """The whole prompt as the model saw it, with few-shot examples and chat template."""
    target: str
    right: bool | None = None
    """Whether the run's own answer is right; None of scores that are not 0 or 1."""
    scores: list[Any] | None = None
    """The metric's value of each answer; None if all are 0 or 1."""
    base: str | None = None
    own: str | None = None
    """The position at which the generated texts begin to differ."""
    differs: int | None = None
    extracted: list[str | None] | None = None
    """The part of each generated text that the metric reads."""
    options: list[list[Any]] | None = None
    """The choices, each with its log-probability for each answer."""
    picked: list[int | None] | None = None

    @property
    def changed(self) -> bool:
        return self.kind in CHANGES

    def to_json(self) -> dict[str, object]:
        """The fields that are not None, without the prompt, which `answer_data` stores once for all runs."""
        found = {name: value for name, value in vars(self).items() if value is not None and name != "prompt"}
        return found | {"changed": self.changed}


def answer_data(answers: Sequence[ShownAnswer]) -> dict[str, object]:
    """The data for the script of a page: `answers`, and `prompts` with the number of characters left out of each.

    Each prompt is stored once. Its beginning, which has the few-shot examples, is cut to an equal share of PROMPTS.
    """
    numbers = {prompt: i for i, prompt in enumerate(dict.fromkeys(one.prompt for one in answers))}
    longest = max(SHORTEST_CUT, PROMPTS // max(1, len(numbers)))
    prompts = [[prompt[-longest:], max(0, len(prompt) - longest)] for prompt in numbers]
    return {
        "prompts": prompts,
        "answers": [one.to_json() | {"prompt": numbers[one.prompt]} for one in answers],
    }


def shown_answer(answers: Sequence[Answer], target: str, scores: Sequence[Any], **place: Any) -> ShownAnswer:
    """The answer of a run as a page shows it, alone or next to the base model's.

    Args:
        answers: the base model's, if there is one, and the run's own.
        target: the right answer as lm-eval logs it: a text, or the number of the right choice.
        scores: the metric's value of each answer.
        place: `run`, `task`, `document`, `kind` and `right`.
    """
    own = answers[-1]
    if target.isdecimal() and int(target) < len(own.choices) > 1:
        target = own.choices[int(target)].strip()
    shown = ShownAnswer(
        prompt=own.prompt,
        target=target[:LONGEST_ANSWER],
        scores=list(scores) if any(score not in (0, 1) for score in scores) else None,
        **place,
    )
    texts = [answer.text[:LONGEST_ANSWER] for answer in answers if answer.text is not None]
    if len(texts) < len(answers):
        options = zip(own.choices, *(answer.scores for answer in answers), strict=True)
        picked = [answer.picked for answer in answers]
        return replace(shown, options=[list(option) for option in options], picked=picked)
    extracted = [answer.extracted and answer.extracted[:LONGEST_ANSWER] for answer in answers]
    if any(text is not None for text in extracted):
        shown = replace(shown, extracted=extracted)
    if len(texts) == 1:
        return replace(shown, own=texts[0])
    return replace(shown, base=texts[0], own=texts[1], differs=first_difference(*texts))


# All answers of the runs of a page, next to the base model's answers if a run is compared with it


@dataclass
class Examples:
    """The answers of a page."""

    answers: list[ShownAnswer] = field(default_factory=list)
    """In the order of KINDS: changed answers first."""
    documents: int = 0
    """Documents that were compared."""
    changed: int = 0
    """Documents whose answer differs, including answers that are left out."""
    left_out: int = 0
    """Answers beyond MOST."""
    problems: list[str] = field(default_factory=list)
    """The reasons why the answers of a run cannot be compared."""
    pairs: dict[str, list[Paired]] = field(default_factory=dict)
    """All multiple-choice questions with right or wrong answers, by run."""


def examples_of(runs: Sequence[RunResult], labels: Sequence[str]) -> Examples:
    """The answers of all runs. A baseline's answers are shown only next to those of the other runs.

    Args:
        labels: a name for each run.
    """
    found, read = Examples(), dict[str, dict[str, list[Sample]]]()
    baselines = {run.other_id() for run in runs}
    for run, label in zip(runs, labels, strict=True):
        if run.run_id in baselines:
            continue
        try:
            _add_run(found, run, label, read)
        except DamagedError as error:
            found.problems.append(f"{label}: {error.problem}")
        except UNEXPECTED as error:
            found.problems.append(f"{label}: {left_out(run.stored_in, error)}")
    found.answers.sort(key=lambda each: KINDS.index(each.kind))
    found.changed = sum(each.changed for each in found.answers)
    found.left_out = max(0, len(found.answers) - MOST)
    del found.answers[MOST:]
    return found


def _add_run(found: Examples, run: RunResult, label: str, read: dict[str, dict[str, list[Sample]]]) -> None:
    """Add all answers of a run, or none if one cannot be read. `read` has the sample logs of baselines by run id."""
    own, baseline = read_samples(run), baseline_of(run)
    if baseline is None:
        if run.other_id() is not None:
            found.problems.append(f"{label}: the run of the base model is not stored here.")
        found.answers += [one for task, lines in own.items() for one in _alone(run, label, task, lines)]
        return
    if baseline.run_id not in read:
        read[baseline.run_id] = read_samples(baseline)
    of_run = Examples()
    for task, lines in own.items():
        _add_pairs(of_run, run, label, task, read[baseline.run_id].get(task, []), lines)
    found.answers += of_run.answers
    found.documents += of_run.documents
    found.pairs |= of_run.pairs


def _alone(run: RunResult, label: str, task: str, samples: Sequence[Sample]) -> Iterator[ShownAnswer]:
    kinds = {True: RIGHT, False: WRONG, None: ANSWERED}
    for scored in scored_answers(run, task, samples):
        place = {"run": label, "task": task, "document": scored.number, "kind": kinds[scored.right]}
        target = str(scored.sample.target)
        yield shown_answer([scored.answer], target, [scored.score], right=scored.right, **place)


def _add_pairs(
    found: Examples,
    run: RunResult,
    label: str,
    task: str,
    before: Sequence[Sample],
    after: Sequence[Sample],
) -> None:
    """Add the answers to the documents of one task."""
    for pair in answer_pairs(run, task, before, after):
        found.documents += 1
        sure = confidence(pair.before)
        if sure is not None and pair.right is not None:
            found.pairs.setdefault(label, []).append(Paired(sure, *pair.right))
        target, right = str(pair.sample.target), None if pair.right is None else pair.right[1]
        place = {"run": label, "task": task, "document": pair.number, "kind": _kind(pair), "right": right}
        found.answers.append(shown_answer([pair.before, pair.after], target, pair.scores, **place))


def _kind(pair: AnswerPair) -> str:
    """One of KINDS."""
    same_answer = pair.before.text == pair.after.text and pair.before.picked == pair.after.picked
    same = same_answer and pair.scores[0] == pair.scores[1]
    if pair.right is None:
        return UNCHANGED if same else CHANGED
    before, after = pair.right
    if before is not after:
        return TO_RIGHT if after else TO_WRONG
    if same:
        return SAME_RIGHT if after else SAME_WRONG
    return STILL_RIGHT if after else STILL_WRONG
