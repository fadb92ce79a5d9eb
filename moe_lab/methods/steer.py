"""`method=steer`: steering by experts (SteerMoE, Fayyaz et al. 2025, arXiv 2509.09660).

The base model reads two sets of texts. The activation rate of an expert in a set is the share of the set's answer
tokens that select it. Experts whose rate is larger in the positive set are forced in, experts whose rate is larger in
the negative set are forced out.

L = MoE layers, E = experts (of the layer with the most).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import NonNegativeInt, PositiveInt
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods.base import base_lm
from moe_lab.methods.data_files import COUNTED_LENGTH, Conversation, read_data
from moe_lab.methods.references.documents import check_one_process, named_task
from moe_lab.methods.tunable_method import GridMethod, Settings
from moe_lab.tasks.document_hashes import document_hashes
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.lm_eval_versions.documents import number_of_choices
from moe_lab.tasks.loading import load_tasks, once, task_key
from moe_lab.tasks.requests import build_requests

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.models.facts import LoadedModel, ModelFacts
    from moe_lab.routing import Policy

SETS = ("positive", "negative")
RIGHT, WRONG = ":right", ":wrong"
"""Endings of a task's name in a set: the right, or all wrong choices of the task's training documents."""
SHARE = 8
"""`tuning=grid` steers at most 1 of 8 experts: the paper's largest numbers for OLMoE are 125 of 1024."""
Pair = tuple[str, str]
"""A prompt and a choice, as they are scored."""


