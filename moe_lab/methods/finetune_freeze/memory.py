"""The memory of a fine-tuning: weights, and in each phase gradients, moments, activations and the optimizer's step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from moe_lab.config.schema import Config
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, MOMENTS, FinetuneConfig, Phase, Recipe
from moe_lab.methods.finetune_freeze.lora import empty_adapted
from moe_lab.methods.finetune_freeze.parameter_groups import Groups, empty_model, parameter_groups, trainable
from moe_lab.methods.training_memory import bytes_of, pass_bytes, with_shapes
from moe_lab.models.distributed import num_processes
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.models.source import load_config
from moe_lab.tasks.loading import once

BLOCK, CODES, LEAST_QUANTIZED = 256, 256, 4096
"""torchao's AdamW8bit: numbers that share a float32 scale, float32 values of the codes, its smallest 8-bit tensor."""
STEP_BYTES = 42
"""Bytes for each number of the largest tensor in a step of torchao's AdamW8bit that is not compiled."""
STEP_COPIES = {"adamw_torch": 1, "adamw_torch_fused": 0, "adagrad": 2, "rmsprop": 1, "sgd": 1}
"""Copies of all gradients in a step of torch's optimizers on a GPU, where they compute all tensors at once."""


def memory(groups: Groups, phase: Phase, optimizer: str, full: int | None = None) -> dict[str, int]:
    """Bytes of gradients and of the optimizer's moments in a phase, and the bytes that full fine-tuning adds.

    Args:
        groups: `trainable` ones.
        optimizer: a name in `MOMENTS`.
        full: bytes of gradients and moments of full fine-tuning; None: those of all groups.
    """
    trained = _trained(groups, phase)
    gradients, moments = bytes_of(trained), moment_bytes(trained, optimizer)
    if full is None:
        every = [each for group in groups.values() for each in group]
        full = bytes_of(every) + moment_bytes(every, optimizer)
    return {
        "gradient_bytes": gradients,
        "optimizer_bytes": moments,
        "saved_bytes": full - gradients - moments,
    }


def full_bytes(adapted: nn.Module, optimizer: str) -> int:
    """Bytes of gradients and moments of full fine-tuning, in float32, of a model with an adapter."""
    return (
        4
        * (1 + MOMENTS[optimizer])
        * sum(own.numel() for own in adapted.parameters() if not own.requires_grad)
    )


def moment_bytes(parameters: Sequence[nn.Parameter], optimizer: str) -> int:
    """Bytes that the optimizer keeps for these parameters: numbers of their dtype, or torchao's blocks of 8 bits."""
    if optimizer != EIGHT_BIT:
        return MOMENTS[optimizer] * bytes_of(parameters)
    found = 0
    for own in parameters:
        blocks, rest = divmod(own.numel(), BLOCK)
        quantized = own.numel() >= LEAST_QUANTIZED and not rest
        found += own.numel() + 4 * (blocks + CODES) if quantized else bytes_of([own])
    return MOMENTS[optimizer] * found


def peak_bytes(own: FinetuneConfig, config: Config, facts: ModelFacts, *, rows: int, length: int) -> int:
    """The peak bytes of a training on one device, in the phase that takes most. Loads no weights.

    Args:
        rows: conversations that are trained on.
        length: tokens of the longest one.
    """
    recipe, checkpointing = own.recipe(), own.activation_checkpointing
    alike = {
        phase.frozen: replace(recipe, phases=(Phase(frozen=phase.frozen, until=1.0),))
        for phase in recipe.phases
    }
    model = (config.model, config.offline, config.device, facts.dtype)
    return max(
        once(
            f"training memory {model} {each} {checkpointing} {rows} {length}",
            partial(_peak, each, checkpointing, config, facts, rows, length),
        )
        for each in alike.values()
    )


def _peak(
    recipe: Recipe, checkpointing: bool, config: Config, facts: ModelFacts, rows: int, length: int
) -> int:
    """`peak_bytes` of a recipe with one phase."""
    if recipe.lora is None:
        architecture = load_config(config.model, offline=config.offline)
        model = empty_model(architecture).to(getattr(torch, recipe.weights_dtype))
    else:
        model = empty_adapted(config, recipe.lora, facts.dtype)
    if config.model.attn_implementation:
        model.set_attn_implementation(config.model.attn_implementation)
    model = with_shapes(model)
    trained = _trained(trainable(parameter_groups(model)), recipe.phases[0])
    model.requires_grad_(False)
    for each in trained:
        each.requires_grad = True
    passes = pass_bytes(
        model,
        rows=min(rows, recipe.batch_size),
        length=length,
        bf16=recipe.autocasts(facts.dtype),
        checkpointing=checkpointing,
        accumulates=recipe.gradient_accumulation > num_processes(),
        **({"output_router_logits": True} if recipe.router_aux_loss_coef else {}),
    )
    gradients = bytes_of(trained)
    if recipe.optimizer == EIGHT_BIT:
        step = STEP_BYTES * max(each.numel() for each in trained)
    else:
        step = STEP_COPIES[recipe.optimizer] * gradients * (resolve_device(config.device).type != "cpu")
    weights = bytes_of([*model.parameters(), *model.buffers()])
    return weights + moment_bytes(trained, recipe.optimizer) + max(passes, gradients + step)


def _trained(groups: Groups, phase: Phase) -> list[nn.Parameter]:
    return [each for name, group in groups.items() if name not in phase.frozen for each in group]
