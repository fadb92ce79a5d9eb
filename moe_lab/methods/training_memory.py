"""The planned memory of a training: weights, gradients, the optimizer's moments and step, and activations.

It is an upper bound from the sizes of tensors. What a device adds (context, workspaces, fragmentation) is not counted.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from moe_lab.config.schema import Config
from moe_lab.engine.footprint import kept_in_training
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, FinetuneConfig, Phase
from moe_lab.methods.finetune_freeze.parameter_groups import (
    Groups,
    empty_model,
    parameter_groups,
    trainable,
)
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.models.memory import weight_bytes
from moe_lab.models.source import load_config
from moe_lab.tasks.loading import once

BLOCK, CODES, LEAST_QUANTIZED = 256, 256, 4096
"""torchao's AdamW8bit: numbers that share a float32 scale, float32 values of the codes, its smallest 8-bit tensor."""
STEP_BYTES = 42
"""Bytes for each number of the largest tensor in a step of torchao's AdamW8bit that is not compiled."""
LOGIT_BYTES = 24
"""Bytes for each logit: the logits with their gradient, and in float32 a copy, its log-probabilities and gradients."""
BALANCE_BYTES = 20
"""Bytes of the load-balancing loss for each expert and each of a token's choices: the choices as numbers and masks."""


def peak_bytes(
    model: Any,
    *,
    optimizer: str,
    on_gpu: bool,
    rows: int,
    length: int,
    bf16: bool,
    checkpointing: bool = False,
) -> int:
    """The planned peak bytes of a training on one device.

    Args:
        model: on the meta device; the parameters that require gradients are trained.
        optimizer: adamw_torch, adamw_torch_fused or adamw_torch_8bit.
        rows: sequences of a pass, each of `length` tokens.
        bf16: whether it is computed by autocast.
        checkpointing: whether layers are computed again in the backward pass.

    Activations are missing for a family whose own code reads values of tensors (DBRX, JetMoE, LongCat-Flash).
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    gradients, largest = bytes_of(trained), max(trained, key=torch.numel)
    if optimizer == EIGHT_BIT:
        step = STEP_BYTES * largest.numel()
    elif optimizer == "adamw_torch":
        # a GPU computes all tensors at once, with a copy of their gradients; a CPU one after the other
        step = gradients if on_gpu else 3 * bytes_of([largest])
    else:
        step = 0
    try:
        kept = rows * kept_in_training(model, length)
    except NotImplementedError:
        kept = 0
    config, tokens = model.config.get_text_config(decoder=True), rows * length
    if config._attn_implementation == "eager":
        kept += kept // 2  # attention scores in other dtypes, and their gradients
    elif rows > 1:  # each layer keeps the mask of padded rows as numbers
        kept += config.num_hidden_layers * tokens * length * model.dtype.itemsize
    copies = 0
    if bf16 and model.dtype == torch.float32:
        # autocast copies experts [E, ...] again with their layer, and keeps copies of matrices
        kept_copies = [own for own in model.parameters() if own.dim() < 3 or not checkpointing]
        copies = sum(own.numel() for own in kept_copies) * torch.bfloat16.itemsize
    layer = kept // config.num_hidden_layers
    if checkpointing:
        kept = tokens * config.num_hidden_layers * config.hidden_size * model.dtype.itemsize + layer
    # of a layer, and the gradient of its experts with a transposed copy
    backward = 2 * (layer + bytes_of([largest]))
    passes = kept + copies + max(LOGIT_BYTES * tokens * config.vocab_size, backward)
    return weight_bytes(model) + moment_bytes(trained, optimizer) + gradients + max(passes, step)


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


def phase_memory(groups: Groups, phase: Phase, optimizer: str) -> dict[str, int]:
    """Bytes of gradients and of the optimizer's moments in a phase, and the bytes that full fine-tuning adds.

    Args:
        groups: `trainable` ones.
    """
    every = [each for group in groups.values() for each in group]
    trained = [each for name, group in groups.items() if name not in phase.frozen for each in group]
    gradients, moments = bytes_of(trained), moment_bytes(trained, optimizer)
    full = bytes_of(every) + moment_bytes(every, optimizer)
    return {
        "gradient_bytes": gradients,
        "optimizer_bytes": moments,
        "saved_bytes": full - gradients - moments,
    }


def finetuning_peak(
    own: FinetuneConfig, config: Config, facts: ModelFacts, *, rows: int, length: int
) -> int:
    """The peak bytes of a training on one device, in the phase that takes most. Loads no weights.

    Args:
        rows: conversations that are trained on.
        length: tokens of the longest one.
    """

    def built() -> tuple[Any, Groups]:
        model = empty_model(load_config(config.model, offline=config.offline))
        if config.model.attn_implementation:
            model.set_attn_implementation(config.model.attn_implementation)
        return model.to(getattr(torch, own.weights_dtype)), trainable(parameter_groups(model))

    # runs of a grid share it
    model, groups = once(
        f"model to train {config.model} {config.offline} {own.weights_dtype}", built
    )
    size = min(rows, own.pass_size)

    def of_phase(frozen: tuple[str, ...]) -> int:
        for name, group in groups.items():
            for each in group:
                each.requires_grad = name not in frozen
        return peak_bytes(
            model,
            optimizer=own.optimizer,
            on_gpu=resolve_device(config.device).type != "cpu",
            rows=size,
            length=length,
            bf16=facts.dtype == "bfloat16",
            checkpointing=own.activation_checkpointing,
        )

    balance = 0
    if own.router_aux_loss_coef:
        balance = (
            BALANCE_BYTES * size * length * facts.moe_layers * facts.experts * (facts.top_k + 1)
        )
    return balance + max(of_phase(frozen) for frozen in {phase.frozen for phase in own.all_phases})
