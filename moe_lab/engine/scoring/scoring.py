"""Log-likelihoods of continuations: a batch of contexts is read once, with all continuations branching off them.

M = logit positions, n = routing samples, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from moe_lab.engine.forward.batch import TokenTree, collate
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.prefixes import Group, group_by_prefix
from moe_lab.engine.scoring.token_scores import Scores, read_scores


@dataclass(frozen=True)
class ScoringRequest:
    """A context and the continuations to score after it, as token ids."""

    context: Sequence[int]
    continuations: Sequence[Sequence[int]]
    noise_key: int
    """`document_key` of the context, or of the window of a rolling request."""
    text: str = ""
    """The context's text."""
    texts: Sequence[str] = ()
    """The continuations' texts."""


@dataclass(frozen=True)
class Budget:
    """Bounds of one forward pass."""

    tokens: int
    """Tokens, routing samples and padding included."""
    sequences: int | None = None
    """Sequences; None: as many as fit."""


def score(
    forward: EnsembleForward,
    requests: Sequence[ScoringRequest],
    budget: Budget,
    on_scores: Callable[[int, Scores], None],
) -> None:
    """Score all requests; `on_scores(index, scores)` is called as soon as a request is done, in any order."""
    for group in _groups(forward.ensemble, requests):
        for batch in batches(forward, requests, group, budget):
            scores = read_scores(forward.ensemble, batch.trees, batch.passes(forward, budget))
            for i, own in zip(batch.indices, scores, strict=True):
                on_scores(i, own)


def _groups(ensemble: Ensemble, requests: Sequence[ScoringRequest]) -> list[Group]:
    """Requests with a common beginning that is read without noise."""
    if not ensemble.own_history:
        return group_by_prefix([request.context for request in requests])
    if ensemble.prefill == "clean":
        return [Group([i], len(request.context) - 1) for i, request in enumerate(requests)]
    return [Group(list(range(len(requests))), 0)]


@dataclass(frozen=True)
class Batch:
    """Requests that are read together, over the cache of their shared prefix."""

    indices: list[int]
    trees: list[TokenTree]
    cache: KVCache

    def passes(self, forward: EnsembleForward, budget: Budget) -> Iterator[Tensor]:
        """Logits [M, n, V] at the logit nodes, tree by tree, in as many passes as the budget requires."""
        prefix = self.cache.length
        width = max(len(tree) for tree in self.trees)
        slices = [(0, width)]
        if len(self.trees) == 1:
            slices = list(_slices(self.trees[0], width, forward.ensemble, budget.tokens))
        for start, stop in slices:
            tokens = collate(self.trees, prefix + start, forward.device, start=start, stop=stop)
            yield forward(tokens, self.cache)


def batches(
    forward: EnsembleForward, requests: Sequence[ScoringRequest], group: Group, budget: Budget
) -> Iterator[Batch]:
    """The requests of a group in batches, over their shared prefix, which is computed here."""
    prefix = shared_prefix(forward, requests[group.members[0]].context[: group.shared])
    tree_of = {i: _tree(requests[i], group) for i in group.members}
    for indices in _alike(tree_of, forward.ensemble, budget):
        trees = [tree_of[i] for i in indices]
        capacity = group.shared + max(
            len(tree) + len(tree.logit_nodes) * forward.extra_slots for tree in trees
        )
        cache = prefix.expanded(len(trees), capacity) if prefix else forward.new_cache(capacity)
        yield Batch(indices, trees, cache)


def shared_prefix(forward: EnsembleForward, tokens: Sequence[int]) -> KVCache | None:
    """The cache of a shared beginning, for one sequence; None for an empty beginning."""
    if not tokens:
        return None
    cache = forward.new_cache(len(tokens))
    forward(replace(collate([TokenTree(tokens, [])], 0, forward.device), noise=False), cache)
    return cache


def _tree(request: ScoringRequest, group: Group) -> TokenTree:
    return TokenTree(request.context, request.continuations, cached=group.shared, noise_key=request.noise_key)


def _alike(trees: dict[int, TokenTree], ensemble: Ensemble, budget: Budget) -> Iterator[list[int]]:
    """Trees of similar size, as many as the budget allows. The longest come first, so that memory
    runs out at once if it does."""
    batch: list[int] = []
    width = 0
    for i in sorted(trees, key=lambda i: -_size(trees[i], ensemble)):
        width = max(width, _size(trees[i], ensemble))
        if batch and (width * (len(batch) + 1) > budget.tokens or len(batch) == budget.sequences):
            yield batch
            batch, width = [], _size(trees[i], ensemble)
        batch.append(i)
    yield batch


def _size(tree: TokenTree, ensemble: Ensemble) -> int:
    """Tokens that pass the noisy layers."""
    noisy = len(tree) if ensemble.own_history else len(tree.logit_nodes)
    return len(tree) + noisy * (ensemble.n - 1)


def _slices(tree: TokenTree, width: int, ensemble: Ensemble, limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive nodes of a long tree, each slice with its routing samples within the limit, or a single node."""
    logit_nodes = set(tree.logit_nodes)
    start = size = 0
    for node in range(width):
        cost = ensemble.n if ensemble.own_history or node in logit_nodes else 1
        if node > start and size + cost > limit:
            yield start, node
            start, size = node, 0
        size += cost
    yield start, width
