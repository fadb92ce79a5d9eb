"""A pre-training on transformers' Trainer: the model, checkpoints, and the content of training.json.

outputs/models/<model>-pretrain-<id8>/
  model/           Hugging Face format
  checkpoints/     checkpoints of an unfinished training
  identity.json    all that determines the weights, and the number of processes of the checkpoints
  log.jsonl        cross-entropy, each regularizer by layer, the loss on validation rows
  training.json    all that determines the weights, and the course of the training; written last

In `leak`: R = rows, P = target positions, S = positions of a row, V = vocabulary.
"""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, GenerationConfig, set_seed

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.methods.pretrain.config import PretrainConfig, architecture
from moe_lab.methods.pretrain.corpus import Corpus, PackedRows, pack_once
from moe_lab.methods.pretrain.trainer import PretrainTrainer, RoutingNoise, training_routing
from moe_lab.methods.trained import last_checkpoint, save_model, step_of
from moe_lab.methods.trainer import fit
from moe_lab.models.designs.configuration import UNITS
from moe_lab.models.designs.units import unit_tables
from moe_lab.models.distributed import num_processes, run_on_all_ranks
from moe_lab.models.experts import avoid_grouped_products
from moe_lab.models.facts import ModelFacts, resolve_device
from moe_lab.models.memory import peak_memory_bytes, reset_peak_memory
from moe_lab.results.measured import Difference, HeldOut
from moe_lab.results.statistics import bootstrap_interval
from moe_lab.results.versions import versions

ROWS = 32
"""Validation rows that `leak` reads."""
POSITIONS = 128
"""The largest number of targets of a row, evenly spaced. Each takes two passes over the rows."""
TOKENS = 2**14
"""The largest number of tokens of a pass, unless one row has more."""
LAST_RATE = 0.1
"""The learning rate at the last step, as a share of its highest value."""
LOGGING_STEPS = 20


