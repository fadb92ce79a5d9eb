"""A fine-tuning on transformers' Trainer: settings, checkpoints, and the content of training.json.

outputs/models/<model>-finetune-freeze-<id8>/
  model/           Hugging Face format; with method.lora.r= adapter/ instead, in peft's format
  checkpoints/     checkpoints of an unfinished training
  identity.json    all that determines the weights, and the number of processes of the checkpoints
  log.jsonl        loss, gradient norm, learning rate, phase
  figures/loss     the loss curve, .png, .svg and .csv
  expert_metrics.jsonl, figures/expert_metrics   on validation conversations, by epoch
  counts.safetensors   with method.partners=: the profile of the untrained model
  training.json    all that determines the weights, and the course of the training; written last
"""

from __future__ import annotations

import gc
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from moe_lab.config.schema import Config
from moe_lab.methods.c2r import partners_in, write_profile
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, Recipe
from moe_lab.methods.finetune_freeze.lora import empty_adapted, save_lora, with_lora
from moe_lab.methods.finetune_freeze.memory import full_bytes, memory
from moe_lab.methods.finetune_freeze.parameter_groups import (
    Groups,
    counts,
    empty_model,
    parameter_groups,
    trainable,
)
from moe_lab.methods.finetune_freeze.trainer import FreezeTrainer, losses_of, stopped
from moe_lab.methods.tokenized import Encoded, Pad, Prepared, Row, Rows
from moe_lab.methods.trained import last_checkpoint, print_resumed, save_model
from moe_lab.methods.trainer import LOSS, Log, RoutingNoise, own_checkpoint, training_arguments
from moe_lab.metrics.training_metrics import ExpertMetrics, summary
from moe_lab.models.adapters import load_adapter
from moe_lab.models.distributed import num_processes, run_on_all_ranks, sharded
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.models.load import LoadedModel, load_model
from moe_lab.models.source import load_config
from moe_lab.results.atomic import writing
from moe_lab.results.identity import versions
from moe_lab.routing.hook import find_routers, routed, why_fixed
from moe_lab.routing.policies import PartnersOnly

LOGGING_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Training:
    """All that a training needs in addition to the model."""

    recipe: Recipe
    config: Config
    folder: Path
    """The folder of log.jsonl and checkpoints/."""
    rows: Sequence[Row]
    validation: Sequence[Row]
    """May be empty."""
    pad_token: int
    dtype: str
    """The dtype of the passes (autocast)."""
    allowed_LEE: Tensor | None = None
    """`partners_of` the profile, for a training under C2R's constraint."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


def finetune(model: Any, training: Training) -> dict[str, Any]:
    """Train the model, or the adapter of a PeftModel, in place, from the folder's last complete checkpoint if any.

    Returns the content of training.json: losses, and the memory of gradients and optimizer in each phase. Raises
    TrainingError if a loss or a gradient is NaN.
    """
    cached = model.config.use_cache  # the Trainer turns it off
    checkpoint = last_checkpoint(training.checkpoints)
    _print_resumed(training, checkpoint)
    with _routing(model, training) as noise:
        trainer = _trainer(model, training, noise)
        if checkpoint and is_done(training, checkpoint):
            trainer.state = state_of(checkpoint)
        else:
            trainer.train_from_last()
    kept = _kept(trainer.state)
    if kept != trainer.state.global_step or checkpoint == _checkpoint(training, kept):
        trainer._load_from_checkpoint(str(_checkpoint(training, kept)))
    model.config.use_cache = cached
    full = None if training.recipe.lora is None else full_bytes(model, training.recipe.optimizer)
    return _course(training, trainer.state, trainer.freezing.groups, full)


def finetune_together(training: Training) -> tuple[Any, dict[str, Any]]:
    """Train in all processes. Returns the trained model, loaded in this process, and training.json's content."""
    checkpoint = last_checkpoint(training.checkpoints)
    _print_resumed(training, checkpoint)
    if checkpoint is None or not is_done(training, checkpoint):
        run_on_all_ranks(partial(train_on_rank, training))
        gc.collect()  # the Trainer's model is in reference cycles
        checkpoint = last_checkpoint(training.checkpoints)
    assert checkpoint is not None
    state, full = state_of(checkpoint), None
    if training.recipe.lora is None:
        model: Any = own_checkpoint(_checkpoint(training, _kept(state)))
    else:
        model = load_to_train(training).model
        load_adapter(model, _checkpoint(training, _kept(state)))
        full = full_bytes(model, training.recipe.optimizer)
    config = training.config
    model.config.use_cache = load_config(config.model, offline=config.offline).use_cache
    course = _course(training, state, trainable(parameter_groups(model)), full)
    return model, course | {"processes": num_processes(), "sharded": sharded()}


