"""The memory of a fine-tuning: in each phase other parameters have gradients and moments."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.methods.finetune_freeze.config import MOMENTS, FinetuneConfig, Phase, Recipe
from moe_lab.methods.finetune_freeze.lora import empty_to_train
from moe_lab.methods.finetune_freeze.parameter_groups import Groups, parameter_groups, trainable
from moe_lab.methods.training_memory import bytes_of, moment_bytes, with_shapes
from moe_lab.methods.training_memory import peak_bytes as planned_bytes
from moe_lab.models.distributed import num_processes
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.tasks.loading import once


def memory(model: Any, groups: Groups, phase: Phase, recipe: Recipe) -> dict[str, int]:
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
        full = 4 * (1 + MOMENTS[recipe.optimizer]) * frozen
    gradients, moments = bytes_of(trained), moment_bytes(trained, recipe.optimizer)
    return {
        "gradient_bytes": gradients,
        "optimizer_bytes": moments,
        "saved_bytes": full - gradients - moments,
    }


def peak_bytes(own: FinetuneConfig, config: Config, facts: ModelFacts, *, rows: int, length: int) -> int:
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
        return planned_bytes(
            model,
            optimizer=recipe.optimizer,
            on_gpu=device.type != "cpu",
            rows=min(rows, recipe.batch_size),
            length=length,
            bf16=recipe.autocasts(facts.dtype),
            checkpointing=own.activation_checkpointing,
            accumulates=recipe.gradient_accumulation > num_processes(),
            **({"output_router_logits": True} if recipe.router_aux_loss_coef else {}),
        )

    # schedules of a grid share phases
    what = (replace(recipe, phases=()), own.activation_checkpointing, config.model, config.offline, device)
    key = f"training memory {what} {facts.dtype} {rows} {length}"
    kinds = {phase.frozen for phase in recipe.phases}
    return max(once(f"{key} {frozen}", partial(of_phase, frozen)) for frozen in kinds)