@torch.no_grad()
def leak(model: Any, held_out: Any) -> dict[str, Any]:
    """The gain of expert choice from later tokens, which a causal model does not have (MoE-Bench, Table 3).

    A pass over only a prefix differs from a pass over the whole row in two ways: the later tokens are missing, and the
    sequence is shorter, so each expert takes fewer tokens. A third pass separates them: the prefix with the later
    tokens of the next row. All losses are cross-entropies per token of some validation rows (two or more).

    `later_tokens` is the effect of the later tokens: the loss with another row's minus the loss with the true ones.
    `short_prefixes` is the effect of the shorter sequence: the loss of the prefix alone minus that with another row's.
    `difference` is their sum.
    """
    model.eval()
    rows_RS = torch.from_numpy(held_out[:ROWS]).long()
    others_RS = rows_RS.roll(-1, dims=0)
    length = rows_RS.shape[1]
    targets_P = torch.linspace(1, length - 1, min(POSITIONS, length - 1)).round().long()
    size = max(1, TOKENS // length)
    parts = [
        _losses(model, rows.to(model.device), others.to(model.device), targets_P)
        for rows, others in zip(rows_RS.split(size), others_RS.split(size), strict=True)
    ]
    whole_R, replaced_R, prefix_R = torch.cat(parts, dim=1).cpu()
    return {
        "rows": len(rows_RS),
        "positions": len(targets_P),
        "loss_with_later_tokens": float(whole_R.mean()),
        "loss_with_another_rows": float(replaced_R.mean()),
        "loss_without": float(prefix_R.mean()),
        "later_tokens": _difference(replaced_R - whole_R),
        "short_prefixes": _difference(prefix_R - replaced_R),
        **_difference(prefix_R - whole_R),
    }


def _losses(model: Any, rows_RS: Tensor, others_RS: Tensor, targets_P: Tensor) -> Tensor:
    """[3, R]: each row's loss with its later tokens, with those of the other row, and without any."""
    before_P = (targets_P - 1).to(rows_RS.device)
    whole_RPV = model(input_ids=rows_RS, logits_to_keep=before_P).logits
    replaced, prefix = [], []
    for target, last in zip(targets_P.tolist(), before_P.split(1), strict=True):
        mixed_RS = torch.cat([rows_RS[:, :target], others_RS[:, target:]], dim=1)
        replaced.append(model(input_ids=mixed_RS, logits_to_keep=last).logits[:, 0])
        prefix.append(model(input_ids=rows_RS[:, :target], logits_to_keep=1).logits[:, 0])
    targets_RP = rows_RS[:, before_P + 1]
    losses = [
        cross_entropy(logits.float().transpose(1, 2), targets_RP, reduction="none").mean(1)
        for logits in (whole_RPV, torch.stack(replaced, dim=1), torch.stack(prefix, dim=1))
    ]
    return torch.stack(losses)


def _difference(difference_R: Tensor) -> dict[str, Any]:
    difference = Difference(
        difference=float(difference_R.mean()), interval=bootstrap_interval(difference_R.tolist())
    )
    return difference.to_json()


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

    Returns the model and the content of training.json. Raises TrainingError if a loss or a gradient is NaN.
    """
    design, device = training.design, resolve_device(training.config.device)
    steps = design.steps - step_of(last_checkpoint(training.folder / "checkpoints"))
    tokens = design.rows * design.sequence_length
    reset_peak_memory(device)
    start = time.perf_counter()
    trainer = run_on_all_ranks(partial(train, training))
    seconds = time.perf_counter() - start
    model = trainer.model
    lines = [line for line in trainer.state.log_history if "loss" in line]
    losses = trainer.row_losses().tolist()
    held_out = HeldOut(
        loss=sum(losses) / len(losses),
        interval=bootstrap_interval(losses),
        rows=len(losses),
        row_losses=losses,
    )
    model.config.use_cache = not design.reads_later_tokens  # the Trainer turns it off
    model.generation_config = GenerationConfig.from_model_config(model.config)
    return model, {
        "steps": design.steps,
        "tokens": tokens,
        "parameters": parameters_of(model),
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        "validation": held_out.to_json(),
        "leak": leak(model, training.held_out) if design.reads_later_tokens else None,
        "processes": num_processes(),
        "last_session": {
            "seconds": seconds,
            "tokens_per_second": tokens * steps / design.steps / seconds if steps else None,
            "peak_memory_bytes": peak_memory_bytes(device),
        },
    }


def train(training: PretrainingInputs) -> PretrainTrainer:
    """Train in this process."""
    design, config = training.design, training.config
    set_seed(config.seed)
    own = architecture(design, training.tokenizer)
    attention = config.model.attn_implementation
    model = AutoModelForCausalLM.from_config(
        own, dtype=torch.float32, attn_implementation=attention
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
            optim="adamw_torch_fused",
            adam_beta2=0.95,
            train_sampling_strategy="sequential",
            save_steps=design.save_steps,
            ddp_find_unused_parameters=False,  # every pass uses all of them
        )


def learning_rate(design: PretrainConfig, step: int) -> float:
    """The learning rate as a share of its highest value: linear warmup, then a cosine to `LAST_RATE`."""
    if step < design.warmup_steps:
        return (step + 1) / (design.warmup_steps + 1)
    progress = (step - design.warmup_steps) / max(1, design.steps - design.warmup_steps)
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def parameters_of(model: Any) -> dict[str, int]:
    """The numbers of all parameters and of those active for a token, both without embeddings."""
    config, total, experts = model.config, 0, 0
    for name, own in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            continue
        total += own.numel()
        if ".experts." in name:
            experts += own.numel()
    share = config.num_experts_per_tok / config.num_experts if experts else 0
    return {"total": total, "active": round(total - experts * (1 - share))}


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
        f"{folder.name}: {design.backbone} {design.label}, router={design.router}, {design.steps:,} steps of "
        f"{design.rows // design.steps} rows, {len(rows):,} different rows of {design.sequence_length} tokens"
    )
    for note in corpus.notes:
        print_message(f"{folder.name}: {note}")
    own = {"config": config, "folder": folder, "tokenizer": tokenizer, "dtype": facts.dtype}
    model, course = train_together(PretrainingInputs(rows=rows, held_out=held_out, **own))
    save_model(model, tokenizer, folder / "model", facts.dtype)
    corpus_facts = {"corpus_rows": len(rows), "documents_left_out": corpus.left_out.counts()}
    return course | corpus_facts | {"all_versions": versions()}
