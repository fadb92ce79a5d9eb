"""`method=soft-prompt` (prompt tuning, arXiv 2104.08691) and `method=prefix-tuning` (arXiv
2101.00190).

Both are baselines of C3PO's Table 1. They are trained on C3PO's reference questions, with the right
answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import PositiveFloat, PositiveInt
from moe_lab.errors import ConfigError, ModelError, need_package
from moe_lab.methods.base import engine_options
from moe_lab.methods.method import Context, Counters, Method, SessionInfo, check_first_gpu
from moe_lab.methods.references.documents import check_choice_questions, reference_documents
from moe_lab.methods.training_arguments import TrainerConfig
from moe_lab.results.versions import decisive_versions
from moe_lab.tasks.loading import once
from moe_lab.tasks.workload import Workload

if TYPE_CHECKING:
    from moe_lab.methods.virtual_tokens.training import VirtualTokensLM
    from moe_lab.models.facts import LoadedModel, ModelFacts


RECIPE = ("name", "virtual_tokens", "learning_rate", "epochs", "batch_size")
"""Keys that determine an adapter. The others choose the questions of its training."""
_NO_VALIDATION = "no questions are held out"
RECORDED = ("questions", "steps", "parameters", "loss_of_last_epoch", "reference")
"""Keys of training.json that results.json has, too."""


@dataclass(kw_only=True)
class VirtualTokensConfig(TrainerConfig):
    """Keys of `conf/method/soft-prompt.yaml` and `prefix-tuning.yaml`."""

    name: str
    virtual_tokens: PositiveInt = 20
    learning_rate: PositiveFloat
    epochs: PositiveInt = 5
    batch_size: PositiveInt = 8
    reference: str | list[str] | None = None
    reference_size: PositiveInt | None = None

    same_keys: ClassVar[Mapping[str, str]] = {
        "learning_rate": "learning_rate",
        "num_train_epochs": "epochs",
        "per_device_train_batch_size": "batch_size",
    }
    trainer_defaults: ClassVar[Mapping[str, Any]] = {
        "max_grad_norm": math.inf,
        "weight_decay": 0.01,  # torch's default for AdamW, as in peft's examples
        "save_steps": 50,
    }
    refused_fields: ClassVar[Mapping[str, str]] = {
        "activation_checkpointing": "the vectors are inputs of the frozen model",
        "activation_checkpointing_kwargs": "the vectors are inputs of the frozen model",
        "eval_delay": _NO_VALIDATION,
        "eval_on_start": _NO_VALIDATION,
        "eval_steps": _NO_VALIDATION,
        "eval_strategy": _NO_VALIDATION,
        "gradient_accumulation_steps": "a step is one pass. Use method.batch_size=",
        "load_best_model_at_end": _NO_VALIDATION,
        "max_steps": "the length is a number of epochs. Use method.epochs=",
        "train_sampling_strategy": "the questions are shuffled in each epoch",
    }

    def __post_init__(self) -> None:
        need_package("peft", "peft", f"method={self.name}")
        super().__post_init__()


class VirtualTokens(Method):
    """The base model with a trained adapter of peft, which lm-eval's own code runs."""

    numerics = 2
    random = True
    required_routing = "none"
    answer: ClassVar[str | None] = "letters"

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        content = super().identity(facts)
        del content["trainer"]
        if self.config.trainer_recipe:
            content["trainer"] = self.config.trainer_recipe
        return content

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The training's questions.

        Raises ModelError for a model that cannot have virtual tokens.
        """
        from moe_lab.methods.references.reference_set import questions_content
        from moe_lab.methods.trainer import check_fields
        from moe_lab.methods.virtual_tokens.training import refusal
        from moe_lab.models.source import load_config

        check_first_gpu(config)
        check_fields(config)
        documents = check_choice_questions(config, self.config)
        tokens = self.config.virtual_tokens
        room = config.max_length or facts.max_length
        if tokens >= room:
            raise ConfigError(
                f"method.virtual_tokens={tokens} leaves no room for a prompt: the model reads "
                f"{room} tokens. Use fewer."
            )
        reason = once(
            f"virtual tokens {config.model} {config.offline} {self.config.name}",
            lambda: refusal(load_config(config.model, offline=config.offline), self.config.name),
        )
        if reason:
            raise ModelError(
                f"method={self.config.name} does not run on {facts.path or facts.name} (model type "
                f"{facts.family}): {reason}."
            )
        return questions_content(config, documents, facts)

    def forward_tokens(self, workload: Workload, config: RunConfig, facts: ModelFacts) -> float:
        """The tokens of each scored answer with its prompt, of which the model reads at most
        `room`.

        The virtual tokens take a part of the model's length. They are not counted.
        """
        room = (config.max_length or facts.max_length) - self.config.virtual_tokens
        tokens = 0.0
        for weight, asked in workload.asked:
            for context, continuations in asked.scored.items():
                for ids in continuations:
                    tokens += weight * min(len(context) + len(ids) - 1, room)
        return tokens

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[VirtualTokensLM]:
        from moe_lab.methods.references.reference_set import questions_content
        from moe_lab.methods.trained import Trained
        from moe_lab.methods.virtual_tokens.training import (
            VirtualTokensLM,
            shortened,
            train_adapter,
            with_adapter,
        )
        from moe_lab.models.adapters import load_adapter

        config = context.config
        documents = reference_documents(config, self.config)
        recipe = {key: getattr(self.config, key) for key in RECIPE}
        if self.config.trainer_recipe:
            recipe["trainer"] = self.config.trainer_recipe
        content = {
            "method": recipe | {"numerics": self.version},
            "seed": config.seed,
            **questions_content(config, documents, model.facts),
            "commit": model.facts.commit,
            "versions": decisive_versions(),
        }
        trained = Trained.of(config, content, "adapter")
        adapter = with_adapter(
            model.model, self.config.name, self.config.virtual_tokens, config.seed
        )
        with adapter as wrapped:
            record = trained.load_or_train(
                lambda folder: train_adapter(folder, config, documents, model, wrapped)
            )
            load_adapter(wrapped, trained.folder / "adapter")
            lm = VirtualTokensLM(
                wrapped, model.tokenizer, **engine_options(shortened(config, model))
            )
            lm.session_info = {
                "adapter": trained.folder.name,
                "training": {key: record[key] for key in RECORDED},
            }
            yield lm

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        block = {key: value for key, value in asdict(self.config).items() if key in RECIPE[1:]}
        if self.config.trainer_recipe:
            block["trainer"] = self.config.trainer_recipe
        return {self.config.name.replace("-", "_"): block | dict(session_info)}


class SoftPrompt(VirtualTokens):
    """Learned input embeddings before the prompt's."""

    @dataclass(kw_only=True)
    class Config(VirtualTokensConfig):
        """The learning rate is that of peft's example of prompt tuning."""

        name: str = "soft-prompt"
        learning_rate: PositiveFloat = 3e-2


class PrefixTuning(VirtualTokens):
    """Learned keys and values before the prompt's, in every layer."""

    @dataclass(kw_only=True)
    class Config(VirtualTokensConfig):
        """The learning rate is that of peft's example of prefix tuning."""

        name: str = "prefix-tuning"
        learning_rate: PositiveFloat = 1e-2
