"""Routers, experts and all other parameters of a model as groups that can be frozen."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods.finetune_freeze.phases import Phase
from moe_lab.models.auto_class import auto_class
from moe_lab.models.facts import without_rope_lengths
from moe_lab.models.text_part import freeze_towers
from moe_lab.routing import Router, find_routers
from moe_lab.routing.passes import with_wrapper

Groups = Mapping[str, list[nn.Parameter]]
"""Parameters by group: "router", "experts", "shared_experts" (may be empty) and "other".
Each parameter is in one."""

OWN_FORWARD = (
    "transformers.models.dbrx.modeling_dbrx.DbrxExperts",
    "transformers.models.jetmoe.modeling_jetmoe.JetMoeParallelExperts",
    "transformers.models.llama4.modeling_llama4.Llama4TextExperts",
    "transformers.models.longcat_flash.modeling_longcat_flash.LongcatFlashExperts",
    "transformers.models.step3p7.modeling_step3p7.Step3p7Experts",
)
"""Classes of experts without transformers' choice of implementations;
all others have its `_apply_gate`."""
SHARED = ("shared_expert", "shared_experts", "shared_expert_gate", "shared_mlp")
"""Names of shared experts and their gates."""


def is_experts(module: nn.Module) -> bool:
    """Whether the module holds the routed experts of a layer, or a part of them."""
    cls = type(module)
    return hasattr(cls, "_apply_gate") or f"{cls.__module__}.{cls.__qualname__}" in OWN_FORWARD


def parameter_groups(model: nn.Module) -> Groups:
    """The parameters by group; all are "other" in a dense model.

    Raises ModelError for a layer without experts.
    """
    routers = find_routers(model)
    expert_modules = []
    router_modules = []
    for router in routers:
        expert_modules += _expert_modules(router)
        router_modules.append(with_wrapper(router.block, router.module))
    shared_modules = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in SHARED:
            shared_modules.append(module)

    experts_by_id = _by_id(expert_modules)
    routers_by_id = _by_id(router_modules)
    shared_by_id = _by_id(shared_modules)
    # a router's module may contain its experts
    routers_only = [routers_by_id[key] for key in routers_by_id if key not in experts_by_id]
    if routers and not (routers_only and experts_by_id):
        raise ModelError(
            f"{type(model).__name__}: its routers or experts have no parameters to freeze."
        )
    grouped = routers_by_id.keys() | experts_by_id.keys() | shared_by_id.keys()
    return {
        "router": routers_only,
        "experts": list(experts_by_id.values()),
        "shared_experts": list(shared_by_id.values()),
        "other": [parameter for parameter in model.parameters() if id(parameter) not in grouped],
    }


def _expert_modules(router: Router) -> list[nn.Module]:
    """The modules that hold the experts of a router's layer. Raises ModelError if there are
    none."""
    modules = []
    for module in router.block.modules():
        if is_experts(module):
            modules.append(with_wrapper(router.block, module))
    if not modules:
        raise ModelError(f"No experts were found next to the router {router.name}.")
    return modules


def _by_id(modules: Sequence[nn.Module]) -> dict[int, nn.Parameter]:
    """The parameters of the modules, each once, by `id(parameter)`."""
    parameters = {}
    for module in modules:
        for parameter in module.parameters():
            parameters[id(parameter)] = parameter
    return parameters


def counts(groups: Groups) -> dict[str, int]:
    """The number of parameters of each group."""
    numbers = {}
    for name, parameters in groups.items():
        numbers[name] = sum(parameter.numel() for parameter in parameters)
    return numbers


def empty_model(config: Any) -> Any:
    """A model of this configuration without weights."""
    with torch.device("meta"):
        model = auto_class(config).from_config(without_rope_lengths(config))
    freeze_towers(model)
    return model


def check_phases_train(groups: Groups, phases: Sequence[Phase]) -> None:
    """Raise ConfigError for a phase that freezes all parameters of the model."""
    for number, phase in enumerate(phases, start=1):
        trained = [name for name in groups if groups[name] and name not in phase.frozen]
        if not trained:
            raise ConfigError(
                f"method.phases: phase {number} freezes {', '.join(phase.frozen)}, and the model "
                "has no other parameters: nothing would be trained. Leave one of them out."
            )


def trainable(groups: Groups) -> Groups:
    """The groups, without the parameters that the model itself does not train
    (`requires_grad=False`)."""
    trained = {}
    for name, parameters in groups.items():
        trained[name] = [parameter for parameter in parameters if parameter.requires_grad]
    return trained
