"""The memory of a training: weights, gradients, the optimizer's moments and step, and activations.

It is planned before the training starts: passes are metered with tensors that have shapes and no values. What a device
adds (context, workspaces, fragmentation) is not counted.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)

from moe_lab.config.schema import Config
from moe_lab.engine.footprint import Meter, OneOperation, known_of
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, FinetuneConfig, Phase, Recipe
from moe_lab.methods.finetune_freeze.lora import empty_to_train
from moe_lab.methods.finetune_freeze.parameter_groups import Groups, parameter_groups, trainable
from moe_lab.models.distributed import num_processes
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.tasks.loading import once

BLOCK, CODES, LEAST_QUANTIZED = 256, 256, 4096
"""torchao's AdamW8bit: numbers that share a float32 scale, float32 values of the codes, its smallest 8-bit tensor."""
STEP_BYTES = 42
"""Bytes for each number of the largest tensor in a step of torchao's AdamW8bit that is not compiled."""


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
        optimizer: adamw_torch, adamw_torch_fused or adamw_torch_8bit.
        passes: arguments of `pass_bytes`.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients, weights = bytes_of(trained), bytes_of([*model.parameters(), *model.buffers()])
    largest = max(trained, key=torch.numel)
    if optimizer == EIGHT_BIT:
        step = STEP_BYTES * largest.numel()
    elif optimizer == "adamw_torch":
        # a GPU computes all tensors at once, with a copy of their gradients; a CPU one after the other
        step = gradients if on_gpu else 3 * bytes_of([largest])
    else:
        step = 0
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
    """Bytes of AdamW's two moments of these parameters: numbers of their dtype, or torchao's blocks of 8 bits."""
    if optimizer != EIGHT_BIT:
        return 2 * bytes_of(parameters)
    found = 0
    for own in parameters:
        blocks, rest = divmod(own.numel(), BLOCK)
        quantized = own.numel() >= LEAST_QUANTIZED and not rest
        found += own.numel() + 4 * (blocks + CODES) if quantized else bytes_of([own])
    return 2 * found


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The bytes of these tensors."""
    return sum(each.numel() * each.element_size() for each in tensors)


# A fine-tuning: in each phase other parameters have gradients and moments


def phase_memory(model: Any, groups: Groups, phase: Phase, recipe: Recipe) -> dict[str, int]:
    """Bytes of gradients and of the optimizer's moments in a phase, and the bytes that full fine-tuning adds.

    Args:
        groups: `trainable` ones.
    """
    trained = [each for name, group in groups.items() if name not in phase.frozen for each in group]
    if recipe.lora is None:
        every = [each for group in groups.values() for each in group]
        full = bytes_of(every) + moment_bytes(every, recipe.optimizer)
    else:  # in float32
        frozen = sum(each.numel() for each in model.parameters() if not each.requires_grad)
        full = 4 * 3 * frozen
    gradients, moments = bytes_of(trained), moment_bytes(trained, recipe.optimizer)
    return {
        "gradient_bytes": gradients,
        "optimizer_bytes": moments,
        "saved_bytes": full - gradients - moments,
    }


def finetuning_peak(own: FinetuneConfig, config: Config, facts: ModelFacts, *, rows: int, length: int) -> int:
    """The peak bytes of a training on one device, in the phase that takes most. Loads no weights.

    Args:
        rows: conversations that are trained on.
        length: tokens of the longest one.
    """
    recipe, device = own.recipe(), resolve_device(config.device)

    def of_phase(frozen: tuple[str, ...]) -> int:
        model = empty_to_train(
            config, recipe.lora, recipe.weights_dtype if recipe.lora is None else facts.dtype
        )
        if config.model.attn_implementation:
            model.set_attn_implementation(config.model.attn_implementation)
        model = with_shapes(model)
        for name, group in trainable(parameter_groups(model)).items():
            for each in group:
                each.requires_grad = name not in frozen
        return peak_bytes(
            model,
            optimizer=recipe.optimizer,
            on_gpu=device.type != "cpu",
            rows=min(rows, recipe.batch_size),
            length=length,
            bf16=facts.dtype == "bfloat16",
            checkpointing=own.activation_checkpointing,
            accumulates=recipe.gradient_accumulation > num_processes(),
            **({"output_router_logits": True} if recipe.router_aux_loss_coef else {}),
        )

    # schedules of a grid share phases
    what = (replace(recipe, phases=()), own.activation_checkpointing, config.model, config.offline, device)
    key = f"training memory {what} {facts.dtype} {rows} {length}"
    kinds = {phase.frozen for phase in recipe.phases}
    return max(once(f"{key} {frozen}", partial(of_phase, frozen)) for frozen in kinds)
