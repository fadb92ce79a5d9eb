"""`method=scmoe`: self-contrast of a Mixture-of-Experts model (Shi et al. 2024, arXiv 2405.14507).

Every token has two routing samples. The strong one is the base model. The weak one routes the same
token to a single expert, by its rank, in all MoE layers. The next-token logits are
`(1 + beta) * strong - beta * weak` (equation 5). Decoding takes tokens whose strong probability is
at least alpha times the largest one (equation 6).

N = weak samples of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from moe_lab.config.validators import NonNegativeFloat, PositiveInt, Share
from moe_lab.errors import ConfigError
from moe_lab.methods.tunable_method import GridMethod, Settings

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.models.facts import ModelFacts
    from moe_lab.routing import Router, Routing
    from moe_lab.routing.samples import Choose, NoisyTokens

BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The strengths of the paper's search (section 3.2)."""
RANKS = 8
"""The most ranks of `tuning=grid`: all of Mixtral's."""


class SelfContrast(GridMethod):
    """The contrast of a model's own routing with another routing of the same token."""

    open_ended = ("beta",)

    @dataclass(kw_only=True)
    class Config(GridMethod.Config):
        name: str = "scmoe"
        beta: NonNegativeFloat = 0.5
        alpha: Share = 0.1
        rank: PositiveInt = 2
        """The rank of the weak sample's single expert; 1: the expert with the largest score."""
        cache: Literal["clean", "standard"] = "clean"
        """clean: the weak sample attends to the history of the strong one;
        standard: to its own history."""

        @property
        def unread(self) -> set[str]:
            """With beta 0 there is no weak sample, whose keys these are."""
            return {"rank", "cache"} if self.beta == 0 else set()

    def check(self, facts: ModelFacts) -> None:
        """Raises ConfigError for a rank above the model's number of experts."""
        rank = self.config.rank
        experts = facts.experts
        if rank > experts:
            raise ConfigError(
                f"method.rank={rank}: this model has {experts} experts in a layer. Give a number "
                f"from 1 to {experts}."
            )

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then every beta with every rank."""
        grid: list[Settings] = [{"beta": 0.0, "rank": 1}]
        for rank in range(1, min(facts.experts, RANKS) + 1):
            grid += [{"beta": beta, "rank": rank} for beta in BETAS]
        return grid

    def planned_ensemble(self) -> Ensemble:
        return self.ensemble_for(None, seed=0)

    def ensemble_for(self, facts: ModelFacts | None, seed: int) -> Ensemble:
        """The strong and the weak sample; only the strong one if beta is 0.

        The model makes no difference.
        """
        from moe_lab.engine.forward.ensemble import Contrast, Ensemble
        from moe_lab.routing.samples import OtherExperts

        settings = self.config
        contrast = Contrast(settings.beta, settings.alpha)
        if settings.beta == 0:
            return Ensemble(contrast=contrast)
        routing = OtherExperts(of_rank(settings.rank), repeatable=True)
        return Ensemble(n=2, routing=routing, cache=settings.cache, contrast=contrast)


def of_rank(rank: int) -> Choose:
    """A function that chooses, for each sample, the expert whose score has this rank among all
    experts (equation 4), int64 [N, 1]."""

    def choose(router: Router, routing: Routing, tokens: NoisyTokens) -> Tensor:
        return router.scores(routing.logits_TE).topk(rank, dim=-1).indices[:, rank - 1 :]

    return choose
