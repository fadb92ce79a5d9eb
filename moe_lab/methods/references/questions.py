"""Reference documents as questions to the untouched model, and which of them it answers correctly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.engine.lm import EngineLM
    from moe_lab.methods.references.documents import ReferenceDocuments
    from moe_lab.models.chat import Framing


@dataclass(frozen=True)
class Choice:
    """A multiple-choice question as lm-eval asks it."""

    task: str
    """`<task>:<split>`"""
    number: int
    """Of its document in that split."""
    choices: list[tuple[str, str]]
    """(prompt, answer) of every choice, the prompt always the same."""
    gold: int
    """Index of the right choice."""
    kind = "loglikelihood"

    @property
    def requests(self) -> list[tuple[str, str]]:
        return self.choices

    @property
    def prompt(self) -> str:
        return self.choices[0][0]

    @property
    def right_answer(self) -> str:
        return self.choices[self.gold][1]

    def graded(self, scores: Sequence[tuple[float, bool]]) -> Graded:
        """The choice with the highest log-likelihood (the first one, where several have it)."""
        values = [score for score, _ in scores]
        best = values.index(max(values))
        return Graded(self, self.choices[best][1], best == self.gold)


@dataclass(frozen=True)
class Generation:
    """A question whose answer the model writes."""

    task: str
    number: int
    lm_eval_task: Any
    instance: Any
    """lm-eval's request."""
    metric: str
    """`metric,filter` of the task by which an answer is right: it is 1."""
    right_answer: str
    """As the task writes it; the model may say it otherwise."""
    kind = "generate_until"

    @property
    def requests(self) -> list[tuple]:
        return [tuple(self.instance.args)]

    @property
    def prompt(self) -> str:
        return self.instance.args[0]

    def graded(self, texts: Sequence[str]) -> Graded:
        """By the task's own filter and metric."""
        name, _, wanted = self.metric.partition(",")
        self.instance.resps, self.instance.filtered_resps = [texts[0]], {}
        for ensemble in self.lm_eval_task._filters:
            if ensemble.name == wanted:
                ensemble.apply([self.instance])
        found = self.lm_eval_task.process_results(self.instance.doc, [self.instance.filtered_resps[wanted]])
        return Graded(self, texts[0], bool(texts[0]) and float(found[name]) == 1)


Question = Choice | Generation


@dataclass(frozen=True)
class Graded:
    """What the untouched model answered."""

    question: Question
    text: str
    correct: bool


def reference_questions(config: Config, documents: ReferenceDocuments) -> list[Question]:
    """All chosen documents, asked without examples and otherwise as the run asks its task.

    Raises ConfigError for tasks that put their choices into the prompt.
    """
    from moe_lab.tasks.requests import build_requests, right_request

    zero_shot = replace(config, num_fewshot=0)
    framing = _framing(config)
    questions: list[Question] = []
    for key, task in documents.tasks.items():
        numbers = documents.samples[key]
        if not numbers:
            continue
        asked = build_requests(zero_shot, task, framing, numbers)
        for number, instances in zip(numbers, asked, strict=True):
            if task.get_config("output_type") == "multiple_choice":
                questions.append(_choice(key, number, task, instances))
            else:
                target = right_request(config, task, instances)[1]
                metric = documents.metrics[key]
                questions.append(Generation(key, number, task, instances[0], metric, target))
    return questions


def _choice(key: str, number: int, task: Any, instances: list[Any]) -> Choice:
    from moe_lab.tasks.documents import gold_choice

    document = instances[0].doc
    count = len(task.doc_to_choice(document))  # some metrics ask each choice once more, without its prompt
    choices = [tuple(instance.args) for instance in instances[:count]]
    if len({prompt for prompt, _ in choices}) > 1:
        raise ConfigError(
            f"{key} has a prompt of its own for every choice, and C3PO re-routes the last token of one prompt: "
            "task.answer=letters asks it with one."
        )
    return Choice(key, number, choices, gold_choice(task, document))


def _framing(config: Config) -> Framing:
    """The run's chat template for prompts, as in evaluation."""
    from moe_lab.models.chat import Framing
    from moe_lab.models.tokenizer import load_tokenizer

    return Framing(lambda: load_tokenizer(config.model, offline=config.offline), config.apply_chat_template)


def answered(questions: Sequence[Question], lm: EngineLM) -> list[Graded]:
    """The untouched model's answers, graded, one per question."""
    found: dict[int, Graded] = {}
    for kind in dict.fromkeys(question.kind for question in questions):
        of_kind = [i for i, question in enumerate(questions) if question.kind == kind]
        responses = iter(_ask(kind, [request for i in of_kind for request in questions[i].requests], lm))
        for i in of_kind:
            found[i] = questions[i].graded([next(responses) for _ in questions[i].requests])
    return [found[i] for i in range(len(questions))]


def _ask(kind: str, requests: list[tuple], lm: EngineLM) -> list[Any]:
    from moe_lab.engine.lm import Request

    answers: dict[int, Any] = {}
    progress, lm.progress = lm.progress, False
    try:
        lm.answer(kind, [Request(request) for request in requests], answers.__setitem__)
    finally:
        lm.progress = progress
    return [answers[i] for i in range(len(requests))]
