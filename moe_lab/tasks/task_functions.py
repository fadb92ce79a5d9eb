"""Functions that the task YAMLs of this folder name (`!function`). Run ids contain this module's syntax tree."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from moe_lab.errors import TaskError

if TYPE_CHECKING:
    pass


# Tasks without a known hub data set


def local_only(
    *, task: str, source: str, documents: int, row: str, folder: str | None = None, **_: Any
) -> None:
    """The `custom_dataset` of tasks without a known hub data set. Raises TaskError asking for `data_dir`."""
    raise TaskError(
        f"Task {task} needs data_dir=<folder> with {folder or task}/test.jsonl: {documents:,} lines such as\n{row}\n"
        f"The documents are those of {source}."
    )


# arithmetic/: the final number of a worked answer

_NUMBER = re.compile(r"(?<![\w.])-?\$?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])-?\.\d+")


def answer_number(text: str) -> str:
    """The number after the last "####", else the last number of the text, else "".

    >>> answer_number("3 + 4 = 7 apples.\\n#### 1,007 apples.")
    '1007'
    >>> answer_number("He pays $12.50.")
    '12.50'
    """
    _, marker, after = text.rpartition("####")
    numbers = _NUMBER.findall(after)
    if marker and numbers:
        return _plain(numbers[0])
    numbers = _NUMBER.findall(text)
    return _plain(numbers[-1]) if numbers else ""


def same_number(answer: str, gold: str) -> bool:
    """Whether two strings are numbers that differ by at most 1e-6, absolutely or relatively ("15.0" is "15")."""
    try:
        return math.isclose(float(answer), float(_plain(gold)), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def _plain(number: str) -> str:
    return number.replace(",", "").replace("$", "")


def extract_answers(responses: list[list[str]], documents: Any) -> list[list[str]]:
    """lm-eval filter: the answer's number of every response."""
    return [[answer_number(text) for text in texts] for texts in responses]


def score_number(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    """lm-eval `process_results`: 1.0 if the filtered answer is the document's number."""
    return {"exact_match": float(same_number(results[0], document["answer"]))}


# references/: multiple-choice questions of BIG-bench

_ASKS = re.compile(r"\s*\b(Answer|A):\s*$")
_LISTED = re.compile(r"\n+((?:[A-Z]\. [^\n]*\n?)+)$")
"""Options, one a line, at the end of a prompt."""


def plain_questions(split: Any) -> Any:
    """An lm-eval `process_docs`: {"question", "options", "gold"} of the rows that have one right choice."""
    from datasets import Dataset

    rows = [plain_question(row) for row in split if sum(map(bool, row["multiple_choice_scores"])) == 1]
    return Dataset.from_list(rows) if rows else split.select([])


def plain_question(row: dict[str, Any]) -> dict[str, Any]:
    """A row of BIG-bench as question, texts of the options and index of the right one.

    >>> row = {"inputs": "Q: Which is wet?\\nA. Fire\\nB. Rain\\nAnswer: ", "multiple_choice_targets": ["A", "B"]}
    >>> plain_question(row | {"multiple_choice_scores": [0, 1]})
    {'question': 'Q: Which is wet?', 'options': ['Fire', 'Rain'], 'gold': 1}
    """
    question, options = _ASKS.sub("", row["inputs"]), list(row["multiple_choice_targets"])
    listed = _LISTED.search(question)
    if listed:
        texts = [line[len("A. ") :].strip() for line in listed[1].strip().split("\n")]
        if len(texts) == len(options):
            question, options = question[: listed.start()], texts
    scores = [bool(score) for score in row["multiple_choice_scores"]]
    return {"question": question.strip(), "options": options, "gold": scores.index(True)}
