"""The log-probabilities of given tokens under each routing sample alone.

A sample over a clean history takes k experts in every layer, as the router does: a route at equal compute, which
differs from the router's for the scored token only.

T = scored tokens, n = routing samples (sample 0 is the router's own route), M = logit positions, N = noisy tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from moe_lab.config.progress import Progress
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.scoring import NAN, Budget, ScoringRequest, scored_parts
from moe_lab.engine.two_phase import TwoPhaseScorer
from moe_lab.errors import ConfigError, RoutingError
from moe_lab.routing import GumbelTopK, Router, Routing
from moe_lab.routing.noise import NoisyTokens

if TYPE_CHECKING:
    from moe_lab.engine.hf import Request
    from moe_lab.engine.lm import EngineLM
    from moe_lab.engine.scoring import ScoringRequest


@dataclass(frozen=True)
class RouteScores:
    """The scores of T tokens, on the CPU."""

    log_probs_Tn: Tensor
    """float32: of the token, under each route. A route that is not changed has the router's own value."""
    changed_Tn: Tensor
    """bool: whether the route has other experts than the router's own in any layer; False for sample 0."""
    ensemble_T: Tensor
    """float32: of the token, under the ensemble of all samples; the router's own value where no route is changed."""
    confidence_T: Tensor
    """float32: the probability of the most probable token under the router's own route."""

    @classmethod
    def joined(cls, parts: Sequence[RouteScores], n: int) -> RouteScores:
        """The scores of the pieces of a text, in their order; empty tensors without pieces."""
        none = cls(torch.empty(0, n), torch.empty(0, n, dtype=torch.bool), torch.empty(0), torch.empty(0))
        names = ("log_probs_Tn", "changed_Tn", "ensemble_T", "confidence_T")
        return cls(*(torch.cat([getattr(part, name) for part in (none, *parts)]) for name in names))


def score_routes(
    model: nn.Module,
    ensemble: Ensemble,
    requests: Sequence[ScoringRequest],
    budget: Budget,
    on_routes: Callable[[int, RouteScores], None],
) -> None:
    """Score the continuations' tokens of all requests; `on_routes(index, scores)` in any order.

    The ensemble has noise (n > 1) over a clean history, and the noise is that of its own answers.
    """
    assert isinstance(ensemble.routing, GumbelTopK) and ensemble.cache == "clean"
    proposals = Proposals(ensemble.routing)
    scorer = TwoPhaseScorer(model, ensemble.first_noisy, store=None)
    scorer.read(replace(ensemble, routing=proposals), requests, budget, proposals.read, on_routes)


class Proposals(GumbelTopK):
    """Gumbel-top-k that notes which noisy tokens of the last pass take other experts than without noise.

    A sample without such a layer has the router's own route. One with such a layer has another route: up to
    the first such layer, its hidden states are those of the sample without noise.
    """

    def __init__(self, of: GumbelTopK):
        super().__init__(**of.settings)
        self.changed_N = torch.zeros(0, dtype=torch.bool)

    def expect(self, tokens: NoisyTokens | None) -> None:
        super().expect(tokens)
        if tokens is not None:
            self.changed_N = torch.zeros_like(tokens.index, dtype=torch.bool)

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        noisy = super().__call__(router, routing)
        if noisy is not None:
            assert self._tokens is not None
            at_N = self._tokens.index.to(routing.index_TK.device)
            sets = [one.index_TK[at_N].sort(dim=-1).values for one in (noisy, routing)]
            self.changed_N |= (sets[0] != sets[1]).any(dim=-1).to(self.changed_N.device)
        return noisy

    def read(self, ensemble: Ensemble, trees: list[TokenTree], logits: Iterable[Tensor]) -> list[RouteScores]:
        """The scores of each tree's tokens. Raises RoutingError where they are NaN."""
        sizes = [sum(map(len, tree.continuations)) for tree in trees]
        T, n = sum(sizes), ensemble.n
        log_probs_Tn, changed_Tn = torch.empty(T, n), torch.zeros(T, n, dtype=torch.bool)
        ensemble_T, confidence_T = torch.empty(T), torch.empty(T)
        for part in scored_parts(trees, logits):
            here, at_P, target_P = part.tokens, part.at_P, part.target_P
            logits_MnV = part.logits_MnV.float()
            norm_Mn = logits_MnV.logsumexp(dim=-1)
            log_probs_Tn[here] = (logits_MnV[at_P, :, target_P] - norm_Mn[at_P]).cpu()
            changed_Tn[here, 1:] = self.changed_N.unflatten(0, (-1, n - 1))[at_P].cpu()
            ensemble_T[here] = ensemble.score(part.logits_MnV, at_P, target_P).cpu()
            confidence_T[here] = (logits_MnV[:, 0].amax(dim=-1) - norm_Mn[:, 0]).exp()[at_P].cpu()
        if log_probs_Tn.isnan().any():
            raise RoutingError(NAN)
        own_T = log_probs_Tn[:, 0]
        log_probs_Tn = torch.where(changed_Tn, log_probs_Tn, own_T[:, None])
        ensemble_T = torch.where(changed_Tn.any(dim=-1), ensemble_T, own_T)
        columns = (log_probs_Tn, changed_Tn, ensemble_T, confidence_T)
        return [RouteScores(*own) for own in zip(*(column.split(sizes) for column in columns), strict=True)]


def text_routes(lm: EngineLM, requests: Sequence[tuple[str, Request]]) -> list[RouteScores]:
    """The scores of each request's tokens, in the order of the text. The noise is that of the LM's own answers.

    Args:
        lm: its ensemble has n > 1 samples over a clean history.
        requests: "loglikelihood" or "loglikelihood_rolling", and the request.

    Raises ConfigError for a model without a `KVEngine`.
    """
    if not isinstance(lm.engine, KVEngine):
        raise ConfigError(
            f"metrics=counterfactual: routes of {type(lm.model).__name__} cannot be scored. Its layers keep more than "
            "keys and values. Leave metrics=counterfactual out."
        )
    pieces: list[ScoringRequest] = []
    pieces_of: list[list[int]] = []
    for kind, request in requests:
        own = lm.scored_pieces(kind, request)
        pieces_of.append(list(range(len(pieces), len(pieces) + len(own))))
        pieces += own
    found: dict[int, RouteScores] = {}
    with Progress(len(pieces), "routes", "text", shown=lm.progress) as progress:

        def on_routes(index: int, scores: RouteScores) -> None:
            found[index] = scores
            progress.update()

        if pieces:
            score_routes(lm.model, lm.ensemble, pieces, lm.budget, on_routes)
    return [RouteScores.joined([found[i] for i in own], lm.ensemble.n) for own in pieces_of]
