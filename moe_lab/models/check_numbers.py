"""Checks that a loaded model computes with numbers: weights that are finite, and no overflow in a short pass.

Overflow can hide. A norm divides by the root of the mean square, and the square of 2e19 is infinite in float32: the
norm then returns zeros, every next token is equally probable, and the perplexity is that of chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError, MoeLabError
from moe_lab.models.check_files import first_line

TOKENS = 4
LARGEST = 1e18
"""No weight and no input of a norm is larger: the mean of its squares would overflow in float32 and bfloat16."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_weights(model: nn.Module, source: str) -> None:
    """Raise ModelError, naming a parameter, for weights that are no numbers or larger than LARGEST."""
    if name := out_of_range(model):
        raise ModelError(
            f"{source} has weights that are NaN, infinite or larger than {LARGEST:g}, in {name}.\n"
            "It is damaged, or comes from a training that diverged: use another checkpoint."
        )


def out_of_range(model: nn.Module) -> str | None:
    """The first parameter with a number that is NaN, infinite or larger than LARGEST.

    Buffers that are stored are read, too, for NaN and infinity. Parameters that are on disk (`meta`) or quantized are
    not read.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            read = tensor.device.type != "meta" and tensor.dtype in FLOATS and tensor.numel() > 0
            if read and not _in_range(tensor):
                return name
        # buffers such as a router's selection bias; a mask may hold the lowest number
        stored = model.state_dict(keep_vars=True)
        for name, buffer in model.named_buffers():
            read = name in stored and buffer.device.type != "meta" and buffer.dtype in FLOATS
            if read and not buffer.isfinite().all():
                return name
    return None


def check_pass(model: Any, device: torch.device, source: str) -> None:
    """Raise ModelError if a pass of a few tokens overflows: in the input of a norm, or in the logits."""
    ids = torch.arange(min(TOKENS, model.config.get_text_config().vocab_size), device=device)[None]
    try:
        with torch.no_grad(), _watched_norms(model, source):
            logits = model(ids, use_cache=False).logits
    except (MoeLabError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # sizes of a configuration that do not fit each other lead to any
        raise ModelError(
            f"{source} cannot read a text as it was loaded: {first_line(error)}.\n"
            "Its config.json does not fit its weights, or this version of transformers: use another checkpoint."
        ) from error
    if not logits.isfinite().all():
        raise ModelError(
            f"{source} gives logits that are no numbers, as it was loaded. Try another dtype, or another checkpoint."
        )


@contextmanager
def _watched_norms(model: nn.Module, source: str) -> Iterator[None]:
    """Inside the context, a norm whose input is too large raises ModelError."""

    def check(name: str, args: tuple) -> None:
        if args and isinstance(args[0], Tensor) and not _in_range(args[0]):
            raise ModelError(
                f"{source} overflows as it was loaded: what {name} reads is NaN, infinite or larger than {LARGEST:g}.\n"
                "Its weights are damaged, or dtype= is too narrow for them: try dtype=float32, or another checkpoint."
            )

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if type(module).__name__.endswith("Norm"):
                hook = module.register_forward_pre_hook(lambda _, args, name=name: check(name, args))
                stack.callback(hook.remove)
        yield


def _in_range(tensor: Tensor) -> bool:
    smallest, largest = torch.aminmax(tensor)
    return bool((-LARGEST <= smallest) & (largest <= LARGEST))  # false of NaN
