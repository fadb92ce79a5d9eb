"""The fine-tuned model of a run: trained once per model, data and recipe, whatever task it is evaluated on.

outputs/models/<model>-finetune-freeze-<id8>/
  model/           plain Hugging Face format
  checkpoints/     checkpoints of an unfinished training
  identity.json    all that determines the weights, and the number of processes of the checkpoints
  log.jsonl        loss, gradient norm, learning rate, phase
  figures/loss     the loss curve, .png and .csv
  expert_metrics.jsonl, figures/expert_metrics   on held-out conversations, by epoch
  counts.safetensors   with method.partners=: the profile of the untrained model (`constraint.py`)
  training.json    all that determines the weights, and the course of the training; written last
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.methods.finetune_freeze.config import Recipe
from moe_lab.methods.finetune_freeze.constraint import partners_in, profile_identity, write_profile
from moe_lab.methods.trained import Trained, claim, save_model, steps_kept
from moe_lab.models.distributed import num_processes, sharded
from moe_lab.results.atomic import writing
from moe_lab.results.versions import decisive_versions, versions

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.methods.conversations.tokenize import Encoded
    from moe_lab.methods.finetune_freeze.training_data import Prepared
    from moe_lab.models.facts import ModelFacts


def training_content(
    config: Config, recipe: Recipe, facts: ModelFacts, data: str, version: int | str
) -> dict[str, Any]:
    """All that determines the weights: model, computing precision, recipe, data, seed and the libraries' versions."""
    from moe_lab.models.identity import model_identity
    from moe_lab.models.source import model_source

    return {
        "method": "finetune-freeze",
        "numerics": version,
        "recipe": recipe.identity(),
        "data": data,
        **profile_identity(config.method),
        "seed": config.seed,
        "model": model_identity(model_source(config.model), config.model),
        "commit": facts.commit,
        "dtype": facts.dtype,
        "versions": decisive_versions(),
    }


def work_left(
    config: Config, recipe: Recipe, content: dict[str, Any], prepared: Prepared
) -> dict[str, tuple[int, int]]:
    """Optimizer steps and tokens that the training still needs, by its folder's name; empty where it is done."""
    trained = Trained.of(config, content, "model")
    if trained.stored() is not None:
        return {}
    rows, folder = prepared.train.rows, trained.folder
    steps = max(0, recipe.steps(len(rows)) - steps_kept(folder / "checkpoints"))
    tokens = sum(len(row.ids) for row in rows) * steps / recipe.steps_per_epoch(len(rows))
    return {folder.name: (steps, round(tokens))}


def load_or_train(
    config: Config,
    recipe: Recipe,
    content: dict[str, Any],
    prepared: Prepared,
    facts: ModelFacts,
    free: Callable[[], None],
) -> dict[str, Any]:
    """The content of training.json and the `folder` of the trained model, trained as far as it is missing.

    `free` removes the model in memory before a training. Another process that trains it is waited for. Raises
    ConfigError for a folder of another training.
    """

    trained = Trained.of(config, content, "model")

    def train(folder: Path) -> dict[str, Any]:
        free()
        claim(folder, {"id": trained.id, "processes": num_processes(), "sharded": sharded(), **content})
        return _train(folder, config, recipe, prepared, facts)

    return trained.load_or_train(content, train)


def _train(
    folder: Path, config: Config, recipe: Recipe, prepared: Prepared, facts: ModelFacts
) -> dict[str, Any]:
    """Train, or continue, and write the model."""
    from moe_lab.methods.finetune_freeze.parameter_groups import counts_of
    from moe_lab.methods.finetune_freeze.training import Training, finetune, finetune_together
    from moe_lab.methods.trainer import LOSS
    from moe_lab.models.load import load_model
    from moe_lab.models.source import load_config
    from moe_lab.reports.figures.training_loss import write_training_loss

    encoded, held_out, tokenizer = prepared.train, prepared.validation, prepared.tokenizer
    steps, ends = recipe.steps(len(encoded.rows)), recipe.ends(len(encoded.rows))
    numbers = counts_of(load_config(config.model, offline=config.offline))
    said = ", ".join(f"{name} {count:,}" for name, count in numbers.items())
    print(
        f"{folder.name}: {recipe.label}, {_said(encoded)}, {steps:,} steps; parameters: {said}",
        file=sys.stderr,
    )
    if held_out is not None:
        print(f"{folder.name}: held out are {_said(held_out)}", file=sys.stderr)
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
        model, told = finetune_together(training)
    else:
        loaded = load_model(config.model, dtype="float32", device=config.device, offline=config.offline)
        model = loaded.model
        if recipe.partners is not None:
            profile = write_profile(folder, config, prepared.data, loaded)
            training = replace(training, allowed_LEE=partners_in(folder, recipe.partners))
        told = finetune(model, training)
    with writing(folder / "model"):
        save_model(model, tokenizer, folder / "model", facts.dtype)
    write_training_loss(folder, LOSS)
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
        **told,
        "validation": None if held_out is None else _counts(held_out) | told["validation"],
        "last_session_seconds": time.perf_counter() - start,
        "all_versions": versions(),
    }


def _counts(encoded: Encoded) -> dict[str, int]:
    return {
        "conversations": len(encoded.rows),
        "truncated": encoded.truncated,
        "left_out": encoded.left_out,
    }


def _said(encoded: Encoded) -> str:
    counts = _counts(encoded)
    return "{conversations:,} conversations ({truncated:,} truncated, {left_out:,} left out)".format(**counts)
