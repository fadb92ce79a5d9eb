"""Numbers in answers: one function reads them, one compares them."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from typing import Any

from moe_lab.errors import TaskError
from moe_lab.results.code import versioned

TOLERANCE = Fraction(1, 1000)
"""Around a right answer that is not whole, as 0.6666666666666666. It is that of LLM-Adapters (Hu et
al., 2023), from which the RoE paper has the arithmetic sets."""
MOST_CHARACTERS = 300
"""A longer text is no number. Models that repeat a digit write thousands."""

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_FRACTION = rf"(?<![\w./])-?\$?(?:\d+ )?{_DIGITS} ?/ ?0*[1-9]\d*(?!\d|/\d|\.\d)"
"""2/3, and 1 2/3, which is more than one. No part of a date (5/12/2020)."""
_DECIMAL = rf"(?<![\w.])-?\$?{_DIGITS}(?:\.\d+)?(?:[eE][+-]?\d{{1,3}}(?!\w))?"
_BARE_DECIMAL = r"(?<![\w.])-?\$?\.\d+"
_NUMBER = re.compile(f"{_FRACTION}|{_DECIMAL}|{_BARE_DECIMAL}")
_WRITTEN = (
    ("\N{MINUS SIGN}", "-"),
    ("{,}", ","),
    (r"\,", ","),
    (r"\$", "$"),
)
"""Signs of texts and of LaTeX, and the plain ones in their places. Both commas separate
thousands."""
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_MIXED = re.compile(r"(?<=\d)\s*(?=\\[dt]?frac\{)")


def answer_number(text: str) -> str:
    """The number after the last "####", else the last number of the text, else "".

    >>> answer_number("3 + 4 = 7 apples.\\n#### 1,007 apples.")
    '1007'
    >>> answer_number("He pays $12.50.")
    '12.50'
    >>> answer_number("Each gets 2/3 of a cake.")
    '2/3'
    """
    text = _plain_signs(text)
    _, marker, after = text.rpartition("####")
    numbers = _NUMBER.findall(after)
    if marker and numbers:
        return _plain(numbers[0])
    numbers = _NUMBER.findall(text)
    return _plain(numbers[-1]) if numbers else ""


def read_number(text: str) -> Fraction | None:
    """The number that a whole text is; None for another text."""
    text = _plain_signs(text).strip()
    if len(text) > MOST_CHARACTERS or not _NUMBER.fullmatch(text):
        return None
    plain = _plain(text)
    sign = -1 if plain.startswith("-") else 1
    parts = [Fraction(part) for part in plain.removeprefix("-").split(" ")]
    return sign * sum(parts, start=Fraction(0))


def same_number(answer: str, gold: str) -> bool:
    """Whether an answer is the right number: equal if that is whole, otherwise within 0.001 of
    it."""
    number = read_number(answer)
    right = read_number(gold)
    if number is None or right is None:
        return False
    if right.denominator == 1:
        return number == right
    return abs(number - right) <= TOLERANCE


@versioned("vote over numbers", 1)
def vote(responses: list[list[str]], documents: Any) -> list[list[str]]:
    """lm-eval filter: the answer that most samples of a document give, of several the one that was
    sampled first.

    Samples that give the same number, such as 29 and 29.0, agree. The number is written as most of
    them write it.
    """
    return [[_majority(list(answers))] for answers in responses]


def _majority(answers: list[str]) -> str:
    """The most frequent answer, as most of its samples write it; of equally frequent ones the one
    that comes first."""
    groups: list[list[str]] = []
    for answer in answers:
        _add_to_group(answer, groups)
    largest = max(groups, key=len)
    [(answer, _)] = Counter(largest).most_common(1)
    return answer


def _add_to_group(answer: str, groups: list[list[str]]) -> None:
    """Add an answer to the first group that agrees with it, or to a new one."""
    for group in groups:
        if _agree(answer, group[0]):
            group.append(answer)
            return
    groups.append([answer])


def _agree(answer: str, other: str) -> bool:
    """Whether two answers are the same text or the same number."""
    return answer == other or (same_number(answer, other) and same_number(other, answer))


def _plain_signs(text: str) -> str:
    """A text with plain signs in place of those of texts and of LaTeX: `\\frac{2}{3}` becomes
    2/3."""
    for written, plain in _WRITTEN:
        text = text.replace(written, plain)
    text = _MIXED.sub(" ", text)
    return _LATEX_FRACTION.sub(r"\1/\2", text)


def _plain(number: str) -> str:
    """Without commas, the sign of dollars, and blanks around the line of a fraction.

    >>> _plain("$1,000 / 3")
    '1000/3'
    """
    return re.sub(r" ?/ ?", "/", number.replace(",", "").replace("$", ""))


@versioned("extract number", 1)
def extract_answers(responses: list[list[str]], documents: Any) -> list[list[str]]:
    """lm-eval filter: the answer's number of every response."""
    return [[answer_number(text) for text in texts] for texts in responses]


@versioned("same number", 1)
def score_number(document: dict[str, Any], results: list[str]) -> dict[str, float]:
    """lm-eval `process_results`: 1.0 if the filtered answer is the document's number."""
    return {"exact_match": float(same_number(results[0], _gold(document)))}


@versioned("check that answers are numbers", 1)
def check_golds(split: Any) -> Any:
    """lm-eval `process_docs`: the documents as they are. Raises TaskError for a right answer that
    is no number."""
    if not {"question", "answer"} <= set(split.column_names):
        return split  # lm-eval names the column
    for i, document in enumerate(split):
        if read_number(_gold(document)) is None:
            raise TaskError(
                f"Document {i} ({str(document['question'])[:60]!r}) has "
                f"answer={document['answer']!r}: no number.\n"
                "Write a number alone, such as 12, -7, 1,500, 0.5 or 2/3."
            )
    return split


def _gold(document: dict[str, Any]) -> str:
    """The right answer as text, also where the data has a number of JSON."""
    return str(document["answer"])
