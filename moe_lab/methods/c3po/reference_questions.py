"""Reference documents as questions to the untouched model, and which of them it answers correctly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError

if TYPE_CHECKING:
    from moe_lab.config import Config
    from moe_lab.engine.lm import EngineLM
    from moe_lab.methods.c3po.reference_tasks import ReferenceDocuments


@dataclass(frozen=True)
class Question:
    """A multiple-choice question as lm-eval asks it."""

    task: str
    """`<task>:<split>`"""
    number: int
    """Of its document in that split."""
    choices: list[tuple[str, str]]
    """(prompt, answer) of every choice, the prompt always the same."""
    gold: int
    """Index of the right choice."""


def reference_questions(config: Config, documents: ReferenceDocuments) -> list[Question]:
    """All chosen documents, asked without examples and otherwise as the run asks its task.

    Raises ConfigError for tasks that put their choices into the prompt.
    """
    from moe_lab.tasks.documents import gold_choice
    from moe_lab.tasks.requests import build_requests

    zero_shot = replace(config, num_fewshot=0)
    framing = _framing(config)
    questions: list[Question] = []
    for key, task in documents.tasks.items():
        numbers = documents.samples[key]
        if not numbers:
            continue
        asked = build_requests(zero_shot, task, framing, numbers)
        for number, instances in zip(numbers, asked, strict=True):
            document = instances[0].doc
            count = len(
                task.doc_to_choice(document)
            )  # some metrics ask each choice once more, without its prompt
            choices = [tuple(instance.args) for instance in instances[:count]]
            if len({prompt for prompt, _ in choices}) > 1:
                raise ConfigError(
                    f"{key} has a prompt of its own for every choice, and C3PO re-routes the last token of one prompt: "
                    "task.answer=letters asks it with one."
                )
            questions.append(Question(key, number, choices, gold_choice(task, document)))
    return questions


def _framing(config: Config) -> Any:
    """What puts prompts into the run's chat template, as evaluation does; it is asked no question."""
    from moe_lab.models.tokenizer import load_tokenizer
    from moe_lab.results.recorded import RecordedLM

    unasked: Any = None
    return RecordedLM(
        unasked,
        unasked,
        lambda: load_tokenizer(config.model, offline=config.offline),
        config.apply_chat_template,
    )


def answered_correctly(questions: Sequence[Question], lm: EngineLM) -> list[Question]:
    """Those whose right choice has the highest log-likelihood (the first one, where several have it)."""
    from moe_lab.engine.lm import Request

    requests = [Request(choice) for question in questions for choice in question.choices]
    answers: dict[int, tuple[float, bool]] = {}
    progress, lm.progress = lm.progress, False
    try:
        lm.answer("loglikelihood", requests, answers.__setitem__)
    finally:
        lm.progress = progress
    correct = []
    start = 0
    for question in questions:
        scores = [answers[start + i][0] for i in range(len(question.choices))]
        start += len(scores)
        if scores.index(max(scores)) == question.gold:
            correct.append(question)
    return correct
