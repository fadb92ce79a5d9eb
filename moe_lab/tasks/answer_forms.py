"""Forms of answers that replace a task's own: letters (`task.answer`), majority votes (`task.self_consistency`)."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from itertools import takewhile
from string import ascii_uppercase
from typing import Any

from moe_lab.errors import TaskError
from moe_lab.models.lm_eval_internals import rendered_template
from moe_lab.results.code import versioned
from moe_lab.tasks.answer_numbers import vote
from moe_lab.tasks.documents import all_rows
from moe_lab.tasks.judges import score

# Letters: multiple-choice questions with lettered options, answered by a letter
#
#     Question: What do plants breathe in?
#     A. Carbon dioxide
#     B. Helium
#     Answer:
#
# Every answer is one token, as C3PO's "last token" requires. The question and the options come from the task's lm-eval
# configuration. Tasks whose options are letters already (MMLU) are unchanged.

PROMPT, LETTERS, GOLD = "letters_prompt", "letters", "letters_gold"
"""Columns added to every document."""
_ASKS = re.compile(r"\b(Answer|A):\s*$")
"""The end of a task's own prompt, before the options."""
_REPLACED = ("doc_to_text", "doc_to_target", "doc_to_choice", "process_docs")


def in_letters(config: dict[str, Any]) -> dict[str, Any]:
    """An lm-eval task's configuration with letters as answers; unchanged for tasks that generate answers.

    Raises TaskError for other tasks without choices, and for one that scores its answers by a function of its own,
    which reads the options of each document in the order of its data.
    """
    if config.get("output_type") == "generate_until":
        return dict(config)
    if config.get("output_type") != "multiple_choice" or config.get("doc_to_choice") is None:
        raise TaskError(
            f"{config['task']} is no multiple-choice task of lm-eval: it cannot be answered by letters, as "
            "task.answer=letters and method=c3po ask.\nOther methods ask it as lm-eval does, with task.answer=text."
        )
    own_choices = config["doc_to_choice"]
    if isinstance(own_choices, list) and own_choices == list(ascii_uppercase[: len(own_choices)]):
        return config
    if config.get("process_results") is not None:
        raise TaskError(
            f"{config['task']} scores its answers by a function of its own, which letters in another order would "
            "mislead: it cannot be answered by letters, as task.answer=letters and method=c3po ask.\nOther methods ask "
            "it as lm-eval does, with task.answer=text."
        )
    own = {key: config.get(key) for key in _REPLACED}
    fewshot = {k: v for k, v in (config.get("fewshot_config") or {}).items() if k not in _REPLACED}
    return {
        **config,
        "process_docs": partial(_add_columns, own),
        "doc_to_text": PROMPT,
        "doc_to_choice": LETTERS,
        "doc_to_target": GOLD,
        "target_delimiter": " ",
        "fewshot_config": fewshot or None,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }


@versioned("answer in letters", 1)
def _add_columns(own: dict[str, Any], split: Any) -> Any:
    """lm-eval `process_docs`: adds the lettered question to the documents."""
    from datasets import Dataset, concatenate_datasets

    if own["process_docs"] is not None:
        split = own["process_docs"](split)
    rows = [lettered(own, document) for document in all_rows(split)]
    # add_column would hash each column's values for a cache that nothing reads
    return concatenate_datasets([split, Dataset.from_list(rows)], axis=1)


