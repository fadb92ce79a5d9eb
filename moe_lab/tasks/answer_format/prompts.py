"""The "Answer format: answer1/answer2/..." prompts of Hu et al. (LLM-Adapters, 2023), whom RoE follows (section 3.1).

Each function is an lm-eval `process_docs`: it adds `query` (the prompt), `names` (what the model may answer) and `gold`
(the index of the right one) to every row of a split.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moe_lab.tasks.versions import versioned

if TYPE_CHECKING:
    from datasets import Dataset

QUESTION = "Please choose the correct answer to the question"
SENTENCE = "Please choose the correct ending to complete the given sentence"


def columns(instruction: str, question: str, options: Sequence[str], gold: int, name: str) -> dict[str, Any]:
    """The three columns of one question whose options are called `<name>1`, `<name>2`, ...

    >>> columns(QUESTION, "Is it so?", ["yes", "no"], 1, "answer")["names"]
    ['answer1', 'answer2']
    """
    names = [f"{name}{number}" for number in range(1, len(options) + 1)]
    listed = " ".join(f"{one.capitalize()}: {option}" for one, option in zip(names, options, strict=True))
    query = f"{instruction}: {question}\n\n{listed}\n\nAnswer format: {'/'.join(names)}\n\n"
    return {"query": query, "names": names, "gold": gold}


@versioned("answer_format.arc", 1)
def arc(split: Dataset) -> Dataset:
    """ARC, and OpenBookQA, whose question is the column `question_stem`."""

    def row(document: dict[str, Any]) -> dict[str, Any]:
        question = document.get("question_stem") or document["question"]
        choices = document["choices"]
        gold = choices["label"].index(document["answerKey"].strip())
        return columns(QUESTION, question, choices["text"], gold, "answer")

    return split.map(row)


@versioned("answer_format.social_iqa", 1)
def social_iqa(split: Dataset) -> Dataset:
    def row(document: dict[str, Any]) -> dict[str, Any]:
        options = [document[column] for column in ("answerA", "answerB", "answerC")]
        question = f"{document['context']} {document['question']}"
        return columns(QUESTION, question, options, int(document["label"]) - 1, "answer")

    return split.map(row)


@versioned("answer_format.hellaswag", 1)
def hellaswag(split: Dataset) -> Dataset:
    def row(document: dict[str, Any]) -> dict[str, Any]:
        sentence = f"{document['activity_label']}: {document['ctx']}"
        return columns(SENTENCE, sentence, document["endings"], int(document["label"]), "ending")

    return split.map(row)
