"""`method=c2r`: collaboration-constrained routing (MoE-Bench, sections 4.1 and 4.2; Zhang et al.
2025).

A profile counts how often a model selects two experts together. It is counted on conversations, or
by a run with metrics=expert: its counts.safetensors has `pairs`, int64 [layers, experts, experts],
tokens that took both.

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
        dataset: UserPath | dict[str, Any] = "toy"
        dataset_size: PositiveInt | None = None

    def partners(self, facts: ModelFacts) -> int:
        """T, the number of partners of each expert."""
        return facts.experts // 2 if self.config.partners is None else self.config.partners

    def resolved(self, facts: ModelFacts) -> dict[str, Any]:
        return {"partners": self.partners(facts)}

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The profile, or the data that it is counted on.

        Raises ConfigError if the model cannot be constrained.
        """
        check_one_process(config)
        check_constraint(config, self.partners(facts), facts)
        if self.config.profile is None:
            return {"data": self._conversations(config).digest, "length": COUNTED_LENGTH}
        return {"profile": digest_of(read_profile(self.config.profile).pairs_LEE)}

    def _conversations(self, config: RunConfig) -> Data:
        return read_data(config, self.config.dataset, self.config.dataset_size)

    def policy(self, model: LoadedModel, config: RunConfig) -> tuple[Policy, dict[str, Any]]:
        """(the policy, `PairProfile.record` of its profile)."""
        from moe_lab.routing.policies import PartnersOnly, partners_of

        profile = profile_of(config, lambda: self._conversations(config), model)
        policy = PartnersOnly(partners_of(profile.pairs_LEE, self.partners(model.facts)))
        return policy, profile.record()

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        return {"partners": self.partners(facts)}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        return [
            "changed (c2r): routing decisions in which an expert was no partner of the first one."
        ]


@dataclass(frozen=True)
class PairProfile:
    """How often a model selects two experts together, and what it was counted on."""

    pairs_LEE: Tensor
    """int64: tokens that selected both."""
    name: str
    """The file, the run's folder or the data set."""
    is_of_run: bool
    """Whether it was counted on the test documents of a run."""

    def record(self) -> dict[str, Any]:
        """What results say about the profile."""
        return {
            "profile": self.name,
            "profile_sha256": digest_of(self.pairs_LEE),
            "test_profile": self.is_of_run,
        }


def digest_of(pairs_LEE: Tensor) -> str:
    """SHA-256 of a profile's counts."""
    return hashlib.sha256(pairs_LEE.contiguous().numpy().tobytes()).hexdigest()


def read_profile(path: str | Path) -> PairProfile:
    """The profile in a run's folder or in a counts.safetensors, summed over prompts and answers.

    Raises ConfigError for a file without counts of pairs.
    """
    from safetensors.torch import load_file

    file = user_path(path)
    if file.is_dir():
        file = file / FOLDER / COUNTS
    remedy = (
        "Give the folder of a run with metrics=expert, or its expert_metrics/counts.safetensors."
    )
    with reading(f"method.profile={path}: {file}", remedy):
        tensors = load_file(file)
    counts = [tensor for name, tensor in tensors.items() if name.partition(".")[0] == "pairs"]
    if not counts:
        raise ConfigError(f"method.profile={path}: {file} has no pairs of experts.")
    pairs_LEE = sum(counts[1:], counts[0]).long()
    is_of_run = "pairs" not in tensors  # a run counts prompts and answers separately
    return PairProfile(pairs_LEE, Path(path).name, is_of_run)


def profile_of(config: RunConfig, data: Callable[[], Data], model: LoadedModel) -> PairProfile:
    """The profile that `method.profile` names.

    By default, the model's own routing is counted on the training conversations of `data()`, once
    in a command.
    """
    method = config.method
    if method.profile is not None:
        return read_profile(method.profile)
    key = _PairsKey(repr(config.model), model.facts.dtype, data().digest)
    pairs_LEE = once(key, lambda: _count_pairs(config, data(), model))
    if isinstance(method.dataset, str):
        name = Path(method.dataset).name
    else:
        name = str(method.dataset["path"])
    return PairProfile(pairs_LEE, name, is_of_run=False)


@dataclass(frozen=True)
class _PairsKey:
    """All that determines the pairs that are counted on conversations."""

    model: str
    """Its configuration as text, which is not hashable otherwise."""
    dtype: str
    data_digest: str


def _count_pairs(config: RunConfig, data: Data, model: LoadedModel) -> Tensor:
    """int64 [L, E, E]: how often the model selects two experts together on the conversations."""
    import torch

    from moe_lab.methods.tokenized import Rows, rows_to_count
    from moe_lab.metrics.counts import SelectedExperts
    from moe_lab.metrics.teacher_forcing import count_rows, right_tokens

    rows = Rows(rows_to_count(config, data.train, model.facts))
    routes = SelectedExperts()
    right_tokens(model.model, rows, routes)  # `routes` counts the selections of its passes
    pairs_GPLEE = count_rows(routes, rows).pairs_GPLEE
    return torch.from_numpy(pairs_GPLEE.sum(axis=(0, 1), dtype="int64"))


def check_constraint(config: RunConfig, count: int, facts: ModelFacts) -> None:
    """Raise ConfigError for `count` partners or a `method.profile` that the model's experts cannot
    have.

    Routers that choose within groups of experts are refused, because partners may be in other
    groups.
    """
    from moe_lab.models.source import load_config

    least = facts.top_k - 1
    most = facts.experts - 1
    if not least <= count <= most:
        raise ConfigError(
            f"method.partners={count}: give a number from {least} to {most} for this model."
        )
    architecture = load_config(config.model, offline=config.offline).get_text_config()
    groups = getattr(architecture, "n_group", None)
    if groups is not None and groups > 1:
        raise ConfigError(
            f"method={config.method.name}: {facts.family} chooses experts within groups. Use "
            "another model."
        )
    path = config.method.profile
    if path is None:
        return
    shape = tuple(read_profile(path).pairs_LEE.shape)
    needed = (facts.moe_layers, facts.experts, facts.experts)
    if shape != needed:
        raise ConfigError(
            f"method.profile={path} has the shape {shape}. Give a profile of this model: {needed}."
        )
