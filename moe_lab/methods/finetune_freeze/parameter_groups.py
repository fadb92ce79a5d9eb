"""Parameter groups of a model: its routers and experts, found by class in every supported family.

Experts are the routed ones. Shared experts, which no router chooses, and the gates that weigh them are a group of their
own. They are found by the names that transformers gives them, since their classes are those of any feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from moe_lab.errors import ModelError
from moe_lab.routing.adapters import with_wrapper
from moe_lab.routing.hook import Router, require_routers

Groups = Mapping[str, list[nn.Parameter]]
"""Parameters by group: "router", "experts", "shared_experts" (empty in a model without) and "other", every parameter in
one of them."""

OWN_FORWARD = (
    "transformers.models.dbrx.modeling_dbrx.DbrxExperts",
    "transformers.models.jetmoe.modeling_jetmoe.JetMoeParallelExperts",
    "transformers.models.llama4.modeling_llama4.Llama4TextExperts",
    "transformers.models.longcat_flash.modeling_longcat_flash.LongcatFlashExperts",
)
"""Classes of experts that transformers computes in one way only; all others carry its mark."""


SHARED = ("shared_expert", "shared_experts", "shared_expert_gate", "shared_mlp")
"""What shared experts and their gates are called."""


def is_experts(module: nn.Module) -> bool:
    """Whether the module holds the routed experts of a layer, or a part of them."""
    cls = type(module)
    return hasattr(cls, "_apply_gate") or f"{cls.__module__}.{cls.__qualname__}" in OWN_FORWARD


def parameter_groups(model: nn.Module) -> Groups:
    """The model's parameters by group. Raises ModelError for a model without routers, or a layer without experts."""
    experts: dict[int, nn.Parameter] = {}
    routers: dict[int, nn.Parameter] = {}
    for router in require_routers(model):
        experts |= _by_id(_experts_of(router))
    for router in require_routers(model):
        own_parameters = _by_id([with_wrapper(router.block, router.module)])
        routers |= {key: own for key, own in own_parameters.items() if key not in experts}
    if not routers or not experts:
        raise ModelError(f"{type(model).__name__}: its routers or experts have no parameters to freeze.")
    shared = _by_id([module for name, module in model.named_modules() if name.rpartition(".")[2] in SHARED])
    taken = routers.keys() | experts.keys() | shared.keys()
    other = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    return {
        "router": list(routers.values()),
        "experts": list(experts.values()),
        "shared_experts": list(shared.values()),
        "other": other,
    }


def _experts_of(router: Router) -> list[nn.Module]:
    found = [with_wrapper(router.block, module) for module in router.block.modules() if is_experts(module)]
    if not found:
        raise ModelError(
            f"No experts were found beside the router {router.name}: this version of transformers is not known."
        )
    return found


def _by_id(modules: Sequence[nn.Module]) -> dict[int, nn.Parameter]:
    return {id(parameter): parameter for module in modules for parameter in module.parameters()}


def counts(groups: Groups) -> dict[str, int]:
    """The number of parameters of each group."""
    return {name: sum(parameter.numel() for parameter in group) for name, group in groups.items()}


def counts_of(config: Any) -> dict[str, int]:
    """`counts` from a model's configuration alone. Raises ModelError as `parameter_groups` does."""
    return counts(parameter_groups(empty_model(config)))


def empty_model(config: Any) -> Any:
    """A model of the configuration without weights."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
