"""The files of a fine-tuning: the trained model or adapter, and the profile of its collaboration constraint.

The profile of C2R's constraint (Zhang et al. 2025) is that of the untrained model. It stays the same during the
training, and is stored with the trained model (`counts.safetensors`), which is evaluated under the same constraint.

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

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError
from moe_lab.methods.c2r import (
    LENGTH,
    NUMERICS,
    check_groups,
    check_partners,
    check_profile,
    digest_of,
    load_or_record,
    read_pairs,
)
from moe_lab.methods.finetune_freeze.config import FinetuneConfig, Recipe
from moe_lab.methods.trained import save_model
from moe_lab.metrics.stored import COUNTS
from moe_lab.models.distributed import num_processes
from moe_lab.results.atomic import write_atomically, writing
from moe_lab.results.identity import versions

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.config.schema import Config
    from moe_lab.methods.data_files import Data
    from moe_lab.methods.tokenized import Encoded, Prepared
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


def check_constraint(config: Config, facts: ModelFacts) -> None:
    """Raise ConfigError if the model cannot be constrained to `method.partners` partners."""
    own: FinetuneConfig = config.method
    assert own.partners is not None
    if facts.fixed_routing:
        raise ConfigError(
            f"method.partners needs routers of single tokens: {facts.fixed_routing}. Leave it out."
        )
    if num_processes() > 1:
        raise ConfigError(
            f"method.partners={own.partners} trains in one process: start the command without torchrun."
        )
    check_partners(own.partners, facts)
    check_groups(config, facts)
    if own.profile is not None:
        check_profile(own.profile, read_pairs(own.profile)[0], facts)


def profile_identity(own: FinetuneConfig) -> dict[str, Any]:
    """All that determines the profile except the model and the conversations; empty without a constraint."""
    if own.partners is None:
        return {}
    if own.profile is None:
        return {"profile": {"numerics": NUMERICS, "length": LENGTH}}
    return {"profile": digest_of(read_pairs(own.profile)[0])}


def write_profile(folder: Path, config: Config, data: Data, model: LoadedModel) -> dict[str, Any]:
    """Store the profile with a training. Without `method.profile` it is recorded on the training's conversations.

    Returns the profile's entries in training.json.
    """
    from safetensors.numpy import save

    given, on_test = config.method.profile, False
    if given is None:
        place, pairs_LEE = load_or_record(config, data, model)
    else:
        place, (pairs_LEE, on_test) = Path(given), read_pairs(given)
    write_atomically(folder / COUNTS, save({"pairs": pairs_LEE.numpy()}))
    return {"profile": place.name, "profile_sha256": digest_of(pairs_LEE), "test_profile": on_test}


def partners_in(folder: Path, count: int) -> Tensor:
    """bool [L, E, E]: the partners by the profile that is stored with a training (L layers, E experts)."""
    from moe_lab.routing.policies import partners_of

    return partners_of(read_pairs(folder / COUNTS)[0], count)


def train(
    folder: Path, config: Config, recipe: Recipe, prepared: Prepared, facts: ModelFacts
) -> dict[str, Any]:
    """Fine-tune the run's model and write it, or its adapter. Returns the rest of training.json."""
    from moe_lab.methods.finetune_freeze.training import (
        Training,
        finetune,
        finetune_together,
        load_to_train,
    )

    encoded, held_out, tokenizer = prepared.train, prepared.validation, prepared.tokenizer
    steps, ends = recipe.steps(len(encoded.rows)), recipe.ends(len(encoded.rows))
    numbers = _parameters(config, recipe)
    parameters = ", ".join(f"{name} {count:,}" for name, count in numbers.items())
    print(
        f"{folder.name}: {recipe.label}, {_said(encoded)}, {steps:,} steps; parameters: {parameters}",
        file=sys.stderr,
    )
    if held_out is not None:
        print(f"{folder.name}: validation on {_said(held_out)}", file=sys.stderr)
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
    _save(model, tokenizer, folder / recipe.made, recipe, facts)
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


def _parameters(config: Config, recipe: Recipe) -> dict[str, int]:
    """The number of parameters of each group, of an adapter those that it adds."""
    from moe_lab.methods.finetune_freeze.lora import empty_adapted
    from moe_lab.methods.finetune_freeze.parameter_groups import (
        counts,
        counts_of,
        parameter_groups,
        trainable,
    )
    from moe_lab.models.source import load_config

    if recipe.lora is not None:
        return counts(trainable(parameter_groups(empty_adapted(config, recipe.lora))))
    return counts_of(load_config(config.model, offline=config.offline))


def _save(model: Any, tokenizer: Any, folder: Path, recipe: Recipe, facts: ModelFacts) -> None:
    from moe_lab.methods.finetune_freeze.lora import save_lora

    with writing(folder):
        if recipe.lora is None:
            save_model(model, tokenizer, folder, facts.dtype)
        else:
            save_lora(model, tokenizer, folder)


def _counts(encoded: Encoded) -> dict[str, int]:
    return {"conversations": len(encoded.rows), "truncated": encoded.truncated, "left_out": encoded.left_out}


def _said(encoded: Encoded) -> str:
    counts = _counts(encoded)
    return "{conversations:,} conversations ({truncated:,} truncated, {left_out:,} left out)".format(**counts)
