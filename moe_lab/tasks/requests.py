"""lm-eval's requests of a task's documents: how they are built, and an estimate of their tokens without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.loading import once, seed_as_lm_eval

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config


def reseed(config: Config, tasks: TaskDict) -> None:
    """Set all seeds that prompts depend on, so that the same prompts are built each time."""
    seed_as_lm_eval()
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(config.fewshot_seed)


def build_requests(
    config: Config, task: Any, lm: Any, samples: list[int] | None = None
) -> list[list[Instance]]:
    """lm-eval's requests of a task, document by document; `samples` are sorted document numbers, None means all.

    `lm` has `apply_chat_template` and `tokenizer_name`, which are read if the run has a chat template.
    """
    reseed(config, {"tasks": {task.task_name: task}, "groups": {}, "group_map": {}})
    chat = bool(config.apply_chat_template)
    task.build_all_requests(
        limit=None,
        samples=None if samples is None else set(samples),
        rank=0,
        world_size=1,
        system_instruction=config.system_instruction,
        apply_chat_template=chat,
        fewshot_as_multiturn=config.fewshot_as_multiturn,
        chat_template=lm.apply_chat_template if chat else None,
        tokenizer_name=lm.tokenizer_name if chat else "",
    )
    by_document: dict[int, list[Instance]] = {}
    for instance in task.instances:
        by_document.setdefault(instance.doc_id, []).append(instance)
    return list(by_document.values())


def right_request(config: Config, task: Any, instances: list[Instance]) -> tuple:
    """The arguments of the request that scores the right answer; `instances` are the requests of one document."""
    document = instances[0].doc
    kind = task.get_config("output_type")
    if kind in ("loglikelihood", "loglikelihood_rolling"):
        return instances[0].args
    if kind == "multiple_choice":
        return instances[gold_choice(task, document)].args
    target = task.doc_to_target(document)
    delimiter = "" if config.apply_chat_template else task.config.target_delimiter
    return instances[0].args[0], f"{delimiter}{target[0] if isinstance(target, list) else target}"


# The number of tokens that a model has to process

SAMPLED = 8
"""Documents per task whose prompts are built. The estimate for all documents is scaled up from these."""
NEW_TOKENS = 256
"""lm-eval's default number of generated tokens."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The tokens that a model has to process and generate, estimated from a few documents of each task."""

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
    parts = (_of_task(task, samples[name], config) for name, task in tasks.items() if samples[name])
    return sum(parts, start=Workload())


_workloads: WeakKeyDictionary[Any, dict[str, Workload]] = WeakKeyDictionary()
"""By task, and by all else that determines a workload: many runs of a grid have the same prompts."""


def _of_task(task: Any, numbers: list[int], config: Config) -> Workload:
    sampled = numbers[:: max(1, len(numbers) // SAMPLED)][:SAMPLED]
    known = _workloads.setdefault(task, {})
    model = f"{config.model} {config.offline}"
    key = f"{sampled} {len(numbers)} {model} {config.fewshot_seed} {config.system_instruction}"
    if key not in known:
        from moe_lab.models.tokenizer import load_tokenizer

        load = partial(load_tokenizer, config.model, offline=config.offline)
        tokenizer = once(f"tokenizer {model}", load)
        task.set_fewshot_seed(config.fewshot_seed)
        parts = (_of_document(task, task.task_docs[number], tokenizer, config) for number in sampled)
        known[key] = sum(parts, start=Workload()) * (len(numbers) / len(sampled))
    return known[key]


def _of_document(task: Any, document: Any, tokenizer: Any, config: Config) -> Workload:
    context = task.fewshot_context(
        document,
        num_fewshot=task.get_config("num_fewshot"),
        system_instruction=config.system_instruction,
        gen_prefix=task.doc_to_prefix(document),
    )
    built = task.construct_requests(doc=document, ctx=context, metadata=(task.task_name, 0, 1))
    built = built if isinstance(built, list) else [built]
    count = _lengths(built, tokenizer)
    repeats = task.get_config("repeats") or 1
    prompts: dict[str, int] = {}
    answers = requests = 0
    for request in built:
        generated = request.request_type == "generate_until"
        requests += repeats if generated else 1
        if request.request_type == "loglikelihood_rolling":
            answers += count[request.args[0]]
            continue
        prompts[request.args[0]] = count[request.args[0]]
        if generated:
            answers += int(request.args[1].get("max_gen_toks", NEW_TOKENS)) * repeats
        else:
            answers += count[request.args[1]]
    return Workload(documents=1, requests=requests, prompts=sum(prompts.values()), answers=answers)


def _lengths(requests: list[Instance], tokenizer: Any) -> dict[str, int]:
    """The number of tokens of each text in some requests, counted in one call."""
    texts = list(dict.fromkeys(text for one in requests for text in one.args if isinstance(text, str)))
    return dict(zip(texts, map(len, tokenizer(texts, add_special_tokens=False).input_ids), strict=True))
