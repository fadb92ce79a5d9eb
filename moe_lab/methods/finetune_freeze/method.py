"""`method=finetune-freeze`: fine-tune with a freezing schedule,
then evaluate the trained model as `method=base` does.

The baseline is the untrained model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, need_package
from moe_lab.methods.base import base_lm
from moe_lab.methods.c2r import NUMERICS, check_constraint, digest_of, read_profile
from moe_lab.methods.data_files import COUNTED_LENGTH, read_data
from moe_lab.methods.finetune_freeze.config import (
    EIGHT_BIT,
    NO_END,
    REFERENCE,
    FinetuneConfig,
    empty_answers_note,
)
from moe_lab.methods.method import Context, Counters, SessionInfo, TrainingMethod, share
from moe_lab.methods.trained import Trained
from moe_lab.metrics.stored import COUNTS
from moe_lab.models.distributed import num_processes, sharded
from moe_lab.models.identity import model_identity
from moe_lab.results.versions import decisive_versions
from moe_lab.tasks.loading import once

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM
    from moe_lab.methods.finetune_freeze.parameter_groups import Groups
    from moe_lab.methods.finetune_freeze.prepared import Prepared
    from moe_lab.models.facts import LoadedModel, ModelFacts

RECORDED = (
    "schedule",
    "steps",
    "phases_end_at",
    "conversations",
    "truncated",
    "left_out",
    "parameters",
    "phases",
    "first_loss",
    "last_loss",
    "validation",
)
"""Keys of training.json that results.json has, too."""
ANSWER_END = "answer_end"
"""The key of training.json with the token that ends an answer;
null: the model is not taught to stop."""
EMPTY_ANSWERS = "empty_answers"
"""The key of training.json with the number of answers without text, which are not trained on."""
WEIGHTS_OF_STEP = "weights_of_step"
"""The key of training.json with the optimizer step of the trained weights, if it is not the last
one of the recipe: early stopping, or the best step of the validation."""
RECORDED_LATER = (ANSWER_END, EMPTY_ANSWERS, WEIGHTS_OF_STEP)
"""More such keys, which not all trainings have."""
OF_PROFILE = ("profile", "profile_sha256", "test_profile")
"""More such keys, of a training under C2R's constraint."""