def train_on_rank(training: Training) -> None:
    """Train in this process, with the others that run the same."""
    loaded = load_to_train(training, shard=sharded())
    with _routing(loaded.model, training) as noise:
        _trainer(loaded.model, training, noise).train_from_last()


def load_to_train(training: Training, *, shard: bool = False) -> LoadedModel:
    """The model to train, or a frozen one in the dtype of the passes with an adapter in float32."""
    config, lora = training.config, training.recipe.lora
    dtype = training.recipe.weights_dtype if lora is None else training.dtype
    loaded = load_model(config.model, dtype=dtype, device=config.device, offline=config.offline, shard=shard)
    if lora is None:
        return loaded
    return replace(loaded, model=with_lora(loaded.model, lora, config, loaded.facts.commit))


@contextmanager
def _routing(model: Any, training: Training) -> Iterator[RoutingNoise | None]:
    """Install C2R's constraint for all passes, or noise on the routers' choice, which the context then yields."""
    noise = RoutingNoise(training.config.seed) if training.recipe.routing_noise else None
    policy = noise if training.allowed_LEE is None else PartnersOnly(training.allowed_LEE)
    with nullcontext() if policy is None else routed(model, policy, repeats=True):
        yield noise


def _trainer(model: Any, training: Training, noise: RoutingNoise | None) -> FreezeTrainer:
    callbacks: list[Any] = [Log(training.folder)]
    if training.validation and find_routers(model) and not why_fixed(model):  # routers of single tokens
        callbacks.append(ExpertMetrics(Rows(training.validation), training.folder))
    return FreezeTrainer(
        recipe=training.recipe,
        model=model,
        args=_arguments(training),
        train_dataset=Rows(training.rows),
        validation=Rows(training.validation),
        data_collator=Pad(training.pad_token),
        callbacks=callbacks,
        noise=noise,
    )


def _print_resumed(training: Training, checkpoint: Path | None) -> None:
    if checkpoint is not None and not is_done(training, checkpoint):
        steps = training.recipe.steps(len(training.rows))
        print_resumed(training.folder, state_of(checkpoint).global_step, steps)


def is_done(training: Training, checkpoint: Path) -> bool:
    """Whether the training ends at this checkpoint, or stopped early."""
    recipe, state = training.recipe, state_of(checkpoint)
    if state.global_step >= recipe.steps(len(training.rows)):
        return True
    patience = recipe.early_stop_patience
    return patience is not None and stopped(losses_of(state.log_history), patience)


def state_of(checkpoint: Path) -> TrainerState:
    """The TrainerState of a checkpoint."""
    return TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))


def _checkpoint(training: Training, step: int) -> Path:
    return training.checkpoints / f"checkpoint-{step}"


def _kept(state: TrainerState) -> int:
    """The step whose weights are the result."""
    return state.best_global_step or state.global_step


def _course(
    training: Training, state: TrainerState, groups: Groups, full: int | None = None
) -> dict[str, Any]:
    lines = [line for line in state.log_history if "loss" in line]
    losses = [{"step": line["step"], "loss": line[LOSS]} for line in state.log_history if LOSS in line]
    held_out = {"losses": losses, "kept_step": _kept(state)}
    return {
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        "validation": held_out if training.validation else None,
        "expert_metrics": summary(training.folder) if training.validation else None,
        "phases": [
            asdict(phase) | memory(groups, phase, training.recipe.optimizer, full)
            for phase in training.recipe.phases
        ],
    }


