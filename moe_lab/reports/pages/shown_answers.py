"""Answers as a page's script reads them: texts are cut, and each prompt is stored once."""

from collections.abc import Mapping, Sequence
from typing import Any

from moe_lab.reports.pages.answer_kinds import CHANGES
from moe_lab.reports.pages.answers import Answer
from moe_lab.results.atomic import plain

PROMPTS = 8_000_000
"""Characters of all prompts on a page, so that one with 10,000 answers still opens at once."""
SHORTEST_CUT = 1500
"""Characters of each prompt that a page has in any case, its last ones."""
LONGEST_ANSWER = 2000


def shown_answer(
    answers: Sequence[Answer], scores: Sequence[Any], kind: str, **place: Any
) -> dict[str, Any]:
    """The answer of a run as the page's script reads it, alone or next to the base model's.

    Texts are cut to LONGEST_ANSWER. Its keys:

    - `prompt` (the whole prompt as the model saw it), `target`, `kind`, `changed` (true or false)
    - those of `place` that are not None
    - `scores` of each answer, if one is not 0 or 1
    - of generated texts: `own`, with a base model also `base` and `differs`, the position at which
      the two differ (in units of UTF-16, as the script counts); `extracted`, what the metric reads
      of each, if it is not the whole text
    - of choices: `options`, each with its log-probability for each answer, and `picked`, the index
      of each answer's choice

    Args:
        answers: the base model's, if there is one, and the run's own.
        scores: the metric's value of each answer.
        kind: one of KINDS (`answer_kinds.py`).
        place: `run`, `task`, `document`, and `right`: whether the run's own answer is right.
    """
    own_answer = answers[-1]
    shown = {
        "kind": kind,
        "changed": kind in CHANGES,
        "prompt": own_answer.prompt,
        "target": own_answer.target[:LONGEST_ANSWER],
    }
    for name, value in place.items():
        if value is not None:
            shown[name] = value
    if any(score not in (0, 1) for score in scores):
        shown["scores"] = list(scores)

    texts = [answer.text[:LONGEST_ANSWER] for answer in answers if answer.text is not None]
    if len(texts) < len(answers):
        return shown | _options(answers)
    if any(answer.extracted is not None for answer in answers):
        shown["extracted"] = [_cut(answer.extracted) for answer in answers]
    if len(texts) == 1:
        return shown | {"own": texts[0]}
    base_text, own_text = texts
    same_text = base_text[: first_difference(base_text, own_text)]
    return shown | {"base": base_text, "own": own_text, "differs": _length_in_script(same_text)}


def _options(answers: Sequence[Answer]) -> dict[str, Any]:
    """The choices with their log-probability for each answer, and what each answer picked."""
    scores_of_answers = [answer.scores for answer in answers]
    options = []
    for choice, *scores in zip(answers[-1].choices, *scores_of_answers, strict=True):
        options.append([choice, *scores])
    return {"options": options, "picked": [answer.picked for answer in answers]}


def _cut(text: str | None) -> str | None:
    """The first characters of a text; None stays None."""
    return None if text is None else text[:LONGEST_ANSWER]


def first_difference(text: str, other: str) -> int:
    """The position of the first differing character, or the start of the word that contains it."""
    position = 0
    for character, other_character in zip(text, other, strict=False):
        if character != other_character:
            break
        position += 1

    next_characters = text[position : position + 1] + other[position : position + 1]
    if next_characters.strip():
        while position > 0 and not text[position - 1].isspace():
            position -= 1
    return position


def _length_in_script(text: str) -> int:
    """The length of a text as JavaScript counts it: an emoji has two units of UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def answer_data(answers: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """The data for the script of a page.

    `prompts` has each prompt once, as [text, number of characters that are left out]: its
    beginning, which has the few-shot examples, is cut so that all prompts have an equal share of
    PROMPTS. `answers` are the answers, whose `prompt` is an index in `prompts`.
    """
    prompts = list(dict.fromkeys(answer["prompt"] for answer in answers))
    numbers = {prompt: number for number, prompt in enumerate(prompts)}
    longest = max(SHORTEST_CUT, PROMPTS // max(1, len(prompts)))
    cut_prompts = [[prompt[-longest:], max(0, len(prompt) - longest)] for prompt in prompts]
    numbered = [{**answer, "prompt": numbers[answer["prompt"]]} for answer in answers]
    return {"prompts": cut_prompts, "answers": plain(numbered)}
