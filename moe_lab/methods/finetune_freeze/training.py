"""A fine-tuning on transformers' Trainer: settings, checkpoints, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainingArguments

from moe_lab.methods.finetune_freeze.recipe import Recipe
from moe_lab.methods.finetune_freeze.rows import Pad, Row, Rows
from moe_lab.methods.finetune_freeze.trainer import FreezeTrainer
from moe_lab.methods.training import Log, last_checkpoint
from moe_lab.models.facts import resolve_device

if TYPE_CHECKING:
    from moe_lab.config import Config

LOGGING_STEPS = 10


def finetune(
    model: Any, tokenizer: Any, rows: Sequence[Row], recipe: Recipe, folder: Path, config: Config, dtype: str
) -> dict[str, Any]:
    """Train the model in place, from the folder's last whole checkpoint if there is one.

    Weights and optimizer are float32; with dtype=bfloat16 the passes are computed in bfloat16 (autocast). Returns what
    training.json tells: losses, and per phase the memory of gradients and optimizer. Raises MoeLabError where a loss or
    a gradient is no number.
    """
    cached = model.config.use_cache  # the Trainer turns it off
    trainer = FreezeTrainer(
        recipe=recipe,
        model=model,
        args=_arguments(recipe, len(rows), folder, config, dtype),
        train_dataset=Rows(rows),
        data_collator=Pad(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0),
        callbacks=[Log(folder)],
    )
    checkpoint = last_checkpoint(folder / "checkpoints")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    model.config.use_cache = cached
    lines = [line for line in trainer.state.log_history if "loss" in line]
    return {
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        "phases": [asdict(phase) | trainer.freezing.memory(phase) for phase in recipe.phases],
    }


def _arguments(recipe: Recipe, rows: int, folder: Path, config: Config, dtype: str) -> TrainingArguments:
    cpu = resolve_device(config.device).type == "cpu"
    steps = recipe.steps(rows)
    settings = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        seed=config.seed,
        max_steps=steps,
        per_device_train_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.gradient_accumulation,
        learning_rate=recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        optim="adamw_torch",
        max_grad_norm=1.0,
        bf16=dtype == "bfloat16",
        logging_steps=min(LOGGING_STEPS, steps),
        logging_nan_inf_filter=False,
        save_steps=config.method.save_steps,
        save_total_limit=2,
        remove_unused_columns=False,
        dataloader_pin_memory=not cpu,
        use_cpu=cpu,
        disable_tqdm=False,
        report_to=[],
    )
    assert settings.device is not None  # found out now, as it sets the number below
    settings._n_gpu = min(settings._n_gpu, 1)  # one process, one GPU: no torch.nn.DataParallel
    return settings
