"""How many tokens a model has to process for the documents of tasks, estimated without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

SAMPLED = 8
"""Documents per task whose prompts are built; they stand for all documents."""
NEW_TOKENS = 256
"""lm-eval's default number of generated tokens."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a model has to score and generate, estimated from a few documents of each task."""

    documents: float = 0
    requests: float = 0
    """Scored and generated answers."""
    prompts: float = 0
    """Tokens of all prompts; a prompt counts once for all its answer choices."""
    answers: float = 0
    """Tokens of all answers; a generated answer counts with its greatest length."""

    def __add__(self, other: Workload) -> Workload:
        return Workload(**{name: getattr(self, name) + getattr(other, name) for name in vars(self)})

    def __mul__(self, factor: float) -> Workload:
        return Workload(**{name: amount * factor for name, amount in vars(self).items()})

    @property
    def prompt(self) -> float:
        """Tokens of a document's prompts, in the mean."""
        return self.prompts / max(1, self.documents)

    @property
    def answer(self) -> float:
        """Tokens of an answer, in the mean."""
        return self.answers / max(1, self.requests)


def workload_of_tasks(tasks: Mapping[str, Any], samples: Mapping[str, list[int]], config: Config) -> Workload:
    """The workload of the documents `samples` of lm-eval's tasks for the model of `config`."""
    from moe_lab.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(config.model, offline=config.offline)
    parts = (
        _of_task(task, samples[name], tokenizer, config) for name, task in tasks.items() if samples[name]
    )
    return sum(parts, start=Workload())


def _of_task(task: Any, numbers: list[int], tokenizer: Any, config: Config) -> Workload:
    step = max(1, len(numbers) // SAMPLED)
    sampled = numbers[::step][:SAMPLED]
    task.set_fewshot_seed(config.fewshot_seed)
    workloads = (_of_document(task, task.task_docs[number], tokenizer, config) for number in sampled)
    return sum(workloads, start=Workload()) * (len(numbers) / len(sampled))


def _of_document(task: Any, document: Any, tokenizer: Any, config: Config) -> Workload:
    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    context = task.fewshot_context(
        document,
        num_fewshot=task.get_config("num_fewshot"),
        system_instruction=config.system_instruction,
        gen_prefix=task.doc_to_prefix(document),
    )
    built = task.construct_requests(doc=document, ctx=context, metadata=(task.task_name, 0, 1))
    repeats = task.get_config("repeats") or 1
    prompts: dict[str, int] = {}
    answers = requests = 0
    for request in built if isinstance(built, list) else [built]:
        generated = request.request_type == "generate_until"
        requests += repeats if generated else 1
        if request.request_type == "loglikelihood_rolling":
            answers += count(request.args[0])
            continue
        prompts.setdefault(request.args[0], count(request.args[0]))
        if generated:
            answers += int(request.args[1].get("max_gen_toks", NEW_TOKENS)) * repeats
        else:
            answers += count(request.args[1])
    return Workload(documents=1, requests=requests, prompts=sum(prompts.values()), answers=answers)
