"""Freezing of a model's routers, experts or other parameters, as `method=finetune-freeze` does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from moe_lab.config.arguments import wrong
from moe_lab.errors import ConfigError
from moe_lab.methods.finetune_freeze.parameter_groups import parameter_groups
from moe_lab.methods.finetune_freeze.phase_switch import Freezing


@contextmanager
def freeze(model: nn.Module, *groups: str) -> Iterator[int]:
    """Freeze groups of parameters inside the context; yields the number of frozen parameters.

        with freeze(model, "router"):
            model(**batch).loss.backward()
            optimizer.step()

    Frozen parameters have no gradient, so that the optimizers of torch skip them: no step, no momentum, no weight
    decay. Afterwards they are trained again, except those that the model did not train before.

    Args:
        groups: "router", "experts" (the routed ones), "shared_experts" or "other". An adapter of PEFT belongs to the
            group of what it adapts.

    Raises ConfigError for an unknown group and for one without parameters that are trained, and ModelError for a model
    without routers.
    """
    for name in groups:
        if not isinstance(name, str):
            raise wrong(
                "freeze(model, group)", name, 'give names one by one: freeze(model, "router", "experts")'
            )
    found = parameter_groups(model)
    freezing = Freezing(found, phases=[], ends=[])
    for name in groups:
        if name not in found:
            raise ConfigError(f"freeze(model, {name!r}): choose among {', '.join(found)}.")
        if not freezing.groups[name]:
            raise ConfigError(f"freeze(model, {name!r}): {type(model).__name__} trains no such parameters.")
    if not groups:
        raise ConfigError(f"freeze(model) names no group: choose among {', '.join(found)}.")
    freezing.freeze(groups, optimizer=None)
    try:
        yield sum(parameter.numel() for name in groups for parameter in freezing.groups[name])
    finally:
        freezing.freeze([], optimizer=None)
