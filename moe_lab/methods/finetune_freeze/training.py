"""A fine-tuning on transformers' Trainer: settings, checkpoints, and the content of training.json.

outputs/models/<model>-finetune-freeze-<id8>/
  model/           Hugging Face format
  adapter/         peft's format, in place of model/ with method.peft
  checkpoints/     checkpoints of an unfinished training
  identity.json    all that determines the weights, and the number of processes of the checkpoints
  log.jsonl        loss, gradient norm, learning rate, phase
  expert_metrics.jsonl   on validation conversations, by epoch
  counts.safetensors   with method.partners=: the profile of the untrained model
  training.json    all that determines the weights, and the course of the training; written last
"""

import gc
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.methods.answer_ends import stop_at
from moe_lab.methods.c2r import profile_of
from moe_lab.methods.early_stopping import early_stopping_callback, stopped_early
from moe_lab.methods.finetune_freeze.adapter import with_adapter
from moe_lab.methods.finetune_freeze.config import EIGHT_BIT, FinetuneConfig
from moe_lab.methods.finetune_freeze.parameter_groups import (
    counts,
    empty_model,
    parameter_groups,
    trainable,
)
from moe_lab.methods.finetune_freeze.phase_memory import phase_memory
from moe_lab.methods.finetune_freeze.phases import label
from moe_lab.methods.finetune_freeze.prepared import Prepared
from moe_lab.methods.finetune_freeze.trainer import FreezeTrainer
from moe_lab.methods.tokenized import Encoded, Pad, Row, Rows
from moe_lab.methods.trained import last_checkpoint, save_model
from moe_lab.methods.trainer import LOSS, fit, own_checkpoint
from moe_lab.metrics.stored import COUNTS
from moe_lab.metrics.training_metrics import EpochMetrics, summary
from moe_lab.models.adapters import load_adapter
from moe_lab.models.distributed import num_processes, run_on_all_ranks, sharded
from moe_lab.models.facts import LoadedModel, ModelFacts
from moe_lab.models.load import load_model
from moe_lab.models.output_flags import set_use_cache
from moe_lab.models.source import load_config
from moe_lab.results.atomic import write_atomically
from moe_lab.results.versions import versions
from moe_lab.routing import find_routers, routed
from moe_lab.routing.hook import why_fixed
from moe_lab.routing.passes import transformers_model
from moe_lab.routing.policies import PartnersOnly, partners_of

LOGGING_STEPS = 10


@dataclass(frozen=True, kw_only=True)
class FinetuningInputs:
    """All that a training needs in addition to the model."""

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
    def method(self) -> FinetuneConfig:
        """The keys of the method."""
        return self.config.method


def finetune(training: FinetuningInputs, model: Any = None) -> tuple[Any, dict[str, Any]]:
    """Train in all processes, from the folder's last complete checkpoint if there is one.

    Args:
        model: what one process trains, in place (`load_to_train`). Several processes load it
            themselves.

    Returns the trained model, loaded in this process, and the content of training.json: losses, and
    the memory of gradients and optimizer in each phase. Raises TrainingError if a loss or a
    gradient is NaN.
    """
    method = training.method
    config = training.config
    groups = None if model is None else trainable(parameter_groups(model))
    checkpoint = last_checkpoint(training.folder / "checkpoints")
    state = TrainerState()
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    all_steps = method.steps(len(training.rows))
    was_done = state.global_step >= all_steps or stopped_early(state)
    if not was_done:
        state = run_on_all_ranks(partial(train_on_rank, training, model))
        gc.collect()  # the Trainer, with its model, is in reference cycles
    step = state.global_step
    if method.trainer.get("load_best_model_at_end"):
        step = state.best_global_step
    place = training.folder / "checkpoints" / f"checkpoint-{step}"
    if model is None or was_done:
        model = trained_weights(training, place)
    if groups is None:
        groups = trainable(parameter_groups(model))
    architecture = load_config(config.model, offline=config.offline)
    set_use_cache(model.config, getattr(architecture, "use_cache", None))

    losses = []
    validation_losses = []
    for line in state.log_history:
        if "loss" in line:
            losses.append(line["loss"])
        if LOSS in line:
            validation_losses.append({"step": line["step"], "loss": line[LOSS]})
    phases = []
    optim_args = method.trainer.get("optim_args")
    for phase in method.all_phases:
        phases.append(asdict(phase) | phase_memory(groups, phase, method.optimizer, optim_args))
    course: dict[str, Any] = {}
    if step != all_steps:
        course["weights_of_step"] = step
    return model, course | {
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "validation": {"losses": validation_losses} if training.validation else None,
        "expert_metrics": summary(training.folder) if training.validation else None,
        "phases": phases,
        "processes": num_processes(),
        "sharded": sharded(),
    }


