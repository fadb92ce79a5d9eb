"""The answers of stored runs as pages show them, next to the base model's answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moe_lab.results.atomic import plain
from moe_lab.results.model import RunResult
from moe_lab.results.reading import find_run
from moe_lab.results.samples import Sample, metric_values, read_samples
from moe_lab.results.scores import headline
from moe_lab.results.stored_files import DamagedError

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

    sample: Sample
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

    @property
    def target(self) -> str:
        """The right answer. lm-eval logs a text, or the number of the right choice."""
        target = str(self.sample.target)
        is_choice = target.isdecimal() and int(target) < len(self.choices) > 1
        return self.choices[int(target)].strip() if is_choice else target


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
        return _generated(sample)
    if "acc_mutual_info" in sample.values:  # the second half has the choices without the question
        requests = requests[: len(requests) // 2]
    prompts, endings = ([str(each[part]) for each in requests] for part in (0, 1))
    scores = tuple(float(response[0][0]) for response in sample.responses[: len(requests)])
    rule, choices, prompt = PICKED_BY.get(metric), endings, prompts[0]
    if len(set(prompts)) > 1 == len(set(endings)):
        prompt, choices, rule = endings[0], prompts, rule if metric == "acc" else None
    picked = None
    if len(choices) > 1 and rule is not None:
        values = list(map(rule, scores, choices))
        picked = values.index(max(values))
    return Answer(sample, prompt, None, tuple(choices), scores, picked)


def _generated(sample: Sample) -> Answer:
    """A generated text. For several texts the first one, and the result of their vote."""
    prompt, (first, *others) = str(sample.requests[0][0]), map(str, sample.responses[0])
    if others:
        vote = f"[first of {len(others) + 1} answers; evaluated: {sample.filtered[0]}]"
        return Answer(sample, prompt, f"{first}\n\n{vote}")
    if len(sample.filtered) != 1 or not isinstance(sample.filtered[0], str):
        return Answer(sample, prompt, first)
    # a filter of code returns more than the text: prompt and text
    found, whole = sample.filtered[0], first.strip()
    part = found.strip() != whole and len(found) <= max(LONGEST_MARK, len(whole))
    return Answer(sample, prompt, first, extracted=found if part else None)


Scored = tuple[Answer, Any, bool | None]
"""An answer, its score by the headline metric, and whether it is right: None for a score that is not 0 or 1."""


def _scored(result: RunResult, task: str, samples: Sequence[Sample]) -> dict[int, Scored]:
    """The answers of one run to a task by document, by the filter of its headline metric.

    A text that is scored as a whole has no answer.
    """
    key = headline(result.lm_eval.scores(task), result.metric)
    metric, _, filter_name = key.partition(",")
    best = 0 if result.lm_eval.better(task, key) is False else 1
    values = metric_values(samples).get(key, {})
    found = {}
    for sample in samples:
        if sample.filter == filter_name and (answer := answer_of(sample, metric)) is not None:
            score = values.get(sample.document)
            found[sample.document] = answer, score, score == best if score in (0, 1) else None
    return found


# Answers as a page shows them

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
ALONE = (WRONG, RIGHT, ANSWERED)
"""Kinds of runs without a base model."""
KINDS = (*CHANGES, SAME_WRONG, SAME_RIGHT, UNCHANGED, *ALONE)
"""How an answer differs from the base model's."""


def first_difference(one: str, other: str) -> int:
    """The position of the first differing character, or the start of the word that contains it."""
    shared = zip(one, other, strict=False)
    same = next(
        (i for i, (mine, theirs) in enumerate(shared) if mine != theirs), min(len(one), len(other))
    )
    if (one[same : same + 1] + other[same : same + 1]).strip():
        while same and not one[same - 1].isspace():
            same -= 1
    return same


