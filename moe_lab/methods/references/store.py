"""The files of a reference set: the base model answers reference questions, and its pathways are stored.

    references.jsonl             a line for each answered question: task, document, text, the model's answer, token ids
    pathways.safetensors         pathway [R, W, M, E]
    embeddings-<id8>.safetensors embedding [R, X], for each kind of embedding in use (`reference_set.py`)
    references.json              counts and versions, written last

R = references, W = re-routed tokens, M = MoE layers, E = experts.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.sampling import GenerationState
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import SuffixReplay
from moe_lab.engine.token_span import check_length, named_tokens
from moe_lab.errors import ConfigError, reading
from moe_lab.methods.references.documents import ReferenceDocuments
from moe_lab.models.facts import LoadedModel
from moe_lab.models.new_text import tokens_of
from moe_lab.results.atomic import write_atomically
from moe_lab.results.versions import versions
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.lm_eval_versions.documents import has_prompt_per_choice, number_of_choices
from moe_lab.tasks.lm_eval_versions.metrics import scores_of_response
from moe_lab.tasks.requests import build_requests, right_request

ANSWER_TOKENS = 32
"""Tokens of an answer that are stored, from the first on. Losses are computed on them."""
COUNTS = ("asked", "correct", "dropped", "label", "sources")
"""Keys of references.json that describe a set."""
MOST_MOVED = 0.05
"""Share of the routing probability that may differ because of other kernels or another dtype. Models differ more."""
PORTION = 256
"""Prompts whose keys and values are in memory together while their pathways are read."""


Graded = tuple[str, bool]
"""The base model's answer to a question, and whether it is right."""


@dataclass(frozen=True)
class Question:
    """A question as lm-eval asks it."""

    task: str
    """`<task>:<split>`"""
    number: int
    """The number of its document in that split."""
    kind: str
    """loglikelihood for a multiple-choice question, generate_until for one whose answer the model generates."""
    requests: list[tuple]
    """lm-eval's arguments, all with the same prompt: of every choice, or of the generated answer."""
    right_answer: str
    """The right choice, or the right answer as the data set words it; the model may word it differently."""
    graded: Callable[[list[Any]], Graded]
    """Grades the responses to the requests."""

    @property
    def prompt(self) -> str:
        return self.requests[0][0]


def reference_questions(config: Config, documents: ReferenceDocuments) -> list[Question]:
    """All chosen documents as questions, without few-shot examples and otherwise as the run asks its task.

    Raises ConfigError for tasks that put their choices into the prompt.
    """
    zero_shot = replace(config, num_fewshot=0)
    questions: list[Question] = []
    for key, task in documents.tasks.items():
        numbers = documents.samples[key]
        requests = build_requests(zero_shot, task, samples=numbers) if numbers else []
        for number, instances in zip(numbers, requests, strict=True):
            if task.get_config("output_type") == "multiple_choice":
                asked, right, graded = _choices(key, task, instances)
            else:
                asked, right = [tuple(instances[0].args)], right_request(config, task, instances)[1]
                graded = partial(_grade_text, task, instances[0], documents.metrics[key])
            questions.append(Question(key, number, instances[0].request_type, asked, right, graded))
    return questions


def _choices(
    key: str, task: Any, instances: list[Any]
) -> tuple[list[tuple[str, str]], str, Callable[[list[Any]], Graded]]:
    """((prompt, answer) of every choice, the right answer, the grading of their scores)."""
    document = instances[0].doc
    count = number_of_choices(task, document)
    choices = [tuple(instance.args) for instance in instances[:count]]
    if has_prompt_per_choice(task) or len({prompt for prompt, _ in choices}) > 1:
        raise ConfigError(
            f"{key} has a prompt for every choice. C3PO needs one: task.answer=letters."
        )
    gold = gold_choice(task, document)

    def graded(scores: list[tuple[float, bool]]) -> Graded:
        """The choice with the highest log-likelihood, the first one of equal choices."""
        values = [score for score, _ in scores]
        best = values.index(max(values))
        return choices[best][1], best == gold

    return choices, choices[gold][1], graded


def _grade_text(task: Any, instance: Any, metric: str, texts: list[str]) -> Graded:
    """Grades a generated text by the task's own filter and metric (`metric,filter`, 1 for a right answer)."""
    metric, _, filter_name = metric.partition(",")
    scores = scores_of_response(task, instance, texts[0], filter_name)
    return texts[0], bool(texts[0]) and float(scores[metric]) == 1


