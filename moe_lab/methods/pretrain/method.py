"""`method=pretrain`: train a design from scratch, then evaluate it as `method=base` does.

The tokenizer is that of `model=`, whose weights are not read. The corpus, the design and the recipe
are the method's keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError
from moe_lab.methods.base import base_lm
from moe_lab.methods.method import Context, Counters, DesignMethod, SessionInfo
from moe_lab.methods.pretrain.config import PretrainConfig, left_out_note
from moe_lab.methods.pretrain.design import architecture
from moe_lab.models.distributed import num_processes, sharded
from moe_lab.results.measured import Difference, HeldOut, interval_text, number
from moe_lab.results.versions import decisive_versions

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from moe_lab.engine.lm import EngineLM
    from moe_lab.methods.pretrain.corpus import Corpus
    from moe_lab.methods.trained import Trained
    from moe_lab.models.facts import LoadedModel, ModelFacts

LEFT_OUT = "documents_left_out"
"""The key of training.json with the numbers of empty and of duplicate documents;
earlier versions do not have it."""
RECORDED = (
    "steps",
    "tokens",
    "parameters",
    "first_loss",
    "last_loss",
    "validation",
    "leak",
    "last_session",
    LEFT_OUT,
)
"""Keys of training.json that results.json has, too."""
REGULARIZER_BYTES = 16
"""Bytes for each token and expert of a layer:
float32 logits and what the regularizers make of them."""


class Pretrain(DesignMethod):
    """Trains a design once and evaluates it as `method=base` does."""

    numerics = 2
    random = True
    required_routing = "none"
    expert_metrics = "all"

    Config = PretrainConfig
    one_device = "method=pretrain keeps the whole model in each process"

    def __init__(self, config: Any):
        super().__init__(config)
        self._read: tuple[Corpus, Any] | None = None
        """The corpus and the tokenizer, after they were first needed."""

    def architecture(self, config: RunConfig) -> PreTrainedConfig:
        _, tokenizer = self._corpus_and_tokenizer(config)
        return architecture(self.config, tokenizer)

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        return {"name": self.config.name, **self.config.recipe()}

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """Corpus and tokenizer.

        Raises TaskError for unusable data, ConfigError for a design that cannot be trained.
        """
        from moe_lab.methods.pretrain.corpus import tokenizer_identity
        from moe_lab.methods.pretrain.packing import require_rows
        from moe_lab.methods.trainer import check_fields
        from moe_lab.models.designs.configuration import UNITS
        from moe_lab.models.designs.units import require_units

        self.check_training(config, facts)
        check_fields(config)
        if config.model.experts_per_token is not None:
            raise ConfigError(
                "model.experts_per_token has no effect on a design. Use method.experts_per_token, "
                "or evaluate the trained model with method=base."
            )
        if config.model.peft is not None:
            raise ConfigError(
                "model.peft: method=pretrain begins with random weights. Leave it out."
            )
        if sharded():
            raise ConfigError(
                "method=pretrain splits rows over processes, not the model: use torchrun without "
                "FSDP."
            )
        passes = self.config.gradient_accumulation
        processes = num_processes()
        if passes % processes:
            raise ConfigError(
                f"method.gradient_accumulation={passes} is not divisible by {processes} processes. "
                "Use a multiple."
            )
        corpus, tokenizer = self._corpus_and_tokenizer(config)
        if self.config.router in UNITS:
            require_units(tokenizer, self.config.router)
        rows = self.config.validation_rows
        require_rows(corpus, tokenizer, held_out=rows, length=self.config.sequence_length)
        return {
            "corpus": corpus.identity,
            "validation_rows": rows,
            "tokenizer": tokenizer_identity(tokenizer),
        }

    def _corpus_and_tokenizer(self, config: RunConfig) -> tuple[Corpus, Any]:
        """The corpus of `method.dataset` and the tokenizer of the model, read once."""
        from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of

        if self._read is None:
            corpus = read_corpus(config, self.config.dataset, self.config.dataset_size)
            self._read = corpus, tokenizer_of(config, corpus)
        return self._read

    def trained_model(self, config: RunConfig, place: str) -> ModelConfig:
        """The trained model, which has its own tokenizer."""
        return replace(super().trained_model(config, place), tokenizer=None)

    def train(self, folder: Path, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        from moe_lab.methods.pretrain.training import pretrain

        corpus, tokenizer = self._corpus_and_tokenizer(config)
        return pretrain(folder, config, corpus, tokenizer, facts)

    def trained(self, config: RunConfig, facts: ModelFacts) -> Trained:
        from moe_lab.methods.trained import Trained

        content = {
            "method": "pretrain",
            "numerics": self.version,
            "recipe": self.config.recipe(),
            "data": self.data_identity(config, facts),
            "seed": config.seed,
            "dtype": facts.dtype,
            "experts_implementation": config.model.experts_implementation,
            "versions": decisive_versions(),
        }
        attention = config.model.attn_implementation
        if attention:
            content["attn_implementation"] = attention
        return Trained.of(config, content, "model")

    def training_size(self, config: RunConfig, facts: ModelFacts) -> tuple[int, int, int]:
        design = self.config
        return design.steps, design.rows * design.sequence_length, design.steps

    def training_notes(self, config: RunConfig, facts: ModelFacts) -> list[str]:
        name = self.trained(config, facts).folder.name
        corpus, _ = self._corpus_and_tokenizer(config)
        return [f"{name}: {note}" for note in corpus.notes]

    def planned_memory(self, config: RunConfig, facts: ModelFacts) -> int:
        from moe_lab.methods.finetune_freeze.parameter_groups import empty_model
        from moe_lab.methods.training_memory import peak_bytes

        design = self.config
        _, tokenizer = self._corpus_and_tokenizer(config)
        planned_design = architecture(replace(design, router="token"), tokenizer)  # experts alike
        if design.router == "expert":
            taken = math.ceil(design.capacity_factor * design.experts_per_token)
            planned_design.num_experts_per_tok = min(taken, design.experts)
        planned = peak_bytes(
            empty_model(planned_design).float(),
            optimizer=design.training_arguments["optim"],
            optim_args=design.trainer.get("optim_args"),
            checkpointing=design.trainer.get("activation_checkpointing", False),
            on_gpu=False,  # no copies
            rows=design.batch_size,
            length=design.sequence_length,
            bf16=facts.dtype == "bfloat16",
        )
        if design.backbone == "dense":
            return planned
        tokens = design.batch_size * design.sequence_length
        return planned + tokens * design.experts * design.layers * REGULARIZER_BYTES

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        from moe_lab.methods.trained import record_of

        folder, record = record_of(context.config)
        lm = base_lm(model, context.config)
        lm.session_info = {
            "model": folder.name,
            "training": {key: record.get(key) for key in RECORDED},
        }
        yield lm

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        names = {"label": self.config.label, "regularizers": self.config.regularizers}
        return {"pretrain": names | self.config.recipe() | session_info}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        """The held-out loss, by which designs are ranked, the effect of later tokens,
        speed and memory."""
        design = block["pretrain"]
        seed = block["seed"]
        training = design["training"]
        # both are "dense" for a dense model
        name = " ".join(dict.fromkeys((design["backbone"], design["label"])))
        line = f"{name}{_settings_text(design)}, seed {seed}: held-out loss {_loss_text(training)}"
        if training["leak"]:
            line += _leak_text(training["leak"])
        session = training["last_session"]
        if session["tokens_per_second"]:
            peak = session["peak_memory_bytes"] / 2**20
            speed = session["tokens_per_second"]
            line += f"; trained at {speed:,.0f} tokens per second, peak {peak:,.0f} MiB"
        left_out = training.get(LEFT_OUT)
        if left_out and any(left_out.values()):
            return [line, f"{name}, seed {seed}: {left_out_note(left_out)}"]
        return [line]


def _settings_text(design: dict[str, Any]) -> str:
    """The settings of the routing that are not off: `, router=token, regularizers=z-loss`."""
    text = ""
    for key in ("router", "regularizers", "routing_noise"):
        value = design.get(key, "-")
        if value not in ("-", 0):
            text += f", {key}={value}"
    return text


def _loss_text(training: dict[str, Any]) -> str:
    held_out = HeldOut.model_validate(training["validation"])
    interval = interval_text(held_out.interval)
    return f"{number(held_out.loss)} {interval} per token, {held_out.rows} rows"


def _leak_text(leak: dict[str, Any]) -> str:
    """The effects of later tokens and of short prefixes (`leak.py`)."""
    later = _difference_text(leak["later_tokens"])
    short = _difference_text(leak["short_prefixes"])
    return (
        f"; not that of a language model: expert choice reads later tokens. On {leak['rows']} rows "
        f"{leak['loss_with_later_tokens']:.4f} with them; with another row's instead {later}, and "
        f"the effect of short prefixes {short}"
    )


def _difference_text(stored: dict[str, Any]) -> str:
    difference = Difference.model_validate(stored)
    interval = interval_text(difference.interval, sign=True)
    return f"{number(difference.difference, sign=True)} {interval}"
