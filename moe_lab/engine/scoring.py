"""Log-likelihoods of continuations: one pass per batch of contexts, with all their continuations hanging off them.

M = wanted tokens, V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moe_lab.engine.cache import RowCache
from moe_lab.engine.prefixes import Group, group_by_prefix
from moe_lab.engine.rows import RowForward
from moe_lab.engine.tokens import TreeRow, collate
from moe_lab.errors import RoutingError


@dataclass(frozen=True)
class Question:
    """A context and the continuations to score after it, as token ids; `document` is the key of its noise."""

    context: Sequence[int]
    continuations: Sequence[Sequence[int]]
    document: int


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
    for group in group_by_prefix([question.context for question in questions]):
        past = shared_past(forward, questions[group.members[0]].context[: group.shared])
        rows = {i: _tree(questions[i], group) for i in group.members}
        for batch in _batches(rows, forward.ensemble.n, budget):
            trees = [rows[i] for i in batch]
            outcome = _forward(forward, trees, past, budget)
            for i, scores in zip(batch, _read(trees, [questions[i] for i in batch], outcome), strict=True):
                on_scores(i, scores)


def shared_past(forward: RowForward, tokens: Sequence[int]) -> RowCache | None:
    """The cache of a shared beginning, of one sequence; None for an empty one."""
    if not tokens:
        return None
    cache = forward.new_cache(len(tokens))
    row = TreeRow(tokens, [])
    forward(collate([row], 0, forward.device), cache)
    return cache


def _tree(question: Question, group: Group) -> TreeRow:
    return TreeRow(question.context, question.continuations, cached=group.shared, document=question.document)


def _batches(rows: dict[int, TreeRow], n: int, budget: Budget) -> Iterator[list[int]]:
    """Rows of like size together, as many as the budget allows; longest first, so that memory runs out at once."""
    batch: list[int] = []
    width = 0
    for i in sorted(rows, key=lambda i: -_size(rows[i], n)):
        width = max(width, _size(rows[i], n))
        if batch and (width * (len(batch) + 1) > budget.tokens or len(batch) == budget.sequences):
            yield batch
            batch, width = [], _size(rows[i], n)
        batch.append(i)
    yield batch


def _size(row: TreeRow, n: int) -> int:
    return len(row) + len(row.wanted) * (n - 1)


def _forward(
    forward: RowForward, trees: list[TreeRow], past: RowCache | None, budget: Budget
) -> tuple[list[float], list[int]]:
    """(log-probability of each target, greedy token after each wanted node) of all trees, in passes of the budget."""
    length = past.length if past else 0
    width = max(len(tree) for tree in trees)
    capacity = length + max(_size(tree, forward.ensemble.n) for tree in trees)
    cache = past.expanded(len(trees), capacity) if past else forward.new_cache(capacity)
    slices = [(0, width)]
    if len(trees) == 1:
        slices = list(_slices(trees[0], width, forward.ensemble.n, budget.tokens))
    places, targets = _targets(trees)
    picked, greedy = torch.empty(len(places)), torch.empty(0, dtype=torch.long)
    for start, stop in slices:
        tokens = collate(trees, length + start, forward.device, start=start, stop=stop)
        logits_MnV = forward(tokens, cache, counted=sum(map(len, trees)) if len(slices) == 1 else None)
        done = len(greedy)
        here = ((places >= done) & (places < done + len(logits_MnV))).nonzero()[:, 0]
        wanted, target = (places[here] - done).to(forward.device), targets[here].to(forward.device)
        picked[here] = forward.ensemble.score(logits_MnV, wanted, target).cpu()
        greedy = torch.cat([greedy, forward.ensemble.greedy(logits_MnV).cpu()])
    if picked.isnan().any():
        raise RoutingError("The model's log-probabilities are NaN. Try dtype=bfloat16 or dtype=float32.")
    return picked.tolist(), greedy.tolist()


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


def _slices(row: TreeRow, width: int, n: int, limit: int) -> Iterator[tuple[int, int]]:
    """Consecutive nodes of a long row, each slice with its ensemble rows within the limit (or a single node)."""
    wanted = set(row.wanted)
    start = size = 0
    for node in range(width):
        cost = n if node in wanted else 1
        if node > start and size + cost > limit:
            yield start, node
            start, size = node, 0
        size += cost
    yield start, width


def _read(
    trees: list[TreeRow], questions: list[Question], outcome: tuple[list[float], list[int]]
) -> Iterator[Scores]:
    """Sum each continuation's tokens, and compare them with the greedy ones."""
    picked, greedy = outcome
    places = _targets(trees)[0].tolist()
    start = 0
    for question in questions:
        scores = []
        for continuation in question.continuations:
            stop = start + len(continuation)
            is_greedy = all(
                greedy[p] == token for p, token in zip(places[start:stop], continuation, strict=True)
            )
            scores.append((math.fsum(picked[start:stop]), is_greedy))
            start = stop
        yield scores
