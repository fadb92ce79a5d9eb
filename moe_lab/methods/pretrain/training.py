"""A pre-training on transformers' Trainer: the model, checkpoints,
and the content of training.json.

outputs/models/<model>-pretrain-<id8>/
  model/           Hugging Face format
  checkpoints/     checkpoints of an unfinished training
  identity.json    all that determines the weights, and the number of processes of the checkpoints
  log.jsonl        cross-entropy, each regularizer by layer, the loss on validation rows
  training.json    all that determines the weights, and the course of the training; written last
"""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, set_seed

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.corpus import Corpus
from moe_lab.methods.pretrain.design import architecture
from moe_lab.methods.pretrain.leak import leak
from moe_lab.methods.pretrain.packing import PackedRows, pack_once
from moe_lab.methods.pretrain.routing import RoutingNoise, training_routing
from moe_lab.methods.pretrain.trainer import PretrainTrainer
from moe_lab.methods.trained import last_checkpoint, save_model, step_of
from moe_lab.methods.trainer import fit
from moe_lab.models.designs.configuration import UNITS
from moe_lab.models.designs.units import unit_tables
from moe_lab.models.distributed import num_processes, run_on_all_ranks
from moe_lab.models.experts import avoid_grouped_products
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.models.memory import peak_memory_bytes, reset_peak_memory
from moe_lab.results.measured import HeldOut
from moe_lab.results.statistics import bootstrap_interval
from moe_lab.results.versions import versions

LAST_RATE = 0.1
"""The learning rate at the last step, as a share of its highest value."""
LOGGING_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class PretrainingInputs:
    """All that a training needs."""

    config: Config
    folder: Path
    """The folder of log.jsonl and checkpoints/."""
    tokenizer: Any
    rows: Any
    """int32 [rows, length]."""
    held_out: Any
    """int32 [rows, length]."""
    dtype: str
    """The dtype of the passes (autocast). Weights and optimizer are float32."""

    @property
    def design(self) -> PretrainConfig:
        return self.config.method


def train_together(training: PretrainingInputs) -> tuple[Any, dict[str, Any]]:
    """Train in all processes, from the folder's last complete checkpoint if there is one.

    Returns the model and the content of training.json. Raises TrainingError if a loss or a gradient
    is NaN.
    """
    design = training.design
    device = resolve_device(training.config.device)
    steps = design.steps - step_of(last_checkpoint(training.folder / "checkpoints"))
    tokens = design.rows * design.sequence_length
    reset_peak_memory(device)
    start = time.perf_counter()
    trainer = run_on_all_ranks(partial(train, training))
    seconds = time.perf_counter() - start
    model = trainer.model
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    row_losses = trainer.row_losses().tolist()
    held_out = HeldOut(
        loss=sum(row_losses) / len(row_losses),
        interval=bootstrap_interval(row_losses),
        rows=len(row_losses),
        row_losses=row_losses,
    )
    tokens_per_second = None
    if steps:
        tokens_per_second = tokens * steps / design.steps / seconds
    model.config.use_cache = not design.reads_later_tokens  # the Trainer turns it off
    model.generation_config = GenerationConfig.from_model_config(model.config)
    return model, {
        "steps": design.steps,
        "tokens": tokens,
        "parameters": parameters_of(model),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "validation": held_out.to_json(),
        "leak": leak(model, training.held_out) if design.reads_later_tokens else None,
        "processes": num_processes(),
        "last_session": {
            "seconds": seconds,
            "tokens_per_second": tokens_per_second,
            "peak_memory_bytes": peak_memory_bytes(device),
        },
    }


def train(training: PretrainingInputs) -> PretrainTrainer:
    """Train in this process."""
    design = training.design
    config = training.config
    set_seed(config.seed)
    model = AutoModelForCausalLM.from_config(
        architecture(design, training.tokenizer),
        dtype=torch.float32,
        attn_implementation=config.model.attn_implementation,
    )
    if design.router != "expert" and design.backbone != "dense":
        model.set_experts_implementation(config.model.experts_implementation or "grouped_mm")
        avoid_grouped_products(model, config.model.experts_implementation)
    model.config.use_cache = False
    if design.router in UNITS:  # of words or sentences
        model.set_units(unit_tables(training.tokenizer, design.router))
    noise = RoutingNoise.of(config.seed, design.routing_noise, design.rows)
    with training_routing(model, noise) as routing:
        return fit(
            training.folder,
            config,
            model,
            PackedRows(training.rows, seed=config.seed, count=design.rows),
            steps=design.steps,
            log_steps=LOGGING_STEPS,
            kind=PretrainTrainer,
            options={
                "design": design,
                "routing": routing,
                "held_out": training.held_out,
                "schedule": partial(learning_rate, design),
            },
            bf16=training.dtype == "bfloat16",
            per_device_train_batch_size=design.batch_size,
            gradient_accumulation_steps=design.gradient_accumulation // num_processes(),
            learning_rate=design.learning_rate,
            weight_decay=design.weight_decay,
            warmup_steps=design.warmup_steps,
            **design.trainer_defaults,
            save_steps=design.save_steps,
            ddp_find_unused_parameters=False,  # every pass uses all of them
        )


def learning_rate(design: PretrainConfig, step: int) -> float:
    """The learning rate as a share of its highest value: linear warmup,
    then a cosine to `LAST_RATE`."""
    if step < design.warmup_steps:
        return (step + 1) / (design.warmup_steps + 1)
    progress = (step - design.warmup_steps) / max(1, design.steps - design.warmup_steps)
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def parameters_of(model: Any) -> dict[str, int]:
    """The numbers of all parameters and of those active for a token, both without embeddings."""
    total = 0
    of_experts = 0
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            continue
        total += parameter.numel()
        if ".experts." in name:
            of_experts += parameter.numel()
    if not of_experts:
        return {"total": total, "active": total}
    share = model.config.num_experts_per_tok / model.config.num_experts
    return {"total": total, "active": round(total - of_experts * (1 - share))}


def pretrain(
    folder: Path, config: Config, corpus: Corpus, tokenizer: Any, facts: ModelFacts
) -> dict[str, Any]:
    """Train a design and write the model. Returns the rest of training.json.

    Raises TaskError for a corpus that is too short.
    """
    design = config.method
    rows, held_out = pack_once(
        corpus,
        tokenizer,
        rows=design.rows,
        held_out=design.validation_rows,
        length=design.sequence_length,
    )
    print_message(
        f"{folder.name}: {design.backbone} {design.label}, router={design.router}, "
        f"{design.steps:,} steps of {design.rows // design.steps} rows, {len(rows):,} different "
        f"rows of {design.sequence_length} tokens"
    )
    for note in corpus.notes:
        print_message(f"{folder.name}: {note}")
    training = PretrainingInputs(
        config=config,
        folder=folder,
        tokenizer=tokenizer,
        rows=rows,
        held_out=held_out,
        dtype=facts.dtype,
    )
    model, course = train_together(training)
    save_model(model, tokenizer, folder / "model", facts.dtype)
    course["corpus_rows"] = len(rows)
    course["documents_left_out"] = corpus.left_out.counts()
    course["all_versions"] = versions()
    return course
