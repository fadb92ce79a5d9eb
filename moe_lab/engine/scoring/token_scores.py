"""Log-probabilities of the tokens of continuations, and their sums.

M = logit positions, n = routing samples, V = vocabulary, P = tokens to score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.errors import RoutingError

NAN = "The model's log-probabilities are NaN. Try dtype=bfloat16 or dtype=float32."

Scores = list[tuple[float, bool]]
"""Per continuation: its log-likelihood, and whether greedy decoding generates it."""


class TreeScores(NamedTuple):
    """What is known of one tree's tokens."""

    picked_P: Tensor
    """float32: the log-probability of each token to score, continuation by continuation."""
    greedy_M: Tensor
    """int64: the most probable token after each logit node."""


class TokenScores:
    """The scores of trees' tokens. Each logit node is put in once; a later value replaces an earlier one.

    Args:
        known: values that are known already, of each tree.
    """

    def __init__(self, trees: Sequence[TokenTree], known: Sequence[TreeScores] | None = None):
        self.trees = trees
        self._place_P, self._target_P = _targets(trees)
        if known is None:
            self._picked_P = torch.full((len(self._place_P),), torch.nan)
            self._greedy_M = torch.zeros(sum(len(tree.logit_nodes) for tree in trees), dtype=torch.long)
        else:
            self._picked_P, self._greedy_M = (torch.cat(parts) for parts in zip(*known, strict=True))

    def put(self, ensemble: Ensemble, place_M: Tensor, logits_MnV: Tensor) -> None:
        """Set the scores after the logit nodes `place_M` (int64, on the CPU: numbers among all trees' logit nodes)."""
        row = torch.full_like(self._greedy_M, -1)
        row[place_M] = torch.arange(len(place_M))
        here = (row[self._place_P] >= 0).nonzero()[:, 0]
        device = logits_MnV.device
        at, target = row[self._place_P[here]].to(device), self._target_P[here].to(device)
        self._picked_P[here] = ensemble.score(logits_MnV, at, target).cpu()
        self._greedy_M[place_M] = ensemble.greedy(logits_MnV).cpu()

    def by_tree(self) -> list[TreeScores]:
        """The values of each tree."""
        scored = [sum(map(len, tree.continuations)) for tree in self.trees]
        nodes = [len(tree.logit_nodes) for tree in self.trees]
        parts = zip(self._picked_P.split(scored), self._greedy_M.split(nodes), strict=True)
        return [TreeScores(picked.clone(), greedy.clone()) for picked, greedy in parts]

    def summed(self) -> list[Scores]:
        """The sums over each continuation's tokens, by tree. Raises RoutingError where they are NaN."""
        if self._picked_P.isnan().any():
            raise RoutingError(NAN)
        picked = self._picked_P.tolist()
        greedy = (self._greedy_M[self._place_P] == self._target_P).tolist()
        scores: list[Scores] = []
        start = 0
        for tree in self.trees:
            scores.append([])
            for continuation in tree.continuations:
                stop = start + len(continuation)
                scores[-1].append((math.fsum(picked[start:stop]), all(greedy[start:stop])))
                start = stop
        return scores


def read_scores(ensemble: Ensemble, trees: Sequence[TokenTree], logits: Iterable[Tensor]) -> list[Scores]:
    """The scores of each tree's continuations.

    Args:
        logits: [M, n, V] of the trees' logit nodes, in any number of parts.

    Raises RoutingError where they are NaN.
    """
    scores = TokenScores(trees)
    done = 0
    for logits_MnV in logits:
        scores.put(ensemble, torch.arange(done, done + len(logits_MnV)), logits_MnV)
        done += len(logits_MnV)
    return scores.summed()


@dataclass(frozen=True)
class ScoredPart:
    """The logits of one pass, and P tokens that are scored with them."""

    tokens: Tensor
    """int64 [P]: indices of the tokens among all that are scored, tree by tree and continuation by continuation."""
    logits_MnV: Tensor
    at_P: Tensor
    """The logit position of each token."""
    target_P: Tensor
    """The token itself."""


def scored_parts(trees: Sequence[TokenTree], logits: Iterable[Tensor]) -> Iterator[ScoredPart]:
    """The tokens of the trees' continuations, pass by pass.

    Args:
        logits: [M, n, V] of the trees' logit nodes, in any number of parts.
    """
    places, targets = _targets(trees)
    done = 0
    for logits_MnV in logits:
        here = ((places >= done) & (places < done + len(logits_MnV))).nonzero()[:, 0]
        device = logits_MnV.device
        yield ScoredPart(here, logits_MnV, (places[here] - done).to(device), targets[here].to(device))
        done += len(logits_MnV)


def _targets(trees: Sequence[TokenTree]) -> tuple[Tensor, Tensor]:
    """For every token to score, continuation by continuation: (place among all logit nodes, the token)."""
    places: list[int] = []
    tokens: list[int] = []
    done = 0
    for tree in trees:
        order = {node: place for place, node in enumerate(tree.logit_nodes, done)}
        done += len(order)
        for path, continuation in zip(tree.paths, tree.continuations, strict=True):
            places += [order[node] for node in path]
            tokens += continuation
    return torch.tensor(places, dtype=torch.long), torch.tensor(tokens, dtype=torch.long)
