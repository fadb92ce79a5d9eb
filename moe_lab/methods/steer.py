"""`method=steer`: steering by experts (SteerMoE, Fayyaz et al. 2025, arXiv 2509.09660).

The base model reads two sets of texts. The activation rate of an expert in a set is the share of
the set's answer tokens that select it. Experts whose rate is larger in the positive set are forced
in, experts whose rate is larger in the negative set are forced out.

L = MoE layers, E = experts (of the layer with the most).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import NonNegativeInt, PositiveInt
from moe_lab.errors import ConfigError
from moe_lab.methods.base import base_lm
from moe_lab.methods.data_files import COUNTED_LENGTH
from moe_lab.methods.references.documents import check_one_process
from moe_lab.methods.steer_texts import Texts, read_texts
from moe_lab.methods.tunable_method import GridMethod, Settings
from moe_lab.tasks.loading import once

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.models.facts import LoadedModel, ModelFacts
    from moe_lab.routing import Policy

SETS = ("positive", "negative")
SHARE = 8
"""`tuning=grid` steers at most 1 of 8 experts: the paper's largest numbers for OLMoE are 125 of
1024."""


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
        """Raises ConfigError for more experts than the model can force in or out."""
        layers = facts.moe_layers
        most_by_key = {
            "activate": layers * facts.top_k,
            "deactivate": layers * (facts.experts - facts.top_k),
        }
        for key, most in most_by_key.items():
            count = getattr(self.config, key)
            if count > most:
                raise ConfigError(
                    f"method.{key}={count}: give a number from 0 to {most} for this model."
                )

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then 1, 2, 4, ... experts: forced in, forced out, and as many of both."""
        most = max(1, facts.moe_layers * facts.experts // SHARE)
        counts = [2**power for power in range(most.bit_length())]
        grid: list[Settings] = [{"activate": 0, "deactivate": 0}]
        grid += [{"activate": count, "deactivate": 0} for count in counts]
        grid += [{"activate": 0, "deactivate": count} for count in counts]
        grid += [{"activate": count, "deactivate": count} for count in counts]
        return grid

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The content of both sets. Raises ConfigError or TaskError if one is missing."""
        check_one_process(config)
        return {
            "positive": self._texts(config, "positive").digest,
            "negative": self._texts(config, "negative").digest,
            "length": COUNTED_LENGTH,
        }

    def _texts(self, config: RunConfig, key: str) -> Texts:
        """The set that the method's key ("positive" or "negative") names."""
        name = getattr(self.config, key)
        return read_texts(config, f"method.{key}", name, self.config.dataset_size)

    def policy(self, model: LoadedModel, config: RunConfig) -> tuple[Policy, dict[str, Any]]:
        """(the policy, {"forced_in", "forced_out": [layer, expert] of each steered expert})."""
        from moe_lab.routing.policies import Steered

        positive = activation_rates(config, self._texts(config, "positive"), model)
        negative = activation_rates(config, self._texts(config, "negative"), model)
        sign_LE = steered_experts(
            positive.rate_LE - negative.rate_LE,
            positive.experts,
            model.facts.top_k,
            self.config.activate,
            self.config.deactivate,
        )
        session_info = {
            "forced_in": (sign_LE > 0).nonzero().tolist(),
            "forced_out": (sign_LE < 0).nonzero().tolist(),
        }
        return Steered(sign_LE), session_info

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        return {key: getattr(self.config, key) for key in (*SETS, "activate", "deactivate")}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        return ["changed (steer): routing decisions with another set of experts than the router's."]


def steered_experts(
    difference_LE: Tensor, experts: list[int], top_k: int, activate: int, deactivate: int
) -> Tensor:
    """int8 [L, E]: 1 for experts that are forced in, -1 for experts that are forced out, 0 for the
    others.

    The `activate` experts with the largest differences above 0 in all layers are forced in, and the
    `deactivate` experts with the smallest differences below 0 are forced out. Of equal experts the
    first one is taken. A layer forces at most `top_k` experts in, those with the largest
    differences, and at most its other experts out. An expert that exceeds this limit is not
    replaced by one of another layer.

    Args:
        difference_LE: activation rates in the positive set minus those in the negative set.
        experts: the number of experts of each layer.
    """
    import torch

    sign_LE = torch.zeros(difference_LE.shape, dtype=torch.int8)
    for sign, count in ((1, activate), (-1, deactivate)):
        signed_LE = sign * difference_LE
        order = signed_LE.flatten().argsort(descending=True, stable=True)
        for place in order[:count].tolist():
            layer, expert = divmod(place, difference_LE.shape[1])
            most = top_k if sign > 0 else experts[layer] - top_k
            if signed_LE[layer, expert] > 0 and (sign_LE[layer] == sign).sum() < most:
                sign_LE[layer, expert] = sign
    return sign_LE


class ActivationRates(NamedTuple):
    """How often a model selects its experts."""

    rate_LE: Tensor
    """float64: the share of a set's answer tokens that select the expert; 0 where a layer has fewer
    experts."""
    experts: list[int]
    """The number of experts of each layer."""


def activation_rates(config: RunConfig, texts: Texts, model: LoadedModel) -> ActivationRates:
    """The rates on a set of texts, counted under the model's own routing, once in a command."""
    key = _RatesKey(repr(config.model), model.facts.dtype, texts.digest)
    return once(key, lambda: _activation_rates(config, texts, model))


@dataclass(frozen=True)
class _RatesKey:
    """All that determines activation rates."""

    model: str
    """Its configuration as text, which is not hashable otherwise."""
    dtype: str
    texts_digest: str


def _activation_rates(config: RunConfig, texts: Texts, model: LoadedModel) -> ActivationRates:
    """`activation_rates`, counted now."""
    import torch

    from moe_lab.methods.tokenized import Row, Rows, rows_to_count
    from moe_lab.metrics.counts import SelectedExperts
    from moe_lab.metrics.teacher_forcing import labelled_selections, right_tokens

    if texts.conversations:
        rows = Rows(rows_to_count(config, texts.conversations, model.facts))
    else:
        lm = base_lm(model, config)
        rows = Rows([Row.of(*lm.encode_pair(*pair)) for pair in texts.pairs])
    routes = SelectedExperts()
    right_tokens(model.model, rows, routes)  # `routes` counts the selections of its passes
    selections = labelled_selections(routes, rows)
    rate_LE = torch.from_numpy(selections.counts_LE).double() / selections.tokens
    return ActivationRates(rate_LE, [routes.experts[layer] for layer in routes.layers])
