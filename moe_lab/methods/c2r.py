"""`method=c2r`: collaboration-constrained routing (MoE-Bench, sections 4.1 and 4.2; Zhang et al. 2025).

A profile counts how often a model selects two experts together. It is counted on conversations, or by a run with
metrics=expert: its counts.safetensors has `pairs`, int64 [layers, experts, experts], tokens that took both.

L = MoE layers, E = experts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.paths import user_path
from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import PositiveInt, UserPath
from moe_lab.errors import ConfigError, reading
from moe_lab.methods.data_files import COUNTED_LENGTH, Data, read_data
from moe_lab.methods.method import Method
from moe_lab.methods.policy_method import PolicyMethod
from moe_lab.methods.references.documents import check_one_process
from moe_lab.metrics.stored import COUNTS, FOLDER
from moe_lab.tasks.loading import once

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.models.facts import LoadedModel, ModelFacts
    from moe_lab.routing import Policy


NUMERICS = 1
"""Raised whenever a profile that is counted on conversations may change."""


class C2R(PolicyMethod):
    """Routes each token to its first expert and to that expert's most co-activated partners."""

    expert_metrics = "counted"
    data_keys = ("profile", "dataset", "dataset_size")
    counted = ("changed_fraction", "constrained_decisions", "routing_decisions")

    @dataclass(kw_only=True)
    class Config(Method.Config):
        name: str = "c2r"
        partners: int | None = None
        """T, the partners of each expert; null: half of the experts."""
        profile: UserPath | None = None
        dataset: UserPath = "toy"
        dataset_size: PositiveInt | None = None

    def partners(self, facts: ModelFacts) -> int:
        """T, the number of partners of each expert."""
        return facts.experts // 2 if self.config.partners is None else self.config.partners

    def resolved(self, facts: ModelFacts) -> dict[str, Any]:
        return {"partners": self.partners(facts)}

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The profile, or the data that it is counted on. Raises ConfigError if the model cannot be constrained."""
        check_one_process(config)
        check_constraint(config, self.partners(facts), facts)
        if self.config.profile is None:
            return {"data": self._conversations(config).digest, "length": COUNTED_LENGTH}
        return {"profile": digest_of(read_pairs(self.config.profile)[0])}

    def _conversations(self, config: RunConfig) -> Data:
        return read_data(config, self.config.dataset, self.config.dataset_size)

    def policy(self, model: LoadedModel, config: RunConfig) -> tuple[Policy, dict[str, Any]]:
        from moe_lab.routing.policies import PartnersOnly, partners_of

        pairs_LEE, profile = profile_of(config, lambda: self._conversations(config), model)
        return PartnersOnly(partners_of(pairs_LEE, self.partners(model.facts))), profile

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        return {"partners": self.partners(facts)}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        return [
            "changed (c2r): routing decisions in which an expert was no partner of the first one."
        ]


def read_pairs(path: str | Path) -> tuple[Tensor, bool]:
    """(int64 [L, E, E], whether they were counted on a run's test documents): the sum over prompts and answers.

    Raises ConfigError for a file without such counts.
    """
    from safetensors.torch import load_file

    file = user_path(path)
    file = file / FOLDER / COUNTS if file.is_dir() else file
    remedy = (
        "Give the folder of a run with metrics=expert, or its expert_metrics/counts.safetensors."
    )
    with reading(f"method.profile={path}: {file}", remedy):
        tensors = load_file(file)
    pairs = [tensor for name, tensor in tensors.items() if name.partition(".")[0] == "pairs"]
    if not pairs:
        raise ConfigError(f"method.profile={path}: {file} has no pairs of experts.")
    is_of_run = "pairs" not in tensors  # a run counts prompts and answers separately
    return sum(pairs[1:], pairs[0]).long(), is_of_run


def digest_of(pairs_LEE: Tensor) -> str:
    """SHA-256 of a profile's content."""
    return hashlib.sha256(pairs_LEE.contiguous().numpy().tobytes()).hexdigest()


def profile_of(
    config: RunConfig, data: Callable[[], Data], model: LoadedModel
) -> tuple[Tensor, dict[str, Any]]:
    """(pairs [L, E, E], what results say about the profile) of `method.profile`.

    By default of the model's own routing of the data's training conversations, counted once in a command.
    """
    own = config.method
    if own.profile is None:
        key = f"pairs {config.model} {model.facts.dtype} {data().digest}"
        pairs_LEE, on_test = once(key, lambda: _count_pairs(config, data(), model)), False
    else:
        pairs_LEE, on_test = read_pairs(own.profile)
    name = Path(own.profile or own.dataset).name
    return pairs_LEE, {
        "profile": name,
        "profile_sha256": digest_of(pairs_LEE),
        "test_profile": on_test,
    }


def _count_pairs(config: RunConfig, data: Data, model: LoadedModel) -> Tensor:
    import torch

    from moe_lab.methods.tokenized import Rows, rows_to_count
    from moe_lab.metrics.counts import Routes
    from moe_lab.metrics.teacher_forcing import count_rows, right_tokens

    rows, routes = Rows(rows_to_count(config, data.train, model.facts)), Routes()
    right_tokens(model.model, rows, routes)
    return torch.from_numpy(count_rows(routes, rows).pairs_GPLEE.sum(axis=(0, 1), dtype="int64"))


def check_constraint(config: RunConfig, count: int, facts: ModelFacts) -> None:
    """Raise ConfigError for `count` partners or a `method.profile` that the model's experts cannot have.

    Routers that choose within groups of experts are refused, because partners may be in other groups.
    """
    from moe_lab.models.source import load_config

    least, most = facts.top_k - 1, facts.experts - 1
    if not least <= count <= most:
        raise ConfigError(
            f"method.partners={count}: give a number from {least} to {most} for this model."
        )
    architecture = load_config(config.model, offline=config.offline).get_text_config()
    if (getattr(architecture, "n_group", None) or 1) > 1:
        raise ConfigError(
            f"method={config.method.name}: {facts.family} chooses experts within groups. Use another model."
        )
    path, shape = config.method.profile, (facts.moe_layers, facts.experts, facts.experts)
    if path is not None and (given := tuple(read_pairs(path)[0].shape)) != shape:
        raise ConfigError(
            f"method.profile={path} has the shape {given}. Give a profile of this model: {shape}."
        )