def train_on_rank(training: FinetuningInputs, model: Any = None) -> TrainerState:
    """Train in this process, with the others that run the same."""
    if model is None:
        model = load_to_train(training, shard=sharded()).model
    method = training.method
    steps = method.steps(len(training.rows))
    constraint: AbstractContextManager[Any] = nullcontext()
    if training.allowed_LEE is not None:
        constraint = routed(model, PartnersOnly(training.allowed_LEE), repeats=True)
    callbacks: list[Any] = []
    if method.early_stopping:
        callbacks.append(early_stopping_callback(method.early_stopping))
    # routers of single tokens
    if training.validation and find_routers(model) and not why_fixed(model):
        callbacks.append(EpochMetrics(Rows(training.validation), training.folder))
    with constraint:
        trainer = fit(
            training.folder,
            training.config,
            model,
            Rows(training.rows),
            steps=steps,
            log_steps=LOGGING_STEPS,
            kind=FreezeTrainer,
            callbacks=callbacks,
            options={
                "method": method,
                "validation": Rows(training.validation),
                "data_collator": Pad(training.pad_token),
            },
            per_device_train_batch_size=method.pass_size,
            gradient_accumulation_steps=method.step_passes // num_processes(),
            learning_rate=method.learning_rate,
            weight_decay=method.weight_decay,
            optim=method.optimizer,
            optim_args="bf16_stochastic_round=True" if method.optimizer == EIGHT_BIT else None,
            bf16=training.dtype == "bfloat16",
            activation_checkpointing=method.activation_checkpointing,
            warmup_steps=method.warmup_steps(len(training.rows)),
            metric_for_best_model="loss" if method.early_stopping else None,
            restore_callback_states_from_checkpoint=bool(method.early_stopping),
            save_steps=method.save_steps,
            ddp_find_unused_parameters=True,  # those of frozen groups have no gradient
            # the Trainer refuses to store the optimizer of a sharded model
            save_only_model=sharded(),
        )
    return trainer.state


def load_to_train(training: FinetuningInputs, *, shard: bool = False) -> LoadedModel:
    """The model to train, with `method.peft` a PeftModel."""
    config = training.config
    loaded = load_model(
        config.model,
        dtype=training.method.weights_dtype,
        device=config.device,
        offline=config.offline,
        shard=shard,
    )
    if not training.method.peft:
        return loaded
    wrapped = with_adapter(loaded.model, training.method.peft, config.seed)
    return replace(loaded, model=wrapped)


def trained_weights(training: FinetuningInputs, checkpoint: Path) -> Any:
    """The model of a checkpoint: its weights, or those of `model=` with its adapter."""
    if not training.method.peft:
        attention = training.config.model.attn_implementation
        return own_checkpoint(checkpoint, attn_implementation=attention)
    wrapped = load_to_train(training).model
    load_adapter(wrapped, checkpoint)
    return wrapped


def train(folder: Path, config: Config, prepared: Prepared, facts: ModelFacts) -> dict[str, Any]:
    """Fine-tune the run's model and write it. Returns the rest of training.json."""
    method: FinetuneConfig = config.method
    tokenizer = prepared.tokenizer
    rows = prepared.train.rows
    validation = prepared.validation
    steps = method.steps(len(rows))
    schedule = label(method.all_phases)
    architecture = load_config(config.model, offline=config.offline)
    parameters = counts(parameter_groups(empty_model(architecture)))
    numbers = ", ".join(f"{name} {count:,}" for name, count in parameters.items())
    print_message(
        f"{folder.name}: {schedule}, {len(rows):,} conversations, {steps:,} steps; parameters: "
        f"{numbers}"
    )
    for note in prepared.notes:
        print_message(f"{folder.name}: {note}")
    end = prepared.end
    training = FinetuningInputs(
        config=config,
        folder=folder,
        rows=rows,
        validation=[] if validation is None else validation.rows,
        pad_token=0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        dtype=facts.dtype,
    )
    start = time.perf_counter()
    loaded = load_to_train(training) if num_processes() == 1 else None
    profile_record: dict[str, Any] = {}
    if method.partners is not None and loaded is not None:  # with several processes it is refused
        profile = profile_of(config, lambda: prepared.data, loaded)
        write_atomically(folder / COUNTS, save({"pairs": profile.pairs_LEE}))
        training = replace(training, allowed_LEE=partners_of(profile.pairs_LEE, method.partners))
        profile_record = profile.record()
    model, course = finetune(training, None if loaded is None else loaded.model)
    if end is not None:
        course["answer_end"] = None
        if end.token is not None:
            course["answer_end"] = tokenizer.decode([end.token])
        if end.token is not None and end.is_new:
            stop_at(transformers_model(model), end.token)
    place = folder / ("adapter" if method.peft else "model")
    save_model(model, tokenizer, place, facts.dtype)
    if method.peft:
        course["adapter_parameters"] = counts(trainable(parameter_groups(model)))
        # else the base model's own would end the adapter's answers
        transformers_model(model).generation_config.save_pretrained(place)
    if validation is not None:
        duplicates = {"duplicates": prepared.data.duplicates}
        course["validation"] = _counts_of(validation) | duplicates | course["validation"]
    return {
        "schedule": schedule,
        "steps": steps,
        "phases_end_at": method.ends(len(rows)),
        "source": prepared.data.source,
        "attention": model.config._attn_implementation,
        "parameters": parameters,
        **_counts_of(prepared.train),
        **profile_record,
        **course,
        "last_session_seconds": time.perf_counter() - start,
        "all_versions": versions(),
    }


def _counts_of(data: Encoded) -> dict[str, int]:
    return {
        "conversations": len(data.rows),
        "truncated": data.truncated,
        "left_out": data.left_out,
        "empty_answers": data.empty_answers,
    }