def build(
    folder: Path,
    config: Config,
    tokens: str,
    documents: ReferenceDocuments,
    model: LoadedModel,
    lm: EngineLM,
) -> dict[str, Any]:
    """Answer all questions and write the set. Returns its record, which is not written yet.

    Args:
        folder: locked by this process.
        tokens: the name of the tokens whose pathways are stored.
    """
    start = time.perf_counter()
    questions = reference_questions(config, documents)
    said = f"{folder.name}: {len(questions):,} reference questions are answered first, once for all runs"
    print_message(said)
    lines: list[dict[str, Any]] = []
    with lm.keeping_tokens() as generated:
        graded = answered(questions, lm)
    for question, (answer, is_right) in zip(questions, graded, strict=True):
        if answer:
            prompt_ids, answer_ids = _token_ids(question, answer, generated, lm)
            lines.append(
                {
                    "task": question.task,
                    "document": question.number,
                    "text": question.prompt,
                    "answer": answer,
                    "correct": is_right,
                    "prompt_ids": list(prompt_ids),
                    "answer_ids": list(answer_ids),
                }
            )
    texts, prompts = [line["text"] for line in lines], [line["prompt_ids"] for line in lines]
    pathway_RWME = pathways(texts, prompts, tokens, model, lm.budget)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_atomically(folder / "references.jsonl", text)
    write_atomically(folder / "pathways.safetensors", save({"pathway": pathway_RWME}))
    correct = Counter(line["task"] for line in lines if line["correct"])
    sources = [
        source | {"correct": sum(correct[task] for task in source["tasks"])}
        for source in documents.sources
    ]
    return {
        "label": documents.label,
        "asked": len(questions),
        "correct": correct.total(),
        "dropped": documents.dropped,
        "sources": sources,
        "versions": versions(),
        "last_session_seconds": time.perf_counter() - start,
    }


def _token_ids(
    question: Question, answer: str, generated: dict[str, GenerationState], lm: EngineLM
) -> tuple[Sequence[int], Sequence[int]]:
    """The tokens of a prompt and the first tokens of its answer, as the model read and wrote them.

    Their texts, encoded again, may be other tokens, which the model finds unlikely.
    """
    state = generated.get(question.prompt)
    if question.kind == "generate_until" and state is not None:
        answer_ids = tokens_of(answer, state.prompt, state.generated, ANSWER_TOKENS, lm.new_text)
        return state.prompt, answer_ids
    prompt_ids, scored_ids = lm.encode_pair(question.prompt, answer)
    return prompt_ids, scored_ids[:ANSWER_TOKENS]


def answered(questions: Sequence[Question], lm: EngineLM) -> list[Graded]:
    """The base model's graded answers, one per question."""
    graded: dict[int, Graded] = {}
    for kind in dict.fromkeys(question.kind for question in questions):
        of_kind = [i for i, question in enumerate(questions) if question.kind == kind]
        requests = [Request(request) for i in of_kind for request in questions[i].requests]
        answers: dict[int, Any] = {}
        lm.answer(kind, requests, answers.__setitem__)
        responses = iter([answers[j] for j in range(len(requests))])
        for i in of_kind:
            graded[i] = questions[i].graded([next(responses) for _ in questions[i].requests])
    return [graded[i] for i in range(len(questions))]


def pathways(
    texts: list[str], prompts: list[list[int]], tokens: str, model: LoadedModel, budget: Budget
) -> Tensor:
    """float32 [R, W, M, E]: routing probabilities of the named tokens of prompts (token ids).

    Raises ConfigError for a prompt that has too few tokens.
    """
    facts, span = model.facts, named_tokens(tokens)
    if not prompts:
        return torch.zeros(0, span.size, facts.moe_layers, facts.experts)
    for text, prompt in zip(texts, prompts, strict=True):
        check_length(span, prompt, text)
    replay = SuffixReplay(model.model, facts.moe_layers - 1, span)
    portions = (prompts[first : first + PORTION] for first in range(0, len(prompts), PORTION))
    read = (suffix for portion in portions for suffix in replay.read(portion, budget))
    return torch.stack([suffix.pathway_WME for suffix in read])


def read(folder: Path) -> dict[str, Any]:
    """Fields of a ReferenceSet of the questions that were answered correctly.

    Raises ConfigError if a file is missing or damaged.
    """
    with reading(
        f"references={folder}",
        "Runs of method=c3po write such folders below outputs/references/. Remove a damaged one.",
    ):
        summary = json.loads((folder / "references.json").read_bytes())
        text = (folder / "references.jsonl").read_text(encoding="utf-8")
        pathway_RWME = load_file(folder / "pathways.safetensors")["pathway"]
        pairs = list(zip(map(json.loads, text.splitlines()), pathway_RWME, strict=True))
        right = [(line, pathway) for line, pathway in pairs if line["correct"]]
        return {
            "texts": [line["text"] for line, _ in right],
            "answers": [line["answer"] for line, _ in right],
            "prompts": [line["prompt_ids"] for line, _ in right],
            "golds": [line["answer_ids"] for line, _ in right],
            "pathway_RWME": torch.stack([pathway for _, pathway in right])
            if right
            else pathway_RWME[:0],
            "counts": {key: summary[key] for key in COUNTS},
        }


def check_own(folder: Path, tokens: str, model: LoadedModel, budget: Budget) -> None:
    """Compute a set's first pathway again. Raises ConfigError for a set of another model or of other tokens."""
    found = read(folder)
    with reading(
        f"references={folder}",
        f"Use a set of this model and of method.tokens={tokens}.",
        says="does not fit",
    ):
        own_RWME = pathways(found["texts"][:1], found["prompts"][:1], tokens, model, budget)
        difference_RWME = own_RWME - found["pathway_RWME"][: len(own_RWME)]
        if difference_RWME.abs().sum(dim=-1).mean() / 2 > MOST_MOVED:
            raise ValueError("it is of another model")
