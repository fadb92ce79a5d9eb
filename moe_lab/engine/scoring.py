"""Log-likelihoods of continuations: one pass per batch of contexts, with all their continuations hanging off them.

M = wanted tokens, V = vocabulary.
"""

from __future__ import annotations

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
    forward: RowForward, questions: Sequence[Question], budget: Budget, on_scores: Callable[[int, Scores], None]
) -> None:
    """Score all questions; `on_scores(index, scores)` is called as soon as a question is done, in any order."""
    for group in group_by_prefix([question.context for question in questions]):
        past = _prefix(forward, questions[group.members[0]].context[: group.shared])
        rows = {i: _tree(questions[i], group) for i in group.members}
        for batch in _batches(rows, forward.ensemble.n, budget):
            trees = [rows[i] for i in batch]
            log_probs_MV = _forward(forward, trees, past, budget)
            for i, scores in zip(batch, _read(trees, [questions[i] for i in batch], log_probs_MV), strict=True):
                on_scores(i, scores)


def _prefix(forward: RowForward, tokens: Sequence[int]) -> RowCache | None:
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


def _forward(forward: RowForward, trees: list[TreeRow], past: RowCache | None, budget: Budget) -> Tensor:
    """Log-probabilities [M, V] of the wanted nodes of all trees, in passes of at most the budget's size."""
    length = past.length if past else 0
    width = max(len(tree) for tree in trees)
    capacity = length + max(_size(tree, forward.ensemble.n) for tree in trees)
    cache = past.expanded(len(trees), capacity) if past else forward.new_cache(capacity)
    if len(trees) > 1 or _size(trees[0], forward.ensemble.n) <= budget.tokens:
        tokens = collate(trees, length, forward.device)
        return forward(tokens, cache, counted=sum(map(len, trees)))
    parts = []
    for start, stop in _slices(trees[0], width, forward.ensemble.n, budget.tokens):
        tokens = collate(trees, length + start, forward.device, start=start, stop=stop)
        parts.append(forward(tokens, cache))
    return torch.cat(parts)


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


def _read(trees: list[TreeRow], questions: list[Question], log_probs_MV: Tensor) -> Iterator[Scores]:
    """Pick each continuation's tokens out of the distributions of the wanted nodes."""
    greedy_M = log_probs_MV.argmax(dim=-1).tolist()
    places: list[int] = []
    targets: list[int] = []
    offset = 0
    for tree, question in zip(trees, questions, strict=True):
        order = {node: offset + place for place, node in enumerate(tree.wanted)}
        offset += len(order)
        for path, continuation in zip(tree.paths, question.continuations, strict=True):
            places += [order[node] for node in path]
            targets += continuation
    device = log_probs_MV.device
    picked = log_probs_MV[torch.tensor(places, device=device), torch.tensor(targets, device=device)].cpu()
    if picked.isnan().any():
        raise RoutingError("The model's log-probabilities are NaN. Try dtype=bfloat16 or dtype=float32.")
    start = 0
    for question in questions:
        scores = []
        for continuation in question.continuations:
            stop = start + len(continuation)
            greedy = all(greedy_M[place] == token for place, token in zip(places[start:stop], continuation, strict=True))
            scores.append((float(picked[start:stop].sum()), greedy))
            start = stop
        yield scores