def shown_answer(
    answers: Sequence[Answer], scores: Sequence[Any], kind: str, **place: Any
) -> dict[str, Any]:
    """The answer of a run as the page's script reads it, alone or next to the base model's. Texts are cut.

    It has `prompt` (the whole prompt as the model saw it), `target`, `kind`, whether it is `changed`, and of the others
    those that apply: `scores` of each answer if one is not 0 or 1; the texts `base` and `own`, the position at which
    the two differ (in units of UTF-16, as the script counts), and what the metric reads of each (`extracted`);
    `options`, the choices with their log-probability for each answer, and the choices that are `picked`.

    Args:
        answers: the base model's, if there is one, and the run's own.
        scores: the metric's value of each answer.
        kind: one of KINDS.
        place: `run`, `task`, `document`, and `right`: whether the run's own answer is right.
    """
    own = answers[-1]
    shown = {
        "kind": kind,
        "changed": kind in CHANGES,
        "prompt": own.prompt,
        "target": own.target[:LONGEST_ANSWER],
    }
    shown |= {name: value for name, value in place.items() if value is not None}
    if any(score not in (0, 1) for score in scores):
        shown["scores"] = list(scores)
    texts = [answer.text[:LONGEST_ANSWER] for answer in answers if answer.text is not None]
    if len(texts) < len(answers):
        options = zip(own.choices, *(answer.scores for answer in answers), strict=True)
        return shown | {
            "options": list(map(list, options)),
            "picked": [answer.picked for answer in answers],
        }
    if any(answer.extracted is not None for answer in answers):
        shown["extracted"] = [
            answer.extracted and answer.extracted[:LONGEST_ANSWER] for answer in answers
        ]
    if len(texts) == 1:
        return shown | {"own": texts[0]}
    same = texts[0][: first_difference(*texts)]
    return shown | {"base": texts[0], "own": texts[1], "differs": _length_in_script(same)}


def _length_in_script(text: str) -> int:
    """The length of a text as JavaScript counts it: an emoji has two units of UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def answer_data(answers: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """The data for the script of a page: `answers`, and `prompts` with the number of characters left out of each.

    Each prompt is stored once. Its beginning, which has the few-shot examples, is cut to an equal share of PROMPTS.
    """
    numbers = {
        prompt: i for i, prompt in enumerate(dict.fromkeys(one["prompt"] for one in answers))
    }
    longest = max(SHORTEST_CUT, PROMPTS // max(1, len(numbers)))
    prompts = [[prompt[-longest:], max(0, len(prompt) - longest)] for prompt in numbers]
    found = [{**one, "prompt": numbers[one["prompt"]]} for one in answers]
    return {"prompts": prompts, "answers": plain(found)}


# All answers of the runs of a page, next to the base model's answers if a run is compared with it


def shown_answers(
    runs: Sequence[RunResult], labels: Sequence[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """The answers of all runs as `shown_answer` has them, changed ones first, and why others are not there.

    A baseline's answers are shown only next to those of the other runs.

    Args:
        labels: a name for each run.
    """
    found, problems, read = [], list[str](), dict[str, Mapping[str, Sequence[Sample]]]()
    baselines = {run.base_id for run in runs}
    for run, label in zip(runs, labels, strict=True):
        if run.run_id in baselines:
            continue
        try:
            baseline = None if run.base_id is None else find_run(run.stored_in.parent, run.base_id)
            if baseline is not None and baseline.run_id not in read:
                read[baseline.run_id] = read_samples(baseline)
            found += list(_answers(run, label, None if baseline is None else read[baseline.run_id]))
        except DamagedError as error:
            problems.append(f"{label}: {error.problem}")
            continue
        if baseline is None and run.base_id is not None:
            problems.append(f"{label}: the run of the base model is not stored here.")
    return sorted(found, key=lambda each: KINDS.index(each["kind"])), problems


def _answers(
    run: RunResult, label: str, base: Mapping[str, Sequence[Sample]] | None
) -> Iterator[dict[str, Any]]:
    """All answers of a run. With the samples of the base model, only to documents that both answered."""
    for task, samples in read_samples(run).items():
        earlier = _scored(run, task, (base or {}).get(task, ()))
        for document, own in _scored(run, task, samples).items():
            if base is None or document in earlier:
                both = [own] if base is None else [earlier[document], own]
                answers, scores, rights = zip(*both, strict=True)
                yield shown_answer(
                    answers,
                    scores,
                    _kind(answers, scores, rights),
                    run=label,
                    task=task,
                    document=document,
                    right=None if None in rights else rights[-1],
                )


def _kind(answers: Sequence[Answer], scores: Sequence[Any], rights: Sequence[bool | None]) -> str:
    """One of KINDS, of the run's own answer alone or of the base model's and the run's own."""
    if len(answers) == 1:
        return {True: RIGHT, False: WRONG, None: ANSWERED}[rights[0]]
    before, after = zip(
        (one.text for one in answers), (one.picked for one in answers), scores, strict=True
    )
    if None in rights:
        return UNCHANGED if before == after else CHANGED
    right, wrong = (SAME_RIGHT, SAME_WRONG) if before == after else (STILL_RIGHT, STILL_WRONG)
    if rights[0] is not rights[1]:
        right, wrong = TO_RIGHT, TO_WRONG
    return right if rights[1] else wrong
