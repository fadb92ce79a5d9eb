"""`method=c2r`: collaboration-constrained routing, by a profile that counts which experts a model selects together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.validators import at_least
from moe_lab.methods.base import engine_options
from moe_lab.methods.c2r.checks import check_groups, check_partners, check_profile
from moe_lab.methods.c2r.lm import changed_fraction
from moe_lab.methods.method import Context, Method
from moe_lab.methods.references.checks import check_one_process

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.config.schema import Config as RunConfig
    from moe_lab.methods.c2r.lm import ConstrainedLM
    from moe_lab.methods.conversations.read import Data
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


class C2R(Method):
    """Routes each token to its first expert and to that expert's most co-activated partners."""

    numerics = 1
    own_routing = True
    tells_choices = True
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

    def partners(self, facts: ModelFacts) -> int:
        """T, the number of partners of each expert."""
        return facts.experts // 2 if self.config.partners is None else self.config.partners

    def check(self, facts: ModelFacts) -> None:
        check_partners(self.partners(facts), facts)

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        return {"name": self.config.name, "partners": self.partners(facts)}

    @cached_property
    def _given(self) -> tuple[Tensor, bool]:
        """The pair counts of `profile`, and whether they were counted on test documents."""
        from moe_lab.methods.c2r.profiles import read_pairs

        return read_pairs(self.config.profile)

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The profile, or the data that it is recorded on. Raises ConfigError where it does not fit the model."""
        from moe_lab.methods.c2r.profiles import LENGTH, digest_of

        check_one_process(config)
        check_groups(config, facts)
        if self.config.profile is None:
            return {"data": self._conversations(config).digest, "length": LENGTH}
        pairs_LEE = self._given[0]
        check_profile(self.config.profile, pairs_LEE, facts)
        return {"profile": digest_of(pairs_LEE)}

    def _conversations(self, config: RunConfig) -> Data:
        from moe_lab.methods.conversations.read import read_data

        return read_data(config, self.config.dataset, self.config.dataset_size)

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[ConstrainedLM]:
        from moe_lab.methods.c2r.lm import ConstrainedLM
        from moe_lab.methods.c2r.profiles import digest_of, load_or_record
        from moe_lab.routing import routed
        from moe_lab.routing.partners import PartnersOnly, partners_of

        config = context.config
        if self.config.profile is None:
            place, pairs = load_or_record(config, self._conversations(config), model)
        else:
            place, pairs = Path(self.config.profile), self._given[0]
        policy = PartnersOnly(partners_of(pairs, self.partners(model.facts)))
        with routed(model.model, policy):
            lm = ConstrainedLM(model.model, model.tokenizer, policy, **engine_options(config))
            lm.session_info = {"profile": place.name, "profile_sha256": digest_of(pairs)}
            yield lm

    def report(
        self, facts: ModelFacts, counters: Mapping[str, int], session_info: Mapping[str, Any]
    ) -> dict[str, Any]:
        block = {
            "partners": self.partners(facts),
            "changed_fraction": changed_fraction(counters),
            "test_profile": self.config.profile is not None and self._given[1],
        }
        return {"c2r": block | dict(session_info)}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        return ["changed (c2r): routing decisions in which an expert was no partner of the first one."]
