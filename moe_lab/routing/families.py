"""Which modules are routers, and how each family turns chosen logits into combine weights.

A row of `FAMILIES` is all that a new family of transformers needs, as long as its router returns
`(logits, weights, indices)`. Routers are recognised by class, never by a name such as "gate".

T = tokens, E = experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WeightRule = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(router, logits_TE, index_TK) -> weights_TK, exactly as the router itself computes them."""


def _softmax_all(logits_TE: Tensor, index_TK: Tensor, *, renormalize: bool) -> Tensor:
    """float32 softmax over all experts, gathered at the chosen ones."""
    probs_TE = torch.softmax(logits_TE, dim=-1, dtype=torch.float32)
    weights_TK = probs_TE.gather(-1, index_TK)
    return weights_TK / weights_TK.sum(dim=-1, keepdim=True) if renormalize else weights_TK


def _softmax_optionally_renormalized(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """OLMoE, Qwen: `norm_topk_prob` decides, and the weights take the dtype of the logits."""
    weights_TK = _softmax_all(logits_TE, index_TK, renormalize=bool(router.norm_topk_prob))
    return weights_TK.to(logits_TE.dtype)


def _softmax_renormalized(router: nn.Module, logits_TE: Tensor, index_TK: Tensor) -> Tensor:
    """Mixtral: always renormalized, and left in float32."""
    return _softmax_all(logits_TE, index_TK, renormalize=True)


def _every_layer(config: Any) -> int:
    return config.num_hidden_layers


def _qwen_sparse_layers(config: Any) -> int:
    """Every `decoder_sparse_step`-th layer, except those named dense."""
    step, dense = config.decoder_sparse_step, config.mlp_only_layers
    layers = range(config.num_hidden_layers)
    return sum(config.num_experts > 0 and layer not in dense and (layer + 1) % step == 0 for layer in layers)


@dataclass(frozen=True)
class Family:
    """A family of Mixture-of-Experts models."""

    name: str
    """As users know it."""
    model_type: str
    """As its configuration says it."""
    router: str
    """Class of its router, in transformers' module of that type."""
    weights: WeightRule
    moe_layers: Callable[[Any], int]
    """Number of MoE layers, told from the model's configuration."""

    @property
    def router_class(self) -> str:
        """Qualified name of the router's class."""
        return f"transformers.models.{self.model_type}.modeling_{self.model_type}.{self.router}"


FAMILIES = (
    Family("OLMoE", "olmoe", "OlmoeTopKRouter", _softmax_optionally_renormalized, _every_layer),
    Family("Mixtral", "mixtral", "MixtralTopKRouter", _softmax_renormalized, _every_layer),
    Family(
        "Qwen2-MoE", "qwen2_moe", "Qwen2MoeTopKRouter", _softmax_optionally_renormalized, _qwen_sparse_layers
    ),
    Family(
        "Qwen3-MoE", "qwen3_moe", "Qwen3MoeTopKRouter", _softmax_optionally_renormalized, _qwen_sparse_layers
    ),
)
_BY_CLASS = {family.router_class: family for family in FAMILIES}
_BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES}


def supported() -> list[str]:
    """Names of the supported families."""
    return [family.name for family in FAMILIES]


def family_of(module: nn.Module) -> Family | None:
    """The family whose router this module is, or None for any other module."""
    for cls in type(module).__mro__:
        if family := _BY_CLASS.get(f"{cls.__module__}.{cls.__qualname__}"):
            return family
    return None


def family_of_type(model_type: str) -> Family | None:
    """The family of a configuration's `model_type`, or None for any other model."""
    return _BY_MODEL_TYPE.get(model_type)
