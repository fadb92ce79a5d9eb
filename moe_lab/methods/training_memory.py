"""The memory of a training: weights, gradients, the optimizer's moments and step, and activations.

It is planned before the training starts: passes are metered with tensors that have shapes and no values. What a device
adds (context, workspaces, fragmentation) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, MOMENTS

BLOCK, CODES, LEAST_QUANTIZED = 256, 256, 4096
"""torchao's AdamW8bit: numbers that share a float32 scale, float32 values of the codes, its smallest 8-bit tensor."""
STEP_BYTES = 42
"""Bytes for each number of the largest tensor in a step of torchao's AdamW8bit that is not compiled."""
STEP_COPIES = {"adamw_torch": 1, "adamw_torch_fused": 0, "adagrad": 2, "rmsprop": 1, "sgd": 1}
"""Copies of all gradients in a step of torch's optimizers on a GPU, where they compute all tensors at once."""


def with_shapes(model: Any) -> Any:
    """A model from the meta device on the CPU: with shapes and no values, but autocast applies to its tensors."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        model.tie_weights()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("grouped_mm")  # others read which experts have tokens
    return model.train()


def peak_bytes(model: Any, *, optimizer: str, on_gpu: bool, **passes: Any) -> int:
    """The planned peak bytes of a training on one device.

    Args:
        model: `with_shapes`; the parameters that require gradients are trained.
        optimizer: a name in `MOMENTS`.
        passes: arguments of `pass_bytes`.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients, weights = bytes_of(trained), bytes_of([*model.parameters(), *model.buffers()])
    if optimizer == EIGHT_BIT:
        step = STEP_BYTES * max(each.numel() for each in trained)
    else:
        step = STEP_COPIES[optimizer] * gradients * on_gpu
    return weights + moment_bytes(trained, optimizer) + max(pass_bytes(model, **passes), gradients + step)


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


def moment_bytes(parameters: Sequence[Tensor], optimizer: str) -> int:
    """Bytes that the optimizer keeps for these parameters: numbers of their dtype, or torchao's blocks of 8 bits."""
    if optimizer != EIGHT_BIT:
        return MOMENTS[optimizer] * bytes_of(parameters)
    found = 0
    for own in parameters:
        blocks, rest = divmod(own.numel(), BLOCK)
        quantized = own.numel() >= LEAST_QUANTIZED and not rest
        found += own.numel() + 4 * (blocks + CODES) if quantized else bytes_of([own])
    return MOMENTS[optimizer] * found


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The bytes of these tensors."""
    return sum(each.numel() * each.element_size() for each in tensors)