def _arguments(training: Training) -> TrainingArguments:
    recipe, config = training.recipe, training.config
    steps = recipe.steps(len(training.rows))
    return training_arguments(
        training.folder,
        device=resolve_device(config.device).type,
        seed=config.seed,
        max_steps=steps,
        per_device_train_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.gradient_accumulation // num_processes(),
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        optim=recipe.optimizer,
        optim_args="bf16_stochastic_round=True" if recipe.optimizer == EIGHT_BIT else None,
        max_grad_norm=math.inf if recipe.max_grad_norm is None else recipe.max_grad_norm,
        bf16=recipe.autocasts(training.dtype),
        logging_steps=min(LOGGING_STEPS, steps),
        activation_checkpointing=config.method.activation_checkpointing,
        save_steps=config.method.save_steps,
        ddp_find_unused_parameters=True,  # those of frozen groups have no gradient
        save_only_model=sharded(),  # the Trainer refuses to store the optimizer of a sharded model
        metric_for_best_model="eval_loss" if recipe.early_stop_patience else None,
        greater_is_better=False,
    )


def train(
    folder: Path, config: Config, recipe: Recipe, prepared: Prepared, facts: ModelFacts
) -> dict[str, Any]:
    """Fine-tune the run's model and write it, or its adapter. Returns the rest of training.json."""
    encoded, held_out, tokenizer = prepared.train, prepared.validation, prepared.tokenizer
    steps, ends = recipe.steps(len(encoded.rows)), recipe.ends(len(encoded.rows))
    empty = (
        empty_model(load_config(config.model, offline=config.offline))
        if recipe.lora is None
        else empty_adapted(config, recipe.lora)
    )
    numbers = counts(trainable(parameter_groups(empty)) if recipe.lora else parameter_groups(empty))
    parameters = ", ".join(f"{name} {count:,}" for name, count in numbers.items())
    print(
        f"{folder.name}: {recipe.label}, {_described(encoded)}, {steps:,} steps; parameters: {parameters}",
        file=sys.stderr,
    )
    if held_out is not None:
        print(f"{folder.name}: validation on {_described(held_out)}", file=sys.stderr)
    if prepared.plain_template:
        print("The tokenizer has no chat template; a plain one is used and saved.", file=sys.stderr)
    training = Training(
        recipe=recipe,
        config=config,
        folder=folder,
        rows=encoded.rows,
        validation=[] if held_out is None else held_out.rows,
        pad_token=0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        dtype=facts.dtype,
    )
    start = time.perf_counter()
    profile = {}
    if num_processes() > 1:
        model, course = finetune_together(training)
    else:
        loaded = load_to_train(training)
        model = loaded.model
        if recipe.partners is not None:
            profile = write_profile(folder, config, prepared.data, loaded)
            training = replace(training, allowed_LEE=partners_in(folder, recipe.partners))
        course = finetune(model, training)
    with writing(folder / recipe.made):
        if recipe.lora is None:
            save_model(model, tokenizer, folder / recipe.made, facts.dtype)
        else:
            save_lora(model, tokenizer, folder / recipe.made)
    return {
        "schedule": recipe.label,
        "steps": steps,
        "phases_end_at": ends,
        "source": prepared.data.source,
        "attention": model.config._attn_implementation,
        "plain_template": prepared.plain_template,
        "parameters": numbers,
        **_counts(encoded),
        **profile,
        **course,
        "validation": None if held_out is None else _counts(held_out) | course["validation"],
        "last_session_seconds": time.perf_counter() - start,
        "all_versions": versions(),
    }


def _counts(encoded: Encoded) -> dict[str, int]:
    return {"conversations": len(encoded.rows), "truncated": encoded.truncated, "left_out": encoded.left_out}


def _described(encoded: Encoded) -> str:
    rows, truncated, left_out = len(encoded.rows), encoded.truncated, encoded.left_out
    return f"{rows:,} conversations ({truncated:,} truncated, {left_out:,} left out)"
