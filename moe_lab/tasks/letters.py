"""Multiple-choice questions with lettered options, answered by a letter (`task.answer=letters`).

    Question: What do plants breathe in?
    A. Carbon dioxide
    B. Helium
    Answer:

Every answer is one token, as C3PO's "last token" requires. The question and the options come from
the task's lm-eval configuration. Tasks whose options are letters already (MMLU) are unchanged.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from string import ascii_uppercase
from typing import Any, NamedTuple

from moe_lab.errors import TaskError
from moe_lab.models.lm_eval_internals import rendered_template
from moe_lab.results.code import versioned
from moe_lab.tasks.document_hashes import all_rows

PROMPT = "letters_prompt"
LETTERS = "letters"
GOLD = "letters_gold"
"""Columns added to every document."""
_ASKS = re.compile(r"\b(Answer|A):\s*$")
"""The end of a task's own prompt, before the options."""
_REPLACED = ("doc_to_text", "doc_to_target", "doc_to_choice", "process_docs")


def in_letters(config: dict[str, Any]) -> dict[str, Any]:
    """An lm-eval task's configuration with letters as answers; unchanged for tasks that generate
    answers.

    Raises TaskError for other tasks without choices, and for one that scores its answers by a
    function of its own, which reads the options of each document in the order of its data.
    """
    if config.get("output_type") == "generate_until":
        return dict(config)
    if config.get("output_type") != "multiple_choice" or config.get("doc_to_choice") is None:
        raise TaskError(
            f"{config['task']} is no multiple-choice task of lm-eval: it cannot be answered by "
            "letters, as task.answer=letters and method=c3po ask.\nOther methods ask it as lm-eval "
            "does, with task.answer=text."
        )
    own_choices = config["doc_to_choice"]
    if isinstance(own_choices, list) and own_choices == list(ascii_uppercase[: len(own_choices)]):
        return config
    if config.get("process_results") is not None:
        raise TaskError(
            f"{config['task']} scores its answers by a function of its own, which letters in "
            "another order would mislead: it cannot be answered by letters, as task.answer=letters "
            "and method=c3po ask.\nOther methods ask it as lm-eval does, with task.answer=text."
        )
    replaced = {key: config.get(key) for key in _REPLACED}
    fewshot = {}
    for key, value in (config.get("fewshot_config") or {}).items():
        if key not in _REPLACED:
            fewshot[key] = value
    return {
        **config,
        "process_docs": partial(_add_columns, replaced),
        "doc_to_text": PROMPT,
        "doc_to_choice": LETTERS,
        "doc_to_target": GOLD,
        "target_delimiter": " ",
        "fewshot_config": fewshot or None,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


@versioned("answer in letters", 1)
def _add_columns(fields: dict[str, Any], split: Any) -> Any:
    """lm-eval `process_docs`: adds the lettered question to the documents.

    Args:
        fields: those of the task's own configuration that letters replace.
    """
    from datasets import Dataset, concatenate_datasets

    if fields["process_docs"] is not None:
        split = fields["process_docs"](split)
    rows = [lettered(fields, document) for document in all_rows(split)]
    # add_column would hash each column's values for a cache that nothing reads
    return concatenate_datasets([split, Dataset.from_list(rows)], axis=1)


def lettered(fields: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The added columns of one document; `fields` has the task's `doc_to_text`, `doc_to_target`,
    `doc_to_choice`.

    Raises TaskError for a document without exactly one right option, and for one with more options
    than letters.
    """
    text = _value(fields["doc_to_text"], document)
    target = _value(fields["doc_to_target"], document)
    choices = [str(choice).strip() for choice in _value(fields["doc_to_choice"], document)]
    if isinstance(text, int):
        gold = text
        with_blank = _with_blank(choices)
        choices = with_blank.fillers
        question = f"Question: {with_blank.beginning} {target}"
    else:
        question = _ASKS.sub("", str(text)).strip()
        gold = _place_of(target, choices, question)
    if len(choices) > len(ascii_uppercase):
        raise TaskError(
            f"task.answer=letters: a question has {len(choices)} options, and there are "
            f"{len(ascii_uppercase)} letters: {question[:60]!r}.\nAsk by texts: task.answer=text."
        )
    if _is_fixed(fields["doc_to_target"], document):
        # the right answer has the same place in every document: shuffled by the question alone
        order = list(range(len(choices)))
        random.Random(sha256(question.encode()).hexdigest()).shuffle(order)
        choices = [choices[place] for place in order]
        gold = order.index(gold)

    letters = list(ascii_uppercase[: len(choices)])
    lines = [question]
    for letter, choice in zip(letters, choices, strict=True):
        lines.append(f"{letter}. {choice}")
    lines.append("Answer:")
    return {PROMPT: "\n".join(lines), LETTERS: letters, GOLD: gold}


class _ContextWithBlank(NamedTuple):
    """Contexts that differ in the filler of a blank alone, as WinoGrande has them."""

    beginning: str
    """What all contexts begin with, and a blank `_` after it."""
    fillers: list[str]
    """What each context has in place of the blank."""


def _with_blank(contexts: list[str]) -> _ContextWithBlank:
    """The contexts as one with a blank, after the last word that all of them begin with."""
    words_of_contexts = [context.split(" ") for context in contexts]
    beginning = []
    for words in zip(*words_of_contexts, strict=False):
        if len(set(words)) > 1:
            break
        beginning.append(words[0])
    fillers = [" ".join(words[len(beginning) :]) for words in words_of_contexts]
    return _ContextWithBlank(" ".join([*beginning, "_"]), fillers)


def _place_of(target: Any, choices: list[str], question: str) -> int:
    """The place of the right answer, which is given as a place or as a text.

    Raises TaskError where there is none, or several.
    """
    if isinstance(target, str) and target.strip() in choices:
        return choices.index(target.strip())
    if isinstance(target, int) and 0 <= target < len(choices):
        return target
    raise TaskError(
        "task.answer=letters needs one right option for each question, and the right answer of "
        f"{question[:60]!r} is {target!r}.\nAsk by texts: task.answer=text."
    )


def _is_fixed(target: Any, document: dict[str, Any]) -> bool:
    """Whether a task's `doc_to_target` is the same place in every document: 0, or "0"."""
    if isinstance(target, int):
        return True
    return isinstance(target, str) and target.strip().isdigit() and target not in document


def _value(field: Any, document: dict[str, Any]) -> Any:
    """lm-eval's evaluation of a `doc_to_...` field: a function, a column, a template, or a
    value."""
    if isinstance(field, Callable):  # type: ignore[arg-type]
        return field(document)
    if isinstance(field, dict):
        return list(field.values())
    if not isinstance(field, str):
        return field
    if field in document:
        return document[field]
    text = rendered_template(field, document)
    if text.isdigit():
        return int(text)
    if text.startswith("[") and text.endswith("]"):
        return ast.literal_eval(text)
    return text
