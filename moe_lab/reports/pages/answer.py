"""An answer as lm-eval's sample log has it: a generated text, or the log-probabilities of the choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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


def answer_of(line: dict[str, Any], metric: str) -> Answer | None:
    """The answer in a line of a sample log; None for a text that is scored as a whole.

    Where each choice is a prompt of its own (WinoGrande), the prompts are the choices and their common end the prompt.

    Args:
        metric: the name of the metric, without the filter.
    """
    requests = list(line["arguments"].values())
    if not requests or "arg_1" not in requests[0]:
        return None
    if not isinstance(requests[0]["arg_1"], str):
        return Answer(str(requests[0]["arg_0"]), _generated(line))
    if "acc_mutual_info" in line.get("metrics", ()):  # the second half has the choices without the question
        requests = requests[: len(requests) // 2]
    prompts, endings = ([str(each[key]) for each in requests] for key in ("arg_0", "arg_1"))
    scores = tuple(float(response[0][0]) for response in line["resps"][: len(requests)])
    if len(set(prompts)) > 1 == len(set(endings)):
        return Answer(endings[0], None, tuple(prompts), scores, _largest(scores) if metric == "acc" else None)
    picked = None
    if len(endings) > 1 and (rule := PICKED_BY.get(metric)) is not None:
        picked = _largest([rule(score, ending) for score, ending in zip(scores, endings, strict=True)])
    return Answer(prompts[0], None, tuple(endings), scores, picked)


def _generated(line: dict[str, Any]) -> str:
    """The generated text; the first one of several, and what they voted for."""
    first, *others = line["resps"][0]
    if not others:
        return str(first)
    return f"{first}\n\n[first of {len(others) + 1} answers; evaluated: {line['filtered_resps'][0]}]"


def _largest(values: Sequence[float]) -> int:
    return values.index(max(values))


def first_difference(one: str, other: str) -> int:
    """The position of the first differing character, or where the word begins that it stands in."""
    shared = zip(one, other, strict=False)
    same = next((i for i, (mine, theirs) in enumerate(shared) if mine != theirs), min(len(one), len(other)))
    if (one[same : same + 1] + other[same : same + 1]).strip():
        while same and not one[same - 1].isspace():
            same -= 1
    return same


def side_by_side(before: Answer, after: Answer, target: str, scores: tuple[Any, ...]) -> dict[str, Any]:
    """Prompt, target and both answers, cut to what a page shows.

    Args:
        target: the right answer as lm-eval logs it: a text, or the number of the right choice.
        scores: the metric's values of both; shown if they are not 0 or 1.
    """
    shown: dict[str, Any] = {
        "prompt": after.prompt[-LONGEST_PROMPT:],
        "cut": max(0, len(after.prompt) - LONGEST_PROMPT),
        "target": target[:LONGEST_ANSWER],
    }
    if any(score not in (0, 1) for score in scores):
        shown["scores"] = list(scores)
    if before.text is not None and after.text is not None:
        texts = before.text[:LONGEST_ANSWER], after.text[:LONGEST_ANSWER]
        return shown | {"base": texts[0], "own": texts[1], "differs": first_difference(*texts)}
    if target.isdecimal() and int(target) < len(after.choices) > 1:
        shown["target"] = after.choices[int(target)].strip()
    options = zip(after.choices, before.scores, after.scores, strict=True)
    return shown | {"options": [list(each) for each in options], "picked": [before.picked, after.picked]}
