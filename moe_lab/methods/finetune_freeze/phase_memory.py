"""The memory of a fine-tuning: in each phase other parameters have gradients and optimizer
state."""

from typing import Any

import torch

from moe_lab.config.schema import Config
from moe_lab.methods.finetune_freeze.adapter import with_adapter
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.parameter_groups import (
    Groups,
    empty_model,
    parameter_groups,
    trainable,
)
from moe_lab.methods.finetune_freeze.phases import Phase
from moe_lab.methods.training_memory import bytes_of, moment_bytes, peak_bytes
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.models.source import load_config
from moe_lab.tasks.loading import once

BALANCE_BYTES = 20
"""Bytes of the load-balancing loss for each expert and each of a token's choices:
the choices as numbers and masks."""


def phase_memory(
    groups: Groups, phase: Phase, optimizer: str, optim_args: str | None = None
) -> dict[str, int]:
    """Bytes of gradients and of the optimizer's moments in a phase,
    and the bytes that full fine-tuning adds.

    Args:
        groups: `trainable` ones.
        optimizer: `optim` of TrainingArguments.
        optim_args: as in TrainingArguments.
    """
    parameters = []
    trained = []
    for name, group in groups.items():
        parameters += group
        if name not in phase.frozen:
            trained += group
    gradients = bytes_of(trained)
    moments = moment_bytes(trained, optimizer, optim_args)
    full = bytes_of(parameters) + moment_bytes(parameters, optimizer, optim_args)
    return {
        "gradient_bytes": gradients,
        "optimizer_bytes": moments,
        "saved_bytes": full - gradients - moments,
    }


def finetuning_peak(
    method: FinetuneConfig, config: Config, facts: ModelFacts, *, rows: int, length: int
) -> int:
    """The peak bytes of a training on one device, in the phase that takes most. Loads no weights.

    Args:
        rows: conversations that are trained on.
        length: tokens of the longest one.
    """

    def build() -> tuple[Any, Groups]:
        model = empty_model(load_config(config.model, offline=config.offline))
        if config.model.attn_implementation:
            model.set_attn_implementation(config.model.attn_implementation)
        model = model.to(getattr(torch, method.weights_dtype))
        if method.peft:
            model = with_adapter(model, method.peft, config.seed)
        return model, trainable(parameter_groups(model))

    # the runs of a grid share it
    key = f"model to train {config.model} {config.offline} {method.weights_dtype} {method.peft}"
    model, groups = once(key, build)
    pass_size = min(rows, method.pass_size)

    peaks = []
    for frozen in {phase.frozen for phase in method.all_phases}:
        for name, group in groups.items():
            for parameter in group:
                parameter.requires_grad = name not in frozen
        peak = peak_bytes(
            model,
            optimizer=method.optimizer,
            optim_args=method.trainer.get("optim_args"),
            on_gpu=resolve_device(config.device).type != "cpu",
            rows=pass_size,
            length=length,
            bf16=facts.dtype == "bfloat16",
            checkpointing=method.activation_checkpointing,
        )
        peaks.append(peak)

    balance = 0
    if method.router_aux_loss_coef:
        choices = pass_size * length * facts.moe_layers * (facts.top_k + 1)
        balance = BALANCE_BYTES * choices * facts.experts
    return balance + max(peaks)
