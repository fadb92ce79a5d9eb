"""A fine-tuning on transformers' Trainer: settings, checkpoints, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from moe_lab.methods.finetune_freeze.recipe import Recipe
from moe_lab.methods.finetune_freeze.rows import Pad, Row, Rows
from moe_lab.methods.finetune_freeze.trainer import FreezeTrainer
from moe_lab.methods.finetune_freeze.validation import LOSS, losses_of, stopped
from moe_lab.methods.training import Log, last_checkpoint
from moe_lab.metrics.callback import ExpertMetrics, summary
from moe_lab.models.facts import resolve_device

if TYPE_CHECKING:
    from moe_lab.config import Config

LOGGING_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class Training:
    """What is to be done, beside the model."""

    recipe: Recipe
    config: Config
    folder: Path
    """Of log.jsonl and checkpoints/."""
    rows: Sequence[Row]
    validation: Sequence[Row]
    """Held out; empty for none."""
    pad_token: int
    dtype: str
    """Weights and optimizer are float32; with bfloat16 the passes are computed in it (autocast)."""


def finetune(model: Any, training: Training) -> dict[str, Any]:
    """Train the model in place, from the folder's last whole checkpoint if there is one.

    Returns what training.json tells: losses, and per phase the memory of gradients and optimizer. Raises MoeLabError
    where a loss or a gradient is no number.
    """
    recipe, checkpoints = training.recipe, training.folder / "checkpoints"
    cached = model.config.use_cache  # the Trainer turns it off
    trainer = FreezeTrainer(
        recipe=recipe,
        model=model,
        args=_arguments(training),
        train_dataset=Rows(training.rows),
        validation=Rows(training.validation),
        data_collator=Pad(training.pad_token),
        callbacks=[Log(training.folder), *_measuring(training)],
    )
    checkpoint = last_checkpoint(checkpoints)
    if checkpoint and _stopped_early(checkpoint, recipe):
        trainer.state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    kept = trainer.state.best_global_step or trainer.state.global_step
    if kept != trainer.state.global_step or checkpoint == checkpoints / f"checkpoint-{kept}":
        trainer._load_from_checkpoint(str(checkpoints / f"checkpoint-{kept}"))
    model.config.use_cache = cached
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        "validation": _validation(training, trainer.state, kept),
        "expert_metrics": summary(training.folder) if training.validation else None,
        "phases": [asdict(phase) | trainer.freezing.memory(phase) for phase in recipe.phases],
    }


def _stopped_early(checkpoint: Path, recipe: Recipe) -> bool:
    if recipe.early_stop_patience is None:
        return False
    log = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).log_history
    return stopped(losses_of(log), recipe.early_stop_patience)


def _validation(training: Training, state: TrainerState, kept: int) -> dict[str, Any] | None:
    if not training.validation:
        return None
    losses = [{"step": line["step"], "loss": line[LOSS]} for line in state.log_history if LOSS in line]
    return {"conversations": len(training.validation), "losses": losses, "kept_step": kept}


def _measuring(training: Training) -> list[ExpertMetrics]:
    """The expert metrics on what is held out."""
    return [ExpertMetrics(Rows(training.validation), training.folder)] if training.validation else []


def _arguments(training: Training) -> TrainingArguments:
    recipe, config = training.recipe, training.config
    cpu = resolve_device(config.device).type == "cpu"
    steps = recipe.steps(len(training.rows))
    settings = TrainingArguments(
        output_dir=str(training.folder / "checkpoints"),
        seed=config.seed,
        max_steps=steps,
        per_device_train_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.gradient_accumulation,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        optim="adamw_torch",
        max_grad_norm=1.0,
        bf16=training.dtype == "bfloat16",
        logging_steps=min(LOGGING_STEPS, steps),
        logging_nan_inf_filter=False,
        save_steps=config.method.save_steps,
        save_total_limit=2,
        metric_for_best_model="eval_loss" if recipe.early_stop_patience else None,
        greater_is_better=False,
        remove_unused_columns=False,
        dataloader_pin_memory=not cpu,
        use_cpu=cpu,
        disable_tqdm=False,
        report_to=[],
    )
    assert settings.device is not None  # found out now, as it sets the number below
    settings._n_gpu = min(settings._n_gpu, 1)  # one process, one GPU: no torch.nn.DataParallel
    return settings
