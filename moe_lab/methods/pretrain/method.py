"""`method=pretrain`: train a design from scratch, then evaluate it as `method=base` does.

The tokenizer is that of `model=`, whose weights are not read. The corpus, the design and the recipe are the method's
keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config as RunConfig
from moe_lab.methods.base import base_lm
from moe_lab.methods.method import Context, Counters, DesignMethod, SessionInfo, refuse
from moe_lab.methods.pretrain.config import PretrainConfig, architecture, left_out_note
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
"""The key of training.json with the numbers of empty and of duplicate documents; earlier versions do not have it."""
RECORDED = (
    *(
        "steps",
        "tokens",
        "parameters",
        "first_loss",
        "last_loss",
        "validation",
        "leak",
        "last_session",
    ),
    LEFT_OUT,
)
"""Keys of training.json that results.json has, too."""
REGULARIZER_BYTES = 16
"""Bytes for each token and expert of a layer: float32 logits and what the regularizers make of them."""


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

    def architecture(self, config: RunConfig) -> PreTrainedConfig:
        return architecture(self.config, self._data(config)[1])

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        return {"name": self.config.name, **self.config.recipe()}

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """Corpus and tokenizer. Raises TaskError for unusable data, ConfigError for a design that cannot be trained."""
        from moe_lab.methods.pretrain.corpus import require_rows, tokenizer_identity
        from moe_lab.models.designs.configuration import UNITS
        from moe_lab.models.designs.units import require_units

        self.check_training(config, facts)
        passes, processes = self.config.gradient_accumulation, num_processes()
        refuse(
            {
                "model.experts_per_token has no effect on a design. Use method.experts_per_token, or evaluate the "
                "trained model with method=base.": config.model.experts_per_token is not None,
                "model.peft: method=pretrain begins with random weights. Leave it out.": (
                    config.model.peft is not None
                ),
                "method=pretrain splits rows over processes, not the model: use torchrun without FSDP.": sharded(),
                f"method.gradient_accumulation={passes} is not divisible by {processes} processes. Use a multiple.": (
                    passes % processes
                ),
            }
        )
        corpus, tokenizer = self._data(config)
        if self.config.router in UNITS:
            require_units(tokenizer, self.config.router)
        rows, length = self.config.validation_rows, self.config.sequence_length
        require_rows(corpus, tokenizer, held_out=rows, length=length)
        return {
            "corpus": corpus.identity,
            "validation_rows": rows,
            "tokenizer": tokenizer_identity(tokenizer),
        }

    def _data(self, config: RunConfig) -> tuple[Corpus, Any]:
        from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of

        if self._read is None:
            corpus = read_corpus(config, self.config.dataset, self.config.dataset_size)
            self._read = corpus, tokenizer_of(config, corpus)
        return self._read

    def resolve_model(
        self, config: RunConfig, facts: ModelFacts, free: Callable[[], None]
    ) -> RunConfig:
        """The trained model has its own tokenizer."""
        trained = super().resolve_model(config, facts, free)
        return replace(trained, model=replace(trained.model, tokenizer=None))

    def train(self, folder: Path, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        from moe_lab.methods.pretrain.training import pretrain

        return pretrain(folder, config, *self._data(config), facts)

    def trained(self, config: RunConfig, facts: ModelFacts) -> Trained:
        from moe_lab.methods.trained import Trained

        attention = config.model.attn_implementation
        content = {
            "method": "pretrain",
            "numerics": self.version,
            "recipe": self.config.recipe(),
            "data": self.data_identity(config, facts),
            "seed": config.seed,
            "dtype": facts.dtype,
            "experts_implementation": config.model.experts_implementation,
            **({"attn_implementation": attention} if attention else {}),
            "versions": decisive_versions(),
        }
        return Trained.of(config, content, "model")

    def training_size(self, config: RunConfig, facts: ModelFacts) -> tuple[int, int, int]:
        own = self.config
        return own.steps, own.rows * own.sequence_length, own.steps

    def training_notes(self, config: RunConfig, facts: ModelFacts) -> list[str]:
        name = self.trained(config, facts).folder.name
        return [f"{name}: {note}" for note in self._data(config)[0].notes]

    def planned_memory(self, config: RunConfig, facts: ModelFacts) -> int:
        from moe_lab.methods.finetune_freeze.parameter_groups import empty_model
        from moe_lab.methods.training_memory import peak_bytes

        own = self.config
        built = architecture(replace(own, router="token"), self._data(config)[1])  # experts alike
        if own.router == "expert":
            taken = math.ceil(own.capacity_factor * own.experts_per_token)
            built.num_experts_per_tok = min(taken, own.experts)
        planned = peak_bytes(
            empty_model(built).float(),
            optimizer="adamw_torch_fused",
            on_gpu=False,  # no copies
            rows=own.batch_size,
            length=own.sequence_length,
            bf16=facts.dtype == "bfloat16",
        )
        tokens = own.batch_size * own.sequence_length
        regularizers = (
            0 if own.backbone == "dense" else tokens * own.experts * own.layers * REGULARIZER_BYTES
        )
        return planned + regularizers

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
        """The held-out loss, by which designs are ranked, the effect of later tokens, speed and memory."""
        own = block["pretrain"]
        held_out = HeldOut.model_validate(own["training"]["validation"])
        keys = ("router", "regularizers", "routing_noise")
        settings = "".join(
            f", {key}={own[key]}" for key in keys if own.get(key, "-") not in ("-", 0)
        )
        # both are "dense" for a dense model
        name = " ".join(dict.fromkeys((own["backbone"], own["label"])))
        loss = f"{number(held_out.loss)} {interval_text(held_out.interval)} per token, {held_out.rows} rows"
        line = f"{name}{settings}, seed {block['seed']}: held-out loss {loss}"
        if leak := own["training"]["leak"]:
            later, short = (
                f"{number(part.difference, sign=True)} {interval_text(part.interval, sign=True)}"
                for part in map(
                    Difference.model_validate, (leak["later_tokens"], leak["short_prefixes"])
                )
            )
            line += (
                "; not that of a language model: expert choice reads later tokens. On "
                f"{leak['rows']} rows {leak['loss_with_later_tokens']:.4f} with them; with another row's instead "
                f"{later}, and the effect of short prefixes {short}"
            )
        session = own["training"]["last_session"]
        if session["tokens_per_second"]:
            peak = session["peak_memory_bytes"] / 2**20
            line += f"; trained at {session['tokens_per_second']:,.0f} tokens per second, peak {peak:,.0f} MiB"
        left_out = own["training"].get(LEFT_OUT)
        if left_out and any(left_out.values()):
            return [line, f"{name}, seed {block['seed']}: {left_out_note(left_out)}"]
        return [line]
