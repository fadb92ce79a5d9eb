"""The memory of a training before it starts: its passes, metered with tensors that have shapes and no values.

The weights, gradients and moments are counted by the method. What a device adds (context, workspaces, fragmentation) is
not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from moe_lab.engine.footprint import Meter, OneOperation, known_of


def with_shapes(model: Any) -> Any:
    """A model from the meta device on the CPU: with shapes and no values, but autocast applies to its tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        model.tie_weights()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")  # others read which experts have tokens
    return model.train()


def pass_bytes(
    model: Any,
    *,
    rows: int,
    length: int,
    bf16: bool,
    checkpointing: bool = False,
    accumulates: bool = False,
    **inputs: Any,
) -> int:
    """The peak bytes of a pass and its backward pass, without weights: activations, logits, loss and gradients.

    Args:
        model: `with_shapes`; gradients are of the parameters that require them.
        rows: sequences of the pass, each of `length` tokens.
        bf16: whether it is computed by autocast.
        checkpointing: whether layers are computed again in the backward pass.
        accumulates: whether the pass begins with gradients of an earlier one.
        inputs: further arguments of the model.

    Returns the bytes of the gradients for a family whose own code reads values of tensors (DBRX, JetMoE,
    LongCat-Flash).
    """
    parameters = list(model.parameters())
    trained = [each for each in parameters if each.requires_grad]
    if checkpointing:
        contexts = lambda: (nullcontext(), OneOperation())  # noqa: E731 - modes do not reach backward passes
        model.activation_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    forward = convert_outputs_to_fp32(torch.autocast("cpu", torch.bfloat16)(model.forward)) if bf16 else model
    with parameters[0].fake_mode:
        ids = torch.zeros(rows, length, dtype=torch.long)
        meter = Meter(known_of(model))
        try:
            with meter, OneOperation():
                for each in trained if accumulates else ():
                    each.grad = torch.empty_like(each)
                mask = torch.ones_like(ids)
                output = forward(input_ids=ids, labels=ids, attention_mask=mask, use_cache=False, **inputs)
                torch.autograd.backward(output.loss)
        except (DataDependentOutputException, DynamicOutputShapeException):
            return bytes_of(trained)
    return meter.peak


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The bytes of these tensors."""
    return sum(each.numel() * each.element_size() for each in tensors)
