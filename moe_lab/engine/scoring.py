"""Log-likelihoods of continuations: a batch of contexts is read once, with all continuations
branching off them.

M = logit positions, n = routing samples, V = vocabulary, P = tokens to score.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Group, TokenTree, collate, group_by_prefix, in_runs
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.errors import RoutingError

Scores = list[tuple[float, bool]]
"""Per continuation: its log-likelihood, and whether greedy decoding generates it."""
OnScores = Callable[[int, Scores], None]
"""(index of a request, its scores), called as soon as the request is done, in any order."""


SCORED_BYTES = 2**28
"""Of logits in float32 that are scored at once: the softmax of a large vocabulary takes several
times the memory."""


class TreeScores(NamedTuple):
    """The scores of one tree's tokens."""

    log_prob_P: Tensor
    """float32: the log-probability of each token to score, continuation by continuation."""
    greedy_M: Tensor
    """int64: the most probable token after each logit node."""


class TokenScores:
    """The scores of trees' tokens. `put` sets them; a later value replaces an earlier one.

    Args:
        known: values that are known already, of each tree.
    """

    def __init__(self, trees: Sequence[TokenTree], known: Sequence[TreeScores] | None = None):
        self.trees = trees
        targets = _targets(trees)
        self._place_P = targets.place_P
        self._target_P = targets.token_P
        if known is None:
            M = sum(len(tree.logit_nodes) for tree in trees)
            self._log_prob_P = torch.full((len(self._place_P),), torch.nan)
            self._greedy_M = torch.zeros(M, dtype=torch.long)
        else:
            self._log_prob_P = torch.cat([scores.log_prob_P for scores in known])
            self._greedy_M = torch.cat([scores.greedy_M for scores in known])

    def put(self, ensemble: Ensemble, place_M: Tensor, logits_MnV: Tensor) -> None:
        """Set the scores after some logit nodes.

        Args:
            place_M: int64, on the CPU: the numbers of these nodes among the logit nodes of all
                trees.
            logits_MnV: of the tokens after these nodes.
        """
        rows_at_once = max(1, SCORED_BYTES // (4 * math.prod(logits_MnV.shape[1:])))
        places = place_M.split(rows_at_once)
        for place_R, logits_RnV in zip(places, logits_MnV.split(rows_at_once), strict=True):
            self._put_rows(ensemble, place_R, logits_RnV)

    def _put_rows(self, ensemble: Ensemble, place_R: Tensor, logits_RnV: Tensor) -> None:
        """`put` for R logit nodes, whose logits are converted to float32 together."""
        device = logits_RnV.device
        # the row of each logit node of all trees among the R; -1: it is none of them
        row_M = torch.full_like(self._greedy_M, -1)
        row_M[place_R] = torch.arange(len(place_R))
        # several tokens may be scored after the same node
        row_P = row_M[self._place_P]
        scored = (row_P >= 0).nonzero()[:, 0]
        at = row_P[scored].to(device)
        target = self._target_P[scored].to(device)
        self._log_prob_P[scored] = ensemble.score(logits_RnV, at, target).cpu()
        self._greedy_M[place_R] = ensemble.greedy(logits_RnV).cpu()

    def after(self, ensemble: Ensemble, logits: Iterable[Tensor]) -> Self:
        """The scores after all logit nodes, from logits [M, n, V] in any number of parts."""
        done = 0
        for logits_MnV in logits:
            self.put(ensemble, torch.arange(done, done + len(logits_MnV)), logits_MnV)
            done += len(logits_MnV)
        return self

    def by_tree(self) -> list[TreeScores]:
        """The values of each tree."""
        token_counts = [sum(map(len, tree.continuations)) for tree in self.trees]
        node_counts = [len(tree.logit_nodes) for tree in self.trees]
        log_probs = self._log_prob_P.split(token_counts)
        greedy = self._greedy_M.split(node_counts)
        scores_of_trees = []
        for log_prob_P, greedy_M in zip(log_probs, greedy, strict=True):
            scores_of_trees.append(TreeScores(log_prob_P.clone(), greedy_M.clone()))
        return scores_of_trees

    def summed(self) -> list[Scores]:
        """The sums over each continuation's tokens, by tree. Raises RoutingError where they are
        NaN."""
        if self._log_prob_P.isnan().any():
            raise RoutingError(
                "The model's log-probabilities are NaN. Try dtype=bfloat16 or dtype=float32."
            )
        log_probs = self._log_prob_P.tolist()
        greedy = (self._greedy_M[self._place_P] == self._target_P).tolist()
        scores_of_trees: list[Scores] = []
        start = 0
        for tree in self.trees:
            scores: Scores = []
            for continuation in tree.continuations:
                stop = start + len(continuation)
                log_likelihood = math.fsum(log_probs[start:stop])
                is_greedy = all(greedy[start:stop])
                scores.append((log_likelihood, is_greedy))
                start = stop
            scores_of_trees.append(scores)
        return scores_of_trees


class _Targets(NamedTuple):
    """The tokens to score, continuation by continuation. Both int64 [P]."""

    place_P: Tensor
    """The logit node after which each one is predicted: its number among those of all trees."""
    token_P: Tensor
    """Token ids."""


def _targets(trees: Sequence[TokenTree]) -> _Targets:
    """The tokens to score of all trees, tree by tree."""
    places: list[int] = []
    tokens: list[int] = []
    first_place = 0
    for tree in trees:
        place_of = {node: place for place, node in enumerate(tree.logit_nodes, first_place)}
        first_place += len(place_of)
        for path, continuation in zip(tree.paths, tree.continuations, strict=True):
            places += [place_of[node] for node in path]
            tokens += continuation
    return _Targets(torch.tensor(places, dtype=torch.long), torch.tensor(tokens, dtype=torch.long))


@dataclass(frozen=True)
class ScoringRequest:
    """A context and the continuations to score after it, as token ids.

    The texts of a request share one reading of the context, so they are of one kind
    (`RotaryHooks.kind`).
    """

    context: Sequence[int]
    continuations: Sequence[Sequence[int]]
    noise_key: int
    """`document_key` of the context, or of the window of a rolling request."""
    text: str = ""
    """The context's text."""
    texts: Sequence[str] = ()
    """The continuations' texts."""

    @property
    def length(self) -> int:
        """Tokens that the model reads of the longest text. All texts of a request are of one
        kind."""
        return len(self.context) + max(map(len, self.continuations)) - 1


MAX_SEQUENCES = 64
"""Default number of sequences that generate together: on a CPU 64 take 40% less time than 16
(docs/benchmarks.md)."""


@dataclass
class Budget:
    """Bounds of one forward pass. All that use the same budget are bound by it at once when it is
    halved."""

    tokens: int
    """Tokens, routing samples and padding included."""
    sequences: int | None = None
    """Sequences; None: as many as fit."""
    slots: float = math.inf
    """Cached slots of all sequences: each has a copy of the prefix that they share."""
    row: float = 0.0
    """Memory of a row of logits, in tokens."""
    gradient_tokens: int = 512
    """Tokens of a pass with gradients, padding included."""
    gradient_row: float = 0.0
    """Memory of a row of logits in a pass with gradients, in tokens of such a pass."""

    def size(self, tokens: int, rows: int) -> float:
        """Memory of these tokens and rows of logits, in tokens."""
        return tokens + self.row * rows

    def halve(self, least: int) -> bool:
        """Halve all bounds. False if a pass has `least` tokens already."""
        if self.tokens <= least:
            return False
        self.tokens = max(least, self.tokens // 2)
        self.slots /= 2
        self.gradient_tokens = max(least, self.gradient_tokens // 2)
        self.sequences = max(1, (self.sequences or MAX_SEQUENCES) // 2)
        return True


def score(
    forward: EnsembleForward,
    requests: Sequence[ScoringRequest],
    budget: Budget,
    on_scores: OnScores,
) -> None:
    """Score all requests. `on_scores` gets the scores of each request as soon as they are known."""
    kinds = [forward.rotary.kind(request.length) for request in requests]
    for group in _groups(forward.ensemble, requests, kinds, forward.shares_beginnings):
        for batch in batches(forward, requests, group, budget):
            scores = TokenScores(batch.trees).after(forward.ensemble, batch.passes(forward, budget))
            for i, summed in zip(batch.indices, scores.summed(), strict=True):
                on_scores(i, summed)
            del batch  # its cache, before the next one is made


def _groups(
    ensemble: Ensemble,
    requests: Sequence[ScoringRequest],
    kinds: Sequence[int] | None = None,
    shares_beginnings: bool = True,
) -> list[Group]:
    """The requests by the beginning of their contexts that is read once and without noise.

    With own histories a group is a single request (`prefill="clean"`), or all requests, which share
    nothing. They share nothing either without `shares_beginnings`.
    """
    if not ensemble.own_history and shares_beginnings:
        return group_by_prefix([request.context for request in requests], kinds)
    if ensemble.own_history and ensemble.prefill == "clean":
        return [Group([i], len(request.context) - 1) for i, request in enumerate(requests)]
    return [Group(list(range(len(requests))), 0)]


@dataclass(frozen=True)
class Batch:
    """Requests that are read together, over the cache of their shared prefix."""

    indices: list[int]
    trees: list[TokenTree]
    cache: KVCache

    def passes(self, forward: EnsembleForward, budget: Budget) -> Iterator[Tensor]:
        """Logits [M, n, V] at the logit nodes, tree by tree, in as many passes as the budget
        requires."""
        prefix = self.cache.length
        width = max(len(tree) for tree in self.trees)
        slices: Iterable[tuple[int, int]] = [(0, width)]
        if len(self.trees) == 1:
            slices = _slices(self.trees[0], width, forward.ensemble, budget)
        for start, stop in slices:
            tokens = collate(self.trees, prefix + start, forward.device, start=start, stop=stop)
            yield forward(tokens, self.cache)


def batches(
    forward: EnsembleForward, requests: Sequence[ScoringRequest], group: Group, budget: Budget
) -> Iterator[Batch]:
    """The requests of a group in batches, over their shared prefix, which is computed here."""
    ensemble = forward.ensemble
    first = requests[group.members[0]]
    prefix = shared_prefix(forward, first.context[: group.shared], first.length, first.noise_key)
    tree_of: dict[int, TokenTree] = {}
    slots: dict[int, int] = {}
    sizes: dict[int, float] = {}
    for i in group.members:
        tree = _tree(requests[i], group)
        rows = len(tree.logit_nodes)
        tree_of[i] = tree
        slots[i] = group.shared + len(tree) + rows * forward.extra_slots
        sizes[i] = budget.size(_tokens(tree, ensemble), rows * ensemble.n)
    most_slots = max(slots.values())

    def fits(batch: list[int], _: int) -> bool:
        """Whether a batch may take one more request, padded to its first one, the longest."""
        if len(batch) == budget.sequences:
            return False
        count = len(batch) + 1
        tokens_fit = sizes[batch[0]] * count <= budget.tokens
        slots_fit = most_slots * count <= budget.slots
        return tokens_fit and slots_fit

    # the longest come first: too little memory shows at once
    for indices in in_runs(sorted(tree_of, key=lambda i: -sizes[i]), fits):
        capacity = max(slots[i] for i in indices)
        if prefix is None:
            cache = forward.new_cache(capacity)
        else:
            cache = prefix.expanded(len(indices), capacity)
        yield Batch(indices, [tree_of[i] for i in indices], cache)


def shared_prefix(
    forward: EnsembleForward, tokens: Sequence[int], length: int, noise_key: int
) -> KVCache | None:
    """The cache of a shared beginning, for one sequence; None for an empty beginning.

    Args:
        length: tokens of one of the texts that share it, which are of one kind.
        noise_key: of such a text; a policy reads it only where no other text shares the beginning.
    """
    if not tokens:
        return None
    cache = forward.new_cache(len(tokens))
    read = collate([TokenTree(tokens, [], noise_key=noise_key)], 0, forward.device)
    forward(replace(read, noise=False, lengths=[length]), cache)
    return cache


def _tree(request: ScoringRequest, group: Group) -> TokenTree:
    return TokenTree(
        request.context, request.continuations, cached=group.shared, noise_key=request.noise_key
    )


def _tokens(tree: TokenTree, ensemble: Ensemble) -> int:
    """Tokens that go through the noisy layers, routing samples included."""
    sampled = len(tree) if ensemble.own_history else len(tree.logit_nodes)
    return len(tree) + sampled * (ensemble.n - 1)


def tokens_to_score(ensemble: Ensemble, requests: Sequence[ScoringRequest]) -> int:
    """Tokens that `score` puts through the model, routing samples included, padding excluded. Runs
    nothing."""
    tokens = 0
    for group in _groups(ensemble, requests):
        tokens += group.shared
        for i in group.members:
            tokens += _tokens(_tree(requests[i], group), ensemble)
    return tokens


def _slices(
    tree: TokenTree, width: int, ensemble: Ensemble, budget: Budget
) -> Iterator[tuple[int, int]]:
    """(first node, the one after the last) of consecutive parts of a long tree.

    Each part with its routing samples is within the budget, or is a single node.
    """
    logit_nodes = set(tree.logit_nodes)
    start = 0
    size = 0.0
    for node in range(width):
        has_logits = node in logit_nodes
        tokens = ensemble.n if ensemble.own_history or has_logits else 1
        rows = ensemble.n if has_logits else 0
        node_size = budget.size(tokens, rows)
        if node > start and size + node_size > budget.tokens:
            yield start, node
            start = node
            size = 0.0
        size += node_size
    yield start, width
