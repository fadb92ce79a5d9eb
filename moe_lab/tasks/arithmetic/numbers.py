"""Numbers in worked answers: extracting the final one, and comparing two."""

from __future__ import annotations

import math
import re
from typing import Any

from moe_lab.errors import TaskError
from moe_lab.tasks.versions import versioned

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


@versioned("arithmetic.extract_answers", 1)
def extract_answers(responses: list[list[str]], documents: Any) -> list[list[str]]:
    """lm-eval filter: the answer's number of every response."""
    return [[answer_number(text) for text in texts] for texts in responses]


@versioned("arithmetic.score", 1)
def score(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    """lm-eval `process_results`: 1.0 if the filtered answer is the document's number."""
    return {"exact_match": float(same_number(results[0], document["answer"]))}


def local_only(*, task: str, source: str, documents: int, **_: Any) -> None:
    """The `custom_dataset` of tasks without a known hub data set. Raises TaskError asking for `data_dir`."""
    raise TaskError(
        f"Task {task} needs data_dir=<folder> with {task}/test.jsonl: {documents} lines such as "
        '{"question": "...", "answer": "15"}.\n'
        f"The problems are those of {source}."
    )