class FinetuneFreeze(TrainingMethod):
    """Trains a model once and evaluates it as `method=base` does.

    `router_aux_loss_coef` weighs transformers' load-balancing loss: E times the sum over experts of
    f P, with f and P over the tokens of all MoE layers together. MoE-Bench's equation 2 has no
    factor E and is for one layer. If all L layers are balanced alike and their losses are added,
    the coefficient c here is alpha = c E / L there.

    With `partners` the model is trained and evaluated under C2R's constraint. Its profile is that
    of the untrained model, and is stored with the trained one (`counts.safetensors`).
    """

    numerics = 3
    random = True
    expert_metrics: Literal["none", "counted", "all"] = "all"

    Config = FinetuneConfig

    def __init__(self, config: Any):
        super().__init__(config)
        self.required_routing = "none" if config.names_no_router else "layers"
        if config.partners is not None:  # the constraint leaves no expert to mask or draw
            self.expert_metrics = "counted"
        self._prepared: Prepared | None = None

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        identity = {"name": self.config.name, **self.config.recipe()}
        if self.config.merge_adapter:
            identity["merge_adapter"] = True
        return identity

    def comparisons(self, greedy: bool) -> dict[str, tuple[Any, list[str]]]:
        """Full fine-tuning with the same recipe, one learning rate and no constraint."""
        unset = ("phases", "router_lr", "partners", "profile")
        full = replace(self.config, schedule="none", **dict.fromkeys(unset))
        if not self.config.compare_with_full or full.recipe() == self.config.recipe():
            return {}
        typed = [f"method.{key}=null" for key in unset if getattr(self.config, key) is not None]
        return {"full_fine_tuning": (full, ["method.schedule=none", *typed])}

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The conversations.

        Raises TaskError if they cannot be used, ConfigError if the model cannot be trained.
        """
        self._check_model(config, facts)
        return {**self._content(config, facts), **self._profile_identity()}

    def _content(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The conversations, and the end of their answers where the template alone would not teach
        it."""
        prepared = self._training_data(config, facts)
        content: dict[str, Any] = {"data": prepared.data.digest}
        end = prepared.end
        if end is not None and (prepared.train.completed or end.is_new):
            content["learned_end"] = [end.token, *end.closing]
        return content

    def _profile_identity(self) -> dict[str, Any]:
        """All that determines C2R's profile except the model and the conversations;
        empty without a constraint."""
        if self.config.partners is None:
            return {}
        if self.config.profile is None:
            return {"profile": {"numerics": NUMERICS, "length": COUNTED_LENGTH}}
        return {"profile": digest_of(read_profile(self.config.profile).pairs_LEE)}

    def _training_data(self, config: RunConfig, facts: ModelFacts) -> Prepared:
        from moe_lab.methods.finetune_freeze.prepared import prepare

        method = self.config
        if self._prepared is None and method.dataset == REFERENCE:
            from moe_lab.methods.finetune_freeze.reference_rows import prepare_references

            self._prepared = prepare_references(config, method, facts)
        if self._prepared is None:
            data = read_data(config, method.dataset, method.dataset_size, method.held_out)
            self._prepared = prepare(config, method, data, facts)
        return self._prepared

    @property
    def one_device(self) -> str | None:
        if self.config.optimizer == EIGHT_BIT:
            return f"method.optimizer={EIGHT_BIT} trains in one process"
        if self.config.partners is not None:
            return "method.partners trains in one process"
        return None

    def _check_model(self, config: RunConfig, facts: ModelFacts) -> None:
        from moe_lab.methods.finetune_freeze.parameter_groups import (
            check_phases_train,
            empty_model,
            parameter_groups,
        )
        from moe_lab.methods.trainer import check_fields
        from moe_lab.models.facts import quantization_of
        from moe_lab.models.source import load_config

        method = self.config
        architecture = load_config(config.model, offline=config.offline)
        self.check_training(config, facts)
        check_fields(config, optim=method.optimizer)
        if quantization_of(architecture) or "quantization_config" in config.model.load:
            raise ConfigError(
                "A quantized model cannot be fine-tuned. Use the checkpoint before quantization."
            )
        if method.optimizer == EIGHT_BIT and num_processes() > 1:
            raise ConfigError(
                f"method.optimizer={EIGHT_BIT} trains in one process: others would round their "
                "weights differently. Use method.optimizer=adamw_torch."
            )
        model = once(
            f"empty model {config.model} {config.offline}", lambda: empty_model(architecture)
        )
        groups = parameter_groups(model)
        if method.peft:
            self._check_adapter(config)
            groups = self._adapter_groups(config)
        check_phases_train(groups, method.all_phases)
        if method.router_aux_loss_coef and not hasattr(model, "router_aux_loss_coef"):
            raise ConfigError(
                "method.router_aux_loss_coef: transformers has no auxiliary loss of "
                f"{facts.family}. Leave it out."
            )
        if method.partners is not None:
            if facts.fixed_routing:
                raise ConfigError(
                    f"method.partners needs routers of single tokens: {facts.fixed_routing}. Leave "
                    "it out."
                )
            if num_processes() > 1:
                raise ConfigError(
                    "method.partners trains in one process: start the command without torchrun."
                )
            check_constraint(config, method.partners, facts)

    def _check_adapter(self, config: RunConfig) -> None:
        """Raise ConfigError for a model whose weights are not those below the trained adapter."""
        if config.model.peft is not None:
            raise ConfigError(
                "method.peft trains an adapter on the weights of model.path, and model.peft names "
                "another one. Merge that into the weights first (peft's merge_and_unload)."
            )
        if sharded():
            raise ConfigError("method.peft needs whole weights, and FSDP splits them. Use DDP.")

    def _adapter_groups(self, config: RunConfig) -> Groups:
        """The parameters of the adapter by group, without numbers.

        Raises ConfigError for an adapter that the model cannot have.
        """
        from moe_lab.methods.finetune_freeze.adapter import with_adapter
        from moe_lab.methods.finetune_freeze.parameter_groups import (
            empty_model,
            parameter_groups,
            trainable,
        )
        from moe_lab.models.source import load_config

        model = empty_model(load_config(config.model, offline=config.offline))
        return trainable(parameter_groups(with_adapter(model, self.config.peft, config.seed)))

    def adapter_parameters(self, config: RunConfig) -> int | None:
        if not self.config.peft:
            return None
        from moe_lab.methods.finetune_freeze.parameter_groups import counts

        return sum(counts(self._adapter_groups(config)).values())

    def resolve_model(
        self, config: RunConfig, facts: ModelFacts, free: Callable[[], None]
    ) -> RunConfig:
        if self.config.optimizer == EIGHT_BIT:
            need_package("torchao", "torchao", f"method.optimizer={EIGHT_BIT}")
        return super().resolve_model(config, facts, free)

    def trained_model(self, config: RunConfig, place: str) -> ModelConfig:
        """With `method.peft` the untrained model, and the adapter with its tokenizer."""
        if not self.config.peft:
            return super().trained_model(config, place)
        merge = self.config.merge_adapter
        return replace(config.model, peft=place, tokenizer=place, merge_adapter=merge)

    def train(self, folder: Path, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        from moe_lab.methods.finetune_freeze.training import train

        return train(folder, config, self._training_data(config, facts), facts)

    def trained(self, config: RunConfig, facts: ModelFacts) -> Trained:
        from moe_lab.models.source import model_source

        content = {
            "method": "finetune-freeze",
            "numerics": self.version,
            "recipe": self.config.recipe(),
            **self._content(config, facts),
            **self._profile_identity(),
            "seed": config.seed,
            "model": model_identity(model_source(config.model), config.model),
            "commit": facts.commit,
            "dtype": facts.dtype,
            "versions": decisive_versions(),
        }
        return Trained.of(config, content, "adapter" if self.config.peft else "model")

    def training_size(self, config: RunConfig, facts: ModelFacts) -> tuple[int, int, int]:
        rows = self._training_data(config, facts).train.rows
        tokens = sum(len(row.ids) for row in rows)
        return self.config.steps(len(rows)), tokens, self.config.steps_per_epoch(len(rows))

    def training_notes(self, config: RunConfig, facts: ModelFacts) -> list[str]:
        name = self.trained(config, facts).folder.name
        return [f"{name}: {note}" for note in self._training_data(config, facts).notes]

    def planned_memory(self, config: RunConfig, facts: ModelFacts) -> int:
        from moe_lab.methods.finetune_freeze.phase_memory import finetuning_peak

        rows = self._training_data(config, facts).train.rows
        length = max(len(row.ids) for row in rows)
        return finetuning_peak(self.config, config, facts, length=length, rows=len(rows))

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        from moe_lab.methods.policy_lm import with_policy
        from moe_lab.methods.trained import record_of
        from moe_lab.routing.policies import PartnersOnly, partners_of

        folder, record = record_of(context.config)
        training = {key: record[key] for key in RECORDED}
        training |= {key: record[key] for key in RECORDED_LATER if key in record}
        session_info = {"model": folder.name, "training": training}
        opened: AbstractContextManager[EngineLM]
        if self.config.partners is None:
            opened = nullcontext(base_lm(model, context.config))
        else:
            profile = read_profile(folder / COUNTS)
            policy = PartnersOnly(partners_of(profile.pairs_LEE, self.config.partners))
            opened = with_policy(model, policy, context.config)
            session_info["constraint"] = {key: record[key] for key in OF_PROFILE}
        with opened as lm:
            lm.session_info = session_info
            yield lm

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        """With `method.partners=` also C2R's block,
        under which the model was trained and answered."""
        session = dict(session_info)
        constraint = session.pop("constraint", {})
        block = self.config.recipe() | session
        if self.config.partners is None:
            return {"finetune_freeze": block}
        changed = share(counters, "constrained_decisions", "routing_decisions")
        block["changed_fraction"] = changed
        c2r = {"partners": self.config.partners, "changed_fraction": changed} | constraint
        return {"finetune_freeze": block, "c2r": c2r}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        notes = []
        training = block["finetune_freeze"].get("training", {})
        if ANSWER_END in training and training[ANSWER_END] is None:
            notes.append(f"finetune-freeze: {NO_END}")
        if training.get(EMPTY_ANSWERS):
            notes.append(f"finetune-freeze: {empty_answers_note(training[EMPTY_ANSWERS])}")
        if "c2r" in block:
            notes.append(
                "changed (finetune-freeze): decisions in which an expert was no partner of the "
                "first one."
            )
        return notes
