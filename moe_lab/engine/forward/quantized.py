"""Quantized layers whose numbers depend on what shares a pass: those that quantize all its tokens
with one scale.

No table of methods says which layers these are: one layer of each kind is asked for two tokens,
next to a third that is small or large.
"""

from typing import Any

import torch
from torch import nn

_LARGE = 1000.0
"""Factor of the third token. One scale for all tokens then leaves nothing of the others."""
_ARCHITECTURES = "transformers.models."
"""Linear layers that are defined here belong to an architecture, not to a quantizer."""


def quantizes_passes(model: nn.Module) -> str | None:
    """Which kind of linear layer quantizes all tokens of a pass with one scale, in a few words;
    None: there is none."""
    kinds: dict[tuple[type, type], nn.Linear] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear) and _is_quantized(module):
            kinds.setdefault((type(module), type(module.weight)), module)
    for (module_type, weight_type), module in kinds.items():
        if _reads_other_tokens(module, getattr(model, "dtype", torch.float32)):
            kind = weight_type if module_type is nn.Linear else module_type
            return f"{kind.__name__} quantizes all tokens of a pass with one scale"
    return None


def _is_quantized(module: nn.Linear) -> bool:
    """Whether a linear layer is of another class, has weights of another class, or computes by
    another function."""
    if type(module).__module__.startswith(_ARCHITECTURES):
        return False
    plain = type(module) is nn.Linear and type(module.weight) is nn.Parameter
    return not plain or "forward" in vars(module)


@torch.no_grad()
def _reads_other_tokens(module: Any, dtype: torch.dtype) -> bool:
    """Whether a layer's output for two tokens depends on a third one. False for weights that are
    not in memory (`meta`)."""
    device = module.weight.device
    if device.type == "meta":
        return False
    generator = torch.Generator().manual_seed(0)
    x_BSD = torch.randn(1, 3, module.in_features, generator=generator).to(device, dtype)
    with_large = x_BSD.clone()
    with_large[:, -1] *= _LARGE
    return not torch.equal(module(x_BSD)[:, :-1], module(with_large)[:, :-1])
