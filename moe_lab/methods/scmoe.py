"""`method=scmoe`: self-contrast of a Mixture-of-Experts model (Shi et al. 2024, arXiv 2405.14507).

Every token has two routing samples. The strong one is the base model. The weak one routes the same token to other
experts in all MoE layers. The next-token logits are `(1 + beta) * strong - beta * weak` (equation 5). Decoding takes
tokens whose strong probability is at least alpha times the largest one (equation 6).

N = weak samples of a pass, E = experts, K = experts per token, C = experts of a weak sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from moe_lab.config.validators import NonNegativeFloat, PositiveInt, Share
from moe_lab.errors import ConfigError
from moe_lab.methods.policy_method import PolicyMethod, Settings

if TYPE_CHECKING:
    from torch import Tensor

    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.models.facts import ModelFacts
    from moe_lab.routing.hook import Router, Routing
    from moe_lab.routing.noise import NoisyTokens
    from moe_lab.routing.policies import Choose

BETAS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The strengths of the paper's search (section 3.2)."""
RANKS = 8
"""The most ranks of `tuning=grid`: all of Mixtral's."""


class SelfContrast(PolicyMethod):
    """The contrast of a model's own routing with another routing of the same token."""

    open_ended = ("beta",)

    @dataclass(kw_only=True)
    class Config(PolicyMethod.Config):
        name: str = "scmoe"
        beta: NonNegativeFloat = 0.5
        alpha: Share = 0.1
        weak: Literal["rank", "top-1", "random", "others"] = "rank"
        rank: PositiveInt = 2
        """The rank of the single expert with weak=rank; 1: the expert with the largest score."""
        cache: Literal["clean", "standard"] = "clean"
        """clean: the weak sample attends to the history of the strong one; standard: to its own history."""

        @property
        def unread(self) -> set[str]:
            if self.beta == 0:
                return {"weak", "rank", "cache"}
            return set() if self.weak == "rank" else {"rank"}

    def __init__(self, config: Any):
        super().__init__(config)
        self.random = self.config.weak == "random" and self.config.beta > 0

    def check(self, facts: ModelFacts) -> None:
        rank, experts = self.config.rank, facts.experts
        if self.config.weak == "rank" and rank > experts:
            raise ConfigError(
                f"method.rank={rank}: this model has {experts} experts in a layer. Give a number from 1 to {experts}."
            )
        if self.config.weak == "others" and facts.top_k == experts:
            raise ConfigError(
                f"method.weak=others: this model takes all of its {experts} experts, and no others are left. Use rank."
            )

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The base model, then every beta with every rank, or every beta if `weak` has no ranks."""
        if self.config.weak != "rank":
            return [{"beta": beta} for beta in (0.0, *BETAS)]
        ranks = range(1, min(facts.experts, RANKS) + 1)
        return [{"beta": 0.0, "rank": 1}, *({"beta": beta, "rank": r} for r in ranks for beta in BETAS)]

    def planned_ensemble(self) -> Ensemble:
        return self.ensemble_for(None, seed=0)

    def ensemble_for(self, facts: ModelFacts | None, seed: int) -> Ensemble:
        """The strong and the weak sample; only the strong one if beta is 0. The model makes no difference."""
        from moe_lab.engine.forward.ensemble import Contrast, Ensemble
        from moe_lab.routing.policies import OtherExperts

        own = self.config
        contrast = Contrast(own.beta, own.alpha)
        if own.beta == 0:
            return Ensemble(contrast=contrast)
        routing = OtherExperts(weak_experts(own.weak, own.rank, seed), repeatable=True)
        return Ensemble(n=2, routing=routing, cache=own.cache, contrast=contrast)


def weak_experts(weak: str, rank: int, seed: int) -> Choose:
    """Chooses the experts of a weak sample, int64 [N, C]."""

    def of_rank(router: Router, own: Routing, tokens: NoisyTokens) -> Tensor:
        """The expert with the score of this rank among all experts (equation 4)."""
        return router.scores(own.logits_TE).topk(rank, dim=-1).indices[:, rank - 1 :]

    def first(router: Router, own: Routing, tokens: NoisyTokens) -> Tensor:
        """The expert that the router would take if it took one."""
        return router.choose(router.scores(own.logits_TE), 1)

    def random(router: Router, own: Routing, tokens: NoisyTokens) -> Tensor:
        """One of all experts with equal probability, by the keyed noise of RoE."""
        import torch

        from moe_lab.routing.noise import gumbel_for_tokens

        keys = (tokens.document, tokens.repeat, tokens.row, tokens.position)
        layer = torch.full((1,), router.layer, device=tokens.index.device)
        [noise_NE] = gumbel_for_tokens(seed, *keys, layer, own.logits_TE.shape[-1])
        return noise_NE.argmax(dim=-1, keepdim=True).to(own.logits_TE.device)

    def unchosen(router: Router, own: Routing, tokens: NoisyTokens) -> Tensor:
        """All E - K experts that the router does not take."""
        scores_NE = router.scores(own.logits_TE).scatter(-1, own.index_TK, float("-inf"))
        E, K = scores_NE.shape[-1], own.index_TK.shape[-1]
        return scores_NE.topk(E - K, dim=-1).indices

    return {"rank": of_rank, "top-1": first, "random": random, "others": unchosen}[weak]
