"""Log-likelihoods of continuations: one pass per batch of contexts, with all their continuations hanging off them.

M = wanted tokens, V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.engine.forward.batch import TreeRow, collate
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RowForward
from moe_lab.engine.forward.kv_cache import RowCache
from moe_lab.engine.forward.prefixes import Group, group_by_prefix
from moe_lab.errors import RoutingError


@dataclass(frozen=True)
class Question:
    """A context and the continuations to score after it, as token ids; `document` is the key of its noise."""

    context: Sequence[int]
    continuations: Sequence[Sequence[int]]
    document: int
    text: str = ""
    """Of the context."""
    texts: Sequence[str] = ()
    """Of the continuations."""


@dataclass(frozen=True)
class Budget:
    """How much goes into one forward pass."""

    tokens: int
    """Tokens (rows of ensembles and padding included)."""
    sequences: int | None = None
    """Sequences; None: as many as fit."""


Scores = list[tuple[float, bool]]
"""Per continuation: its log-likelihood, and whether greedy decoding would give it."""


def score(
    forward: RowForward,
    questions: Sequence[Question],
    budget: Budget,
    on_scores: Callable[[int, Scores], None],
) -> None:
    """Score all questions; `on_scores(index, scores)` is called as soon as a question is done, in any order."""
    for group in _groups(forward.ensemble, questions):
        for batch in batches(forward, questions, group, budget):
            found = read_scores(forward.ensemble, batch.trees, batch.passes(forward, budget))
            for i, scores in zip(batch.indices, found, strict=True):
                on_scores(i, scores)


def _groups(ensemble: Ensemble, questions: Sequence[Question]) -> list[Group]:
    """Questions whose contexts begin alike and are read without noise up to there."""
    if not ensemble.own_history:
        return group_by_prefix([question.context for question in questions])
    if ensemble.prefill == "clean":
        return [Group([i], len(question.context) - 1) for i, question in enumerate(questions)]
    return [Group(list(range(len(questions))), 0)]


@dataclass(frozen=True)
class Batch:
    """Questions that are read together, over the cache of their shared beginning."""

    indices: list[int]
    trees: list[TreeRow]
    cache: RowCache

    def passes(self, forward: RowForward, budget: Budget) -> Iterator[Tensor]:
        """Logits [M, n, V] of the wanted nodes, tree by tree, in as many passes as the budget takes."""
        past = self.cache.length
        width = max(len(tree) for tree in self.trees)
        slices = [(0, width)]
        if len(self.trees) == 1:
            slices = list(_slices(self.trees[0], width, forward.ensemble, budget.tokens))
        counted = sum(map(len, self.trees)) if len(slices) == 1 else None
        for start, stop in slices:
            tokens = collate(self.trees, past + start, forward.device, start=start, stop=stop)
            yield forward(tokens, self.cache, counted=counted)


def batches(
    forward: RowForward, questions: Sequence[Question], group: Group, budget: Budget
) -> Iterator[Batch]:
    """The questions of a group, over their shared beginning (computed here)."""
    past = shared_past(forward, questions[group.members[0]].context[: group.shared])
    rows = {i: _tree(questions[i], group) for i in group.members}
    for indices in _alike(rows, forward.ensemble, budget):
        trees = [rows[i] for i in indices]
        capacity = group.shared + max(len(tree) + len(tree.wanted) * forward.row_columns for tree in trees)
        cache = past.expanded(len(trees), capacity) if past else forward.new_cache(capacity)
        yield Batch(indices, trees, cache)


def shared_past(forward: RowForward, tokens: Sequence[int]) -> RowCache | None:
    """The cache of a shared beginning, of one sequence; None for an empty one."""
    if not tokens:
        return None
    cache = forward.new_cache(len(tokens))
    row = TreeRow(tokens, [])
    forward(collate([row], 0, forward.device), cache, noise=False)
    return cache


def _tree(question: Question, group: Group) -> TreeRow:
    return TreeRow(question.context, question.continuations, cached=group.shared, document=question.document)


def _alike(rows: dict[int, TreeRow], ensemble: Ensemble, budget: Budget) -> Iterator[list[int]]:
    """Rows of like size together, as many as the budget allows; longest first, so that memory runs out at once."""
    batch: list[int] = []
    width = 0
    for i in sorted(rows, key=lambda i: -_size(rows[i], ensemble)):
        width = max(width, _size(rows[i], ensemble))
        if batch and (width * (len(batch) + 1) > budget.tokens or len(batch) == budget.sequences):
            yield batch
            batch, width = [], _size(rows[i], ensemble)
        batch.append(i)
    yield batch


def _size(row: TreeRow, ensemble: Ensemble) -> int:
    """Tokens that go through the noisy layers."""
    noisy = len(row) if ensemble.own_history else len(row.wanted)
    return len(row) + noisy * (ensemble.n - 1)


def read_scores(ensemble: Ensemble, trees: list[TreeRow], logits: Iterable[Tensor]) -> list[Scores]:
    """The scores of each tree's continuations.

    Args:
        logits: [M, n, V] of the trees' wanted nodes, in any number of parts.

    Raises RoutingError where they are NaN.
    """
    places, targets = _targets(trees)
    picked, greedy = torch.empty(len(places)), torch.empty(0, dtype=torch.long)
    for logits_MnV in logits:
        done = len(greedy)
        here = ((places >= done) & (places < done + len(logits_MnV))).nonzero()[:, 0]
        device = logits_MnV.device
        wanted, target = (places[here] - done).to(device), targets[here].to(device)
        picked[here] = ensemble.score(logits_MnV, wanted, target).cpu()
        greedy = torch.cat([greedy, ensemble.greedy(logits_MnV).cpu()])
    if picked.isnan().any():
        raise RoutingError("The model's log-probabilities are NaN. Try dtype=bfloat16 or dtype=float32.")
    return _summed(trees, picked.tolist(), (greedy[places] == targets).tolist())


def _targets(trees: list[TreeRow]) -> tuple[Tensor, Tensor]:
    """For every token to score, continuation by continuation: (place among all wanted nodes, the token)."""
    places: list[int] = []
    tokens: list[int] = []
    wanted = 0
    for tree in trees:
        order = {node: place for place, node in enumerate(tree.wanted, wanted)}
        wanted += len(order)
        for path, continuation in zip(tree.paths, tree.continuations, strict=True):
            places += [order[node] for node in path]
            tokens += continuation
    return torch.tensor(places), torch.tensor(tokens)


def _slices(row: TreeRow, width: int, ensemble: Ensemble, limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive nodes of a long row, each slice with its ensemble rows within the limit (or a single node)."""
    wanted = set(row.wanted)
    start = size = 0
    for node in range(width):
        cost = ensemble.n if ensemble.own_history or node in wanted else 1
        if node > start and size + cost > limit:
            yield start, node
            start, size = node, 0
        size += cost
    yield start, width


def _summed(trees: list[TreeRow], picked: list[float], greedy: list[bool]) -> list[Scores]:
    """Each continuation's tokens together."""
    scores: list[Scores] = []
    start = 0
    for tree in trees:
        scores.append([])
        for continuation in tree.continuations:
            stop = start + len(continuation)
            scores[-1].append((math.fsum(picked[start:stop]), all(greedy[start:stop])))
            start = stop
    return scores
