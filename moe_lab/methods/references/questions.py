"""Reference questions: documents as lm-eval asks them, and the base model's graded answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.errors import ConfigError
from moe_lab.methods.references.documents import ReferenceDocuments
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.lm_eval_versions.documents import has_prompt_per_choice, number_of_choices
from moe_lab.tasks.lm_eval_versions.metrics import scores_of_response
from moe_lab.tasks.requests import build_requests, right_request


class Graded(NamedTuple):
    """The base model's answer to a question."""

    answer: str
    is_right: bool


@dataclass(frozen=True)
class Question:
    """A question as lm-eval asks it."""

    task: str
    """`<task>:<split>`"""
    number: int
    """The number of its document in that split."""
    kind: str
    """loglikelihood for a multiple-choice question, generate_until for one whose answer the model
    generates."""
    requests: list[tuple]
    """lm-eval's arguments, all with the same prompt: of every choice, or of the generated
    answer."""
    right_answer: str
    """The right choice, or the right answer as the data set words it; the model may word it
    differently."""
    graded: Callable[[list[Any]], Graded]
    """Grades the responses to the requests."""

    @property
    def prompt(self) -> str:
        """The text that the model reads before an answer."""
        return self.requests[0][0]


def reference_questions(config: Config, documents: ReferenceDocuments) -> list[Question]:
    """All chosen documents as questions, without few-shot examples and otherwise as the run asks
    its task.

    Raises ConfigError for tasks that put their choices into the prompt.
    """
    zero_shot = replace(config, num_fewshot=0)
    questions: list[Question] = []
    for key, task in documents.tasks.items():
        numbers = documents.samples[key]
        if not numbers:
            continue
        instances_of_documents = build_requests(zero_shot, task, samples=numbers)
        for number, instances in zip(numbers, instances_of_documents, strict=True):
            if task.get_config("output_type") == "multiple_choice":
                question = _choice_question(key, number, task, instances)
            else:
                question = Question(
                    task=key,
                    number=number,
                    kind=instances[0].request_type,
                    requests=[tuple(instances[0].args)],
                    right_answer=right_request(config, task, instances)[1],
                    graded=partial(_grade_text, task, instances[0], documents.metrics[key]),
                )
            questions.append(question)
    return questions


def _choice_question(key: str, number: int, task: Any, instances: list[Any]) -> Question:
    """A multiple-choice question from lm-eval's requests of its document. Raises ConfigError for
    one with several prompts."""
    document = instances[0].doc
    count = number_of_choices(task, document)
    choices = [tuple(instance.args) for instance in instances[:count]]
    prompts = {prompt for prompt, _ in choices}
    if has_prompt_per_choice(task) or len(prompts) > 1:
        raise ConfigError(
            f"{key} has a prompt for every choice. C3PO needs one: task.answer=letters."
        )
    gold = gold_choice(task, document)
    answers = [answer for _, answer in choices]
    return Question(
        task=key,
        number=number,
        kind=instances[0].request_type,
        requests=choices,
        right_answer=answers[gold],
        graded=partial(_grade_choices, answers, gold),
    )


def _grade_choices(answers: list[str], gold: int, scores: list[tuple[float, bool]]) -> Graded:
    """The choice with the highest log-likelihood, the first one of equal choices."""
    values = [score for score, _ in scores]
    best = values.index(max(values))
    return Graded(answers[best], best == gold)


def _grade_text(task: Any, instance: Any, metric: str, texts: list[str]) -> Graded:
    """Grades a generated text by the task's own filter and metric (`metric,filter`, 1 for a right
    answer)."""
    [text] = texts
    metric_name, _, filter_name = metric.partition(",")
    scores = scores_of_response(task, instance, text, filter_name)
    is_right = bool(text) and float(scores[metric_name]) == 1
    return Graded(text, is_right)


def answered(questions: Sequence[Question], lm: EngineLM) -> list[Graded]:
    """The base model's graded answers, one per question."""
    graded: dict[int, Graded] = {}
    for kind in dict.fromkeys(question.kind for question in questions):
        numbers = [i for i, question in enumerate(questions) if question.kind == kind]
        responses_of = _responses(kind, [questions[i] for i in numbers], lm)
        for i, responses in zip(numbers, responses_of, strict=True):
            graded[i] = questions[i].graded(responses)
    return [graded[i] for i in range(len(questions))]


def _responses(kind: str, questions: Sequence[Question], lm: EngineLM) -> list[list[Any]]:
    """The responses to the requests of each question; all questions are of one kind."""
    requests = []
    for question in questions:
        requests += [Request(arguments) for arguments in question.requests]
    response_of: dict[int, Any] = {}
    lm.answer(kind, requests, response_of.__setitem__)

    responses_of_questions = []
    start = 0
    for question in questions:
        stop = start + len(question.requests)
        responses_of_questions.append([response_of[i] for i in range(start, stop)])
        start = stop
    return responses_of_questions