def lettered(own: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The added columns of one document; `own` has the task's `doc_to_text`, `doc_to_target` and `doc_to_choice`.

    Raises TaskError for a document without exactly one right option, and for one with more options than letters.
    """
    text, target = (_value(own[key], document) for key in ("doc_to_text", "doc_to_target"))
    choices = [str(choice).strip() for choice in _value(own["doc_to_choice"], document)]
    if isinstance(text, int):
        # WinoGrande's contexts differ in the filler of a blank alone
        words = [context.split(" ") for context in choices]
        same = list(takewhile(lambda words: len(set(words)) == 1, zip(*words, strict=False)))
        begin = " ".join([position[0] for position in same] + ["_"])
        choices, gold = [" ".join(own[len(same) :]) for own in words], text
        question = f"Question: {begin} {target}"
    else:
        question = _ASKS.sub("", str(text)).strip()
        gold = _place_of(target, choices, question)
    if len(choices) > len(ascii_uppercase):
        raise TaskError(
            f"task.answer=letters: a question has {len(choices)} options, and there are {len(ascii_uppercase)} "
            f"letters: {question[:60]!r}.\nAsk by texts: task.answer=text."
        )
    if _is_fixed(
        own["doc_to_target"], document
    ):  # the right answer has the same place in every document
        order = list(range(len(choices)))
        random.Random(sha256(question.encode()).hexdigest()).shuffle(order)  # by the question alone
        choices, gold = [choices[i] for i in order], order.index(gold)
    letters = ascii_uppercase[: len(choices)]
    options = "".join(
        f"{letter}. {choice}\n" for letter, choice in zip(letters, choices, strict=True)
    )
    return {
        PROMPT: f"{question}\n{options}Answer:",
        LETTERS: list(letters),
        GOLD: gold,
    }


def _place_of(target: Any, choices: list[str], question: str) -> int:
    """The place of the right answer, which is given as a place or as a text.

    Raises TaskError where there is none, or several.
    """
    if isinstance(target, str) and target.strip() in choices:
        return choices.index(target.strip())
    if isinstance(target, int) and 0 <= target < len(choices):
        return target
    raise TaskError(
        f"task.answer=letters needs one right option for each question, and the right answer of {question[:60]!r} is "
        f"{target!r}.\nAsk by texts: task.answer=text."
    )


def _is_fixed(target: Any, document: dict[str, Any]) -> bool:
    """Whether a task's `doc_to_target` is the same place in every document: 0, or "0"."""
    if isinstance(target, int):
        return True
    return isinstance(target, str) and target.strip().isdigit() and target not in document


def _value(field: Any, document: dict[str, Any]) -> Any:
    """lm-eval's evaluation of a `doc_to_...` field: a function, a column, a template, or a value."""
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
    return ast.literal_eval(text) if text.startswith("[") and text.endswith("]") else text


# Self-consistency: k sampled answers to each document, and a majority vote over what the task extracts
#
# Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (arXiv 2203.11171). The samples
# are lm-eval's `repeats`. The vote is its filter `majority_vote`, but 29 and 29.0 are the same answer.

TEMPERATURE = 0.7
"""The temperature of the samples if neither the task nor `gen_kwargs` turns sampling on."""


def voted(config: dict[str, Any], count: int) -> dict[str, Any]:
    """An lm-eval task's configuration with `count` samples, and a vote in each of its filters before `take_first`.

    The most frequent answer wins; of equally frequent answers, the one that was sampled first. Samples without an
    extracted answer vote for the filter's fallback, such as "[invalid]".

    Raises TaskError for a task without an extracted answer.
    """
    filters = config.get("filter_list")
    reasons = {
        "is a Python class": "class" in config,
        "scores given texts": config.get("output_type") != "generate_until",
        "executes programs": config.get("unsafe_code"),
        "is judged": config.get("process_results") is score,
        "has repeats of its own": config.get("repeats", 1) != 1,
        "extracts none": not isinstance(filters, list) or not all(map(_extracts, filters)),
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise TaskError(
            f"task.self_consistency={count} votes over the answers that a task extracts from generated texts, and "
            f"{config['task']} {reason}.\nLeave it out."
        )
    filters = [
        {
            **one,
            "filter": [
                *one["filter"][:-1],
                {"function": "custom", "filter_fn": vote},
                one["filter"][-1],
            ],
        }
        for one in config["filter_list"]
    ]
    generation = dict(config.get("generation_kwargs") or {})
    if not generation.get("do_sample"):
        generation |= {"do_sample": True, "temperature": TEMPERATURE}
    return {**config, "repeats": count, "filter_list": filters, "generation_kwargs": generation}


def _extracts(one: dict[str, Any]) -> bool:
    """Whether a filter extracts an answer from every sample, and takes the first one at its end."""
    functions = [step["function"] for step in one["filter"]]
    return (
        len(functions) > 1 and "take_first" not in functions[:-1] and functions[-1] == "take_first"
    )
