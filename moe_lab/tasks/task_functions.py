"""Functions that the task YAMLs of this folder name (`!function`)."""

from __future__ import annotations

import re
from typing import Any

from moe_lab.errors import TaskError
from moe_lab.results.code import versioned


def local_only(
    *, task: str, source: str, documents: int, row: str, folder: str | None = None, **_: Any
) -> None:
    """The `custom_dataset` of tasks without a known hub data set. Raises TaskError asking for
    `data_dir`."""
    raise TaskError(
        f"Task {task} needs data_dir=<folder> with {folder or task}/test.jsonl: {documents:,} "
        f"lines such as\n{row}\n"
        f"The documents are those of {source}."
    )


_ASKS = re.compile(r"\s*\b(Answer|A):\s*$")
"""The end of a prompt of BIG-bench, which asks for the answer."""
_LISTED = re.compile(r"\n+((?:[A-Z]\. [^\n]*\n?)+)$")
"""Options, one a line, at the end of a prompt."""


@versioned("BIG-bench questions", 1)
def plain_questions(split: Any) -> Any:
    """An lm-eval `process_docs`: {"question", "options", "gold"} of the rows that have one right
    choice."""
    from datasets import Dataset

    rows = []
    for row in split:
        right_choices = [score for score in row["multiple_choice_scores"] if score]
        if len(right_choices) == 1:
            rows.append(plain_question(row))
    return Dataset.from_list(rows) if rows else split.select([])


def plain_question(row: dict[str, Any]) -> dict[str, Any]:
    """A row of BIG-bench as question, texts of the options and index of the right one.

    >>> row = {
    ...     "inputs": "Q: Which is wet?\\nA. Fire\\nB. Rain\\nAnswer: ",
    ...     "multiple_choice_targets": ["A", "B"],
    ...     "multiple_choice_scores": [0, 1],
    ... }
    >>> plain_question(row)
    {'question': 'Q: Which is wet?', 'options': ['Fire', 'Rain'], 'gold': 1}
    """
    question = _ASKS.sub("", row["inputs"])
    options = list(row["multiple_choice_targets"])
    listed = _LISTED.search(question)
    if listed:
        texts = [line[len("A. ") :].strip() for line in listed[1].strip().split("\n")]
        if len(texts) == len(options):
            question = question[: listed.start()]
            options = texts
    scores = [bool(score) for score in row["multiple_choice_scores"]]
    return {"question": question.strip(), "options": options, "gold": scores.index(True)}
