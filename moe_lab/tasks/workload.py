"""The number of tokens that a model has to process for a task's documents, estimated without
weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from moe_lab.engine.planned import Asked, planned_tokens
from moe_lab.models.lm_eval_internals import request_arguments
from moe_lab.results.identity import HASHED
from moe_lab.tasks.loading import once
from moe_lab.tasks.requests import build_requests, right_request

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.engine.forward.ensemble import Ensemble

SAMPLED = 32
"""Documents per task whose prompts are built. What the others take is estimated by what all but the
first of these add, so that a beginning that all prompts share counts once."""


@dataclass(frozen=True)
class Workload:
    """The requests of some documents. Those of a large task are a sample, which is scaled up."""

    documents: float = 0
    asked: tuple[tuple[float, Asked], ...] = ()
    """(weight, requests): how many times these count; negative for the first document of a
    sample."""
    shares_beginnings: bool = True
    """Whether the engine that runs the model reads common beginnings once (`planned_tokens`)."""

    def __add__(self, other: Workload) -> Workload:
        return replace(
            self, documents=self.documents + other.documents, asked=self.asked + other.asked
        )

    def tokens(self, ensemble: Ensemble, *, apart: bool = False) -> float:
        """Tokens that an ensemble puts through the model (`planned_tokens`)."""
        asked_by_weight: dict[float, Asked] = {}
        for weight, asked in self.asked:
            asked_by_weight.setdefault(weight, Asked()).add(asked)
        tokens: float = 0
        for weight, asked in asked_by_weight.items():
            tokens += weight * planned_tokens(
                asked, ensemble, shares_beginnings=self.shares_beginnings, apart=apart
            )
        return tokens

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
        right_answers: whether the right answer of each document is scored, in place of lm-eval's
            requests.
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

    return once(_DesignKey(design.to_json_string(), attn_implementation), of_empty_model)


@dataclass(frozen=True)
class _DesignKey:
    """All that determines whether a `KVEngine` runs models of a design."""

    configuration: str
    """As JSON."""
    attn_implementation: str | None


@dataclass(frozen=True)
class _WorkloadKey:
    """All that determines the workload of documents of a task."""

    sampled: tuple[int, ...]
    documents: int
    settings: str
    """Those of the run, as text: some are not hashable."""
    design: str
    """The configuration of the model that answers, as JSON."""
    right_answers: bool


_workloads: WeakKeyDictionary[Any, dict[_WorkloadKey, Workload]] = WeakKeyDictionary()
"""By task and key: many runs of a grid have the same prompts."""


def _of_task(
    task: Any, numbers: list[int], config: Config, design: Any, right_answers: bool
) -> Workload:
    """The workload of the documents `numbers` of a task, from prompts of at most `SAMPLED`."""
    sampled = numbers[:: max(1, len(numbers) // SAMPLED)][:SAMPLED]
    workloads = _workloads.setdefault(task, {})
    hashed = [getattr(config, name) for name in sorted(HASHED)]
    key = _WorkloadKey(
        sampled=tuple(sampled),
        documents=len(numbers),
        settings=repr((config.model, config.offline, hashed)),
        design=design.to_json_string(),
        right_answers=right_answers,
    )
    if key not in workloads:
        asked = _asked(task, sampled, config, design, right_answers)
        if len(sampled) == len(numbers):
            weighted: tuple[tuple[float, Asked], ...] = ((1.0, asked),)
        else:
            # each of the other documents adds what all sampled ones but the first add, in the mean
            others = (len(numbers) - len(sampled)) / (len(sampled) - 1)
            first = _asked(task, sampled[:1], config, design, right_answers)
            weighted = ((1 + others, asked), (-others, first))
        workloads[key] = Workload(len(numbers), weighted)
    return workloads[key]


def _asked(
    task: Any, numbers: list[int], config: Config, design: Any, right_answers: bool
) -> Asked:
    """The requests of the documents `numbers`, as token ids."""
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
            arguments = request_arguments(instance)
            asked.read(encoder, instance.request_type, arguments, instance.repeats or 1)
    return asked
