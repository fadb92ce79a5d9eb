"""`moe_lab.freeze`: groups of parameters that are not trained."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from moe_lab.errors import ConfigError
from moe_lab.routing.hook import require_routers


@contextmanager
def freeze(model: nn.Module, *groups: str) -> Iterator[int]:
    """Freeze groups of parameters inside the context; yields the number of frozen parameters.

        with freeze(model, "router"):
            model(**batch).loss.backward()
            optimizer.step()

    Frozen parameters have no gradient, so that the optimizers of torch skip them: no step, no
    momentum, no weight decay. Afterwards they are trained again, except those that the model did
    not train before.

    Args:
        groups: "router", "experts" (the routed ones), "shared_experts" or "other". An adapter of
            PEFT belongs to the group of what it adapts.

    Raises ConfigError for an unknown group and for one without parameters that are trained, and
    ModelError for a model without routers.
    """
    from moe_lab.methods.finetune_freeze.parameter_groups import parameter_groups, trainable

    require_routers(model)
    trained = trainable(parameter_groups(model))
    frozen = []
    for name in groups or (None,):  # no group at all is refused as an unknown one is
        if not isinstance(name, str) or name not in trained:
            raise ConfigError(
                f"freeze(model, {name!r}): name groups one by one, among {', '.join(trained)}."
            )
        if not trained[name]:
            raise ConfigError(
                f"freeze(model, {name!r}): {type(model).__name__} trains no such parameters."
            )
        frozen.extend(trained[name])
    for parameter in frozen:
        parameter.requires_grad = False
        parameter.grad = None
    try:
        yield sum(parameter.numel() for parameter in frozen)
    finally:
        for parameter in frozen:
            parameter.requires_grad = True
