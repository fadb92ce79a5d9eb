"""`method=c2r`: the model under collaboration-constrained routing, by a profile of which experts it takes together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.validators import at_least
from moe_lab.errors import ConfigError
from moe_lab.methods.base import engine_options
from moe_lab.methods.method import Method
from moe_lab.methods.references.checks import check_one_process

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.config.schema import Config as RunConfig
    from moe_lab.methods.c2r.lm import ConstrainedLM
    from moe_lab.methods.conversations.read import Conversation
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


class C2R(Method):
    """Each token's first expert, and the most co-activated partners of that one."""

    numerics = 1
    own_routing = True
    interventions = False

    @dataclass(kw_only=True)
    class Config(Method.Config):
        """Keys of `conf/method/c2r.yaml`."""

        name: str = "c2r"
        partners: int | None = None
        """T of each expert; null: half of the experts."""
        profile: str | None = None
        dataset: str = "toy"
        dataset_size: int | None = None

        def __post_init__(self) -> None:
            at_least("method.dataset_size", self.dataset_size, 1)

    def __init__(self, config: Any):
        super().__init__(config)
        self._given: Tensor | None = None
        self._test_profile = False
        self._conversations: tuple[list[Conversation], str] = ([], "")

    def partners(self, facts: ModelFacts) -> int:
        """T."""
        return facts.experts // 2 if self.config.partners is None else self.config.partners

    def check(self, facts: ModelFacts) -> None:
        count, least, most = self.partners(facts), facts.top_k - 1, facts.experts - 1
        if not least <= count <= most:
            raise ConfigError(
                f"method.partners={count}: this model takes {facts.top_k} of {facts.experts} experts, so that each "
                f"needs {least} partners at least, and has {most} at most."
            )

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        return {"name": self.config.name, "partners": self.partners(facts)}

    def reads(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """What the profile is, or is made of. Raises ConfigError where it does not fit the model."""
        from moe_lab.methods.c2r.profiles import LENGTH, digest_of, read_pairs

        check_one_process(config)
        _check_groups(config, facts)
        if self.config.profile is None:
            self._conversations = self._read_conversations(config)
            return {"data": self._conversations[1], "length": LENGTH}
        self._given, self._test_profile = read_pairs(self.config.profile)
        shape = (facts.moe_layers, facts.experts, facts.experts)
        if tuple(self._given.shape) != shape:
            raise ConfigError(
                f"method.profile={self.config.profile} is of another model: {tuple(self._given.shape)} layers and "
                f"experts, and this one has {shape}."
            )
        return {"profile": digest_of(self._given)}

    def _read_conversations(self, config: RunConfig) -> tuple[list[Conversation], str]:
        from moe_lab.methods.conversations.read import Data, read_data

        found = read_data(config, self.config.dataset, self.config.dataset_size).train
        return found, Data(train=found, validation=[]).digest

    @contextmanager
    def open(self, model: LoadedModel, config: RunConfig) -> Iterator[ConstrainedLM]:
        from moe_lab.methods.c2r.lm import ConstrainedLM
        from moe_lab.methods.c2r.profiles import digest_of, load_or_record
        from moe_lab.routing import routed
        from moe_lab.routing.partners import PartnersOnly, partners_of

        pairs, place = self._given, Path(self.config.profile or "")
        if pairs is None:
            place, pairs = load_or_record(config, *self._conversations, model)
        self.opened = {"profile": place.name, "profile_sha256": digest_of(pairs)}
        policy = PartnersOnly(partners_of(pairs, self.partners(model.facts)))
        with routed(model.model, policy):
            yield ConstrainedLM(model.model, model.tokenizer, policy, **engine_options(config))

    def report(self, facts: ModelFacts, counters: Mapping[str, int]) -> dict[str, Any]:
        decisions = counters.get("routing_decisions", 0)
        changed = counters.get("constrained_decisions", 0) / decisions if decisions else None
        told = {
            "partners": self.partners(facts),
            "changed_fraction": changed,
            "test_profile": self._test_profile,
        }
        return {"c2r": told | self.opened}


def _check_groups(config: RunConfig, facts: ModelFacts) -> None:
    """Raise ConfigError for routers that choose within groups of experts, which partners would have to fit into."""
    from moe_lab.models.source import load_config

    architecture = load_config(config.model, offline=config.offline).get_text_config()
    if (getattr(architecture, "n_group", None) or 1) > 1:
        raise ConfigError(
            f"method=c2r: this model ({facts.family}) chooses experts within groups of them, which is a constraint of "
            "its own. Use a model that chooses among all experts."
        )