class Texts(NamedTuple):
    """One of the two sets: conversations or pairs."""

    conversations: list[Conversation]
    pairs: list[Pair]

    @property
    def digest(self) -> str:
        """SHA-256 of the texts."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()


class Steer(GridMethod):
    """Experts that are forced in or out for every token."""

    expert_metrics = "counted"
    open_ended = ("activate", "deactivate")
    data_keys = (*SETS, "dataset_size")
    counted = ("changed_fraction", "constrained_decisions", "routing_decisions")

    @dataclass(kw_only=True)
    class Config(GridMethod.Config):
        name: str = "steer"
        positive: str = "toy_safe"
        negative: str = "toy_unsafe"
        dataset_size: PositiveInt | None = None
        """Conversations, or documents of a task, of each set; null: all."""
        activate: NonNegativeInt = 5
        deactivate: NonNegativeInt = 0
        """Experts of all layers together that are forced in, and out."""

    def check(self, facts: ModelFacts) -> None:
        own, L = self.config, facts.moe_layers
        for key, count, most in (
            ("activate", own.activate, L * facts.top_k),
            ("deactivate", own.deactivate, L * (facts.experts - facts.top_k)),
        ):
            if count > most:
                raise ConfigError(
                    f"method.{key}={count}: give a number from 0 to {most} for this model."
                )

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then 1, 2, 4, ... experts: forced in, forced out, and as many of both."""
        most = max(1, facts.moe_layers * facts.experts // SHARE)
        counts = [2**power for power in range(most.bit_length())]
        kinds = ((1, 0), (0, 1), (1, 1))
        found: list[Settings] = [{"activate": 0, "deactivate": 0}]
        return found + [{"activate": i * n, "deactivate": o * n} for i, o in kinds for n in counts]

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The content of both sets. Raises ConfigError or TaskError if one is missing."""
        check_one_process(config)
        return {which: self._texts(config, which).digest for which in SETS} | {
            "length": COUNTED_LENGTH
        }

    def _texts(self, config: RunConfig, which: str) -> Texts:
        return read_texts(
            config, f"method.{which}", getattr(self.config, which), self.config.dataset_size
        )

    def policy(self, model: LoadedModel, config: RunConfig) -> tuple[Policy, dict[str, Any]]:
        from moe_lab.routing.policies import Steered

        own = self.config
        (positive_LE, experts), (negative_LE, _) = (
            activation_rates(config, self._texts(config, which), model) for which in SETS
        )
        sign_LE = steered_experts(
            positive_LE - negative_LE, experts, model.facts.top_k, own.activate, own.deactivate
        )
        return Steered(sign_LE), {
            "forced_in": (sign_LE > 0).nonzero().tolist(),
            "forced_out": (sign_LE < 0).nonzero().tolist(),
        }

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        return {key: getattr(self.config, key) for key in (*SETS, "activate", "deactivate")}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        return ["changed (steer): routing decisions with another set of experts than the router's."]


def steered_experts(
    difference_LE: Tensor, experts: list[int], top_k: int, activate: int, deactivate: int
) -> Tensor:
    """int8 [L, E]: 1 for experts that are forced in, -1 for experts that are forced out, 0 for the others.

    The `activate` experts with the largest differences above 0 in all layers are forced in, and the `deactivate`
    experts with the smallest differences below 0 are forced out. Of equal experts the first one is taken. A layer
    forces at most `top_k` experts in, those with the largest differences, and at most its other experts out. An expert
    that exceeds this limit is not replaced by one of another layer.
    """
    import torch

    sign_LE = torch.zeros(difference_LE.shape, dtype=torch.int8)
    for sign, count in ((1, activate), (-1, deactivate)):
        signed_LE = sign * difference_LE
        order = signed_LE.flatten().argsort(descending=True, stable=True)[:count].tolist()
        for place in order:
            layer, expert = divmod(place, difference_LE.shape[1])
            most = top_k if sign > 0 else experts[layer] - top_k
            if signed_LE[layer, expert] > 0 and (sign_LE[layer] == sign).sum() < most:
                sign_LE[layer, expert] = sign
    return sign_LE


# The two sets of texts -----------------------------------------------------------------------------------------------


def read_texts(config: RunConfig, key: str, name: str, size: int | None) -> Texts:
    """The texts of a data set, or the choices of a task's training documents.

    Raises ConfigError or TaskError, which name `key`, if they cannot be read.
    """
    if name.endswith((RIGHT, WRONG)):
        content = f"choices {task_key(config)} {config.apply_chat_template} {name} {size}"
        return once(content, lambda: _choices(config, key, name, size))
    return Texts(read_data(config, name, size, key=key).train, [])


def _choices(config: RunConfig, key: str, name: str, size: int | None) -> Texts:
    """The right or the wrong choices of a task's training documents, without few-shot examples.

    Documents that are also test documents of the run are left out.
    """
    task_name, _, kind = name.rpartition(":")
    zero_shot = replace(config, num_fewshot=0, limit=None, samples=None, predict_only=False)
    tested = load_tasks(config)["tasks"].values()
    evaluated = frozenset[str]().union(*(one for task in tested for one in document_hashes(task)))
    pairs: list[Pair] = []
    try:
        own = replace(zero_shot, task=named_task(config, task_name)[0])
        tasks = load_tasks(own, splits=("training_split",))["tasks"].values()
    except MoeLabError as error:
        raise ConfigError(f"{key}={name}: {error}") from error
    for task in tasks:
        if task.get_config("output_type") != "multiple_choice":
            raise ConfigError(
                f"{key}={name}: {task_name} has no choices. Give a multiple-choice task, or a file of conversations."
            )
        hashes = document_hashes(task)
        free = [number for number, own in enumerate(hashes) if not own & evaluated][:size]
        for instances in build_requests(zero_shot, task, samples=free) if free else []:
            document = instances[0].doc
            gold = gold_choice(task, document)
            choices = enumerate(instances[: number_of_choices(task, document)])
            pairs += [
                tuple(one.args)
                for number, one in choices
                if (number == gold) == (kind == RIGHT[1:])
            ]
    if not pairs:
        raise ConfigError(
            f"{key}={name}: all training documents of {task_name} are evaluated. Give another task."
        )
    return Texts([], pairs)


def activation_rates(
    config: RunConfig, texts: Texts, model: LoadedModel
) -> tuple[Tensor, list[int]]:
    """(float64 [L, E], experts of each layer): the share of a set's answer tokens that select each expert.

    Under the model's own routing, counted once in a command.
    """
    key = f"selections {config.model} {model.facts.dtype} {texts.digest}"
    return once(key, lambda: _activation_rates(config, texts, model))


def _activation_rates(
    config: RunConfig, texts: Texts, model: LoadedModel
) -> tuple[Tensor, list[int]]:
    import torch

    from moe_lab.methods.tokenized import Row, Rows, rows_to_count
    from moe_lab.metrics.counts import Routes
    from moe_lab.metrics.teacher_forcing import labelled_selections, right_tokens

    if texts.conversations:
        rows = Rows(rows_to_count(config, texts.conversations, model.facts))
    else:
        lm = base_lm(model, config)
        rows = Rows([Row.of(*lm.encode_pair(*pair)) for pair in texts.pairs])
    routes = Routes()
    right_tokens(model.model, rows, routes)
    selections_LE, tokens = labelled_selections(routes, rows)
    return torch.from_numpy(selections_LE).double() / tokens, [
        routes.experts[layer] for layer in routes.layers
    ]
