"""lm-eval's requests of a task's documents: how they are built, and an estimate of their tokens without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moe_lab.engine.planned import Asked, planned_tokens
from moe_lab.models.lm_eval_internals import request_arguments
from moe_lab.results.identity import HASHED
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.loading import once, seed_as_lm_eval

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config
    from moe_lab.engine.forward.ensemble import Ensemble


def reseed(config: Config, tasks: TaskDict) -> None:
    """Set all seeds that prompts depend on, so that the same prompts are built each time."""
    seed_as_lm_eval()
    for task in tasks["tasks"].values():
        task.set_fewshot_seed(config.fewshot_seed)


def build_requests(
    config: Config, task: Any, lm: Any = None, *, samples: list[int] | None = None
) -> list[list[Instance]]:
    """lm-eval's requests of a task, document by document; `samples` are sorted document numbers, None means all.

    `lm` has `apply_chat_template` and `tokenizer_name`, which are read if the run has a chat template. None: those of
    the run's tokenizer.
    """
    from moe_lab.models.tokenizer import Framing, prompt_tokenizer

    lm = lm or Framing(lambda: prompt_tokenizer(config), config.apply_chat_template)
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
        return request_arguments(instances[0])
    if kind == "multiple_choice":
        return instances[gold_choice(task, document)].args
    from moe_lab.engine.hf import THINK_END

    target = task.doc_to_target(document)
    delimiter = "" if config.apply_chat_template else task.config.target_delimiter
    prompt, settings = instances[0].args
    answer = f"{delimiter}{target[0] if isinstance(target, list) else target}"
    return prompt + settings.get(THINK_END, ""), answer


# The number of tokens that a model has to process

SAMPLED = 32
"""Documents per task whose prompts are built. What the others take is estimated by what all but the first of these add,
so that a beginning that all prompts share counts once."""


@dataclass(frozen=True)
class Workload:
    """The requests of some documents. Those of a large task are a sample, which is scaled up."""

    documents: float = 0
    asked: tuple[tuple[float, Asked], ...] = ()
    """(weight, requests): how many times these count; negative for the first document of a sample."""
    shares_beginnings: bool = True
    """Whether the engine that runs the model reads common beginnings once (`planned_tokens`)."""

    def __add__(self, other: Workload) -> Workload:
        return replace(
            self, documents=self.documents + other.documents, asked=self.asked + other.asked
        )

    def tokens(self, ensemble: Ensemble) -> float:
        """Tokens that an ensemble puts through the model (`planned_tokens`)."""
        whole: dict[float, Asked] = {}
        for weight, asked in self.asked:
            whole.setdefault(weight, Asked()).add(asked)
        shares = self.shares_beginnings
        return sum(
            weight * planned_tokens(asked, ensemble, shares_beginnings=shares)
            for weight, asked in whole.items()
        )

    @property
    def longest(self) -> int:
        """Tokens of the longest request with its answer."""
        return max((asked.longest for _, asked in self.asked), default=0)

    @property
    def requests(self) -> float:
        """Scored and generated answers."""
        return sum(weight * asked.answers for weight, asked in self.asked)

    @property
    def prompts(self) -> float:
        """Tokens of all prompts; a prompt counts once for all its answer choices."""
        return sum(weight * asked.prompt_tokens for weight, asked in self.asked)

    @property
    def answers(self) -> float:
        """Tokens of all answers; a generated answer counts with its greatest length."""
        return sum(weight * asked.answer_tokens for weight, asked in self.asked)

    @property
    def prompt(self) -> float:
        """Tokens of a document's prompts, in the mean."""
        return self.prompts / max(1, self.documents)

    @property
    def answer(self) -> float:
        """Tokens of an answer, in the mean."""
        return self.answers / max(1, self.requests)


def workload_of_tasks(
    tasks: Mapping[str, Any],
    samples: Mapping[str, list[int]],
    config: Config,
    architecture: Any = None,
    *,
    right_answers: bool = False,
) -> Workload:
    """The workload of the documents `samples` of lm-eval's tasks for the model of `config`.

    Args:
        architecture: the configuration of the model that answers; None: that of `config`.
        right_answers: whether the right answer of each document is scored, in place of lm-eval's requests.
    """
    from transformers import OlmoeConfig

    from moe_lab.models.source import load_config

    model = config.model
    design = architecture or load_config(model, offline=config.offline)
    is_plain = model.path is None and model.recipe is None and model.attn_implementation is None
    is_plain_olmoe = is_plain and type(design) is OlmoeConfig
    shares_beginnings = is_plain_olmoe or _shares_beginnings(design, model.attn_implementation)
    workload = Workload(shares_beginnings=shares_beginnings)
    for name, task in tasks.items():
        if samples[name]:
            workload += _of_task(task, samples[name], config, design, right_answers)
    return workload


def _shares_beginnings(design: Any, attn_implementation: str | None) -> bool:
    """Whether a `KVEngine` runs models of this design, as it does plain OLMoE.

    It imports transformers' code of the model, which takes longer than the rest of a plan.
    """

    def of_empty_model() -> bool:
        import torch

        from moe_lab.engine.footprint import meta_model
        from moe_lab.engine.forward.layers import runs_on_kv_cache

        model = meta_model(design, torch.float32)
        if attn_implementation is not None:
            model.set_attn_implementation(attn_implementation)
        return runs_on_kv_cache(model)

    return once(
        f"shares beginnings {design.to_json_string()} {attn_implementation}", of_empty_model
    )


_workloads: WeakKeyDictionary[Any, dict[str, Workload]] = WeakKeyDictionary()
"""By task, and by all else that determines a workload: many runs of a grid have the same prompts."""


def _of_task(
    task: Any, numbers: list[int], config: Config, design: Any, right_answers: bool
) -> Workload:
    sampled = numbers[:: max(1, len(numbers) // SAMPLED)][:SAMPLED]
    known = _workloads.setdefault(task, {})
    settings = [getattr(config, name) for name in sorted(HASHED)]
    key = (
        f"{sampled} {len(numbers)} {config.model} {config.offline} {settings} {design.to_json_string()} "
        f"{right_answers}"
    )
    if key not in known:
        parts = [(1.0, _asked(task, sampled, config, design, right_answers))]
        if len(sampled) < len(numbers):
            others = (len(numbers) - len(sampled)) / (len(sampled) - 1)
            first = _asked(task, sampled[:1], config, design, right_answers)
            parts = [(1 + others, parts[0][1]), (-others, first)]
        known[key] = Workload(len(numbers), tuple(parts))
    return known[key]


def _asked(
    task: Any, numbers: list[int], config: Config, design: Any, right_answers: bool
) -> Asked:
    from moe_lab.engine.hf import encoder_of
    from moe_lab.models.tokenizer import Framing, prompt_tokenizer

    framing = Framing(lambda: prompt_tokenizer(config), config.apply_chat_template)
    encoder = encoder_of(design, framing.tokenizer, config.max_length, config.model.add_bos_token)
    rolling = task.get_config("output_type") == "loglikelihood_rolling"
    asked = Asked()
    for instances in build_requests(config, task, framing, samples=numbers):
        if right_answers:
            kind = "loglikelihood_rolling" if rolling else "loglikelihood"
            asked.read(encoder, kind, right_request(config, task, instances))
            continue
        for instance in instances:
            asked.read(
                encoder, instance.request_type, request_arguments(instance), instance.repeats or 1
            )
    return asked
