"""The second phase of two-phase scoring in chunks: which logit positions of which requests go through one pass.

M = logit positions of a request, C = those of a chunk, T = cached slots, D = hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.scoring.scoring import Budget
from moe_lab.engine.scoring.token_scores import TreeScores

CHUNK_SAMPLES = 128
"""Noisy samples of one request in a chunk. More samples cost attention scores between samples, which are masked; fewer
cost more copies of the prefix (measured behind 100 to 900 tokens: 128 and 256 are best)."""


@dataclass(frozen=True)
class CachedActivations:
    """Activations of the plain model for one request and its noisy samples."""

    scores: TreeScores
    """Of the plain model."""
    measures: dict[str, Tensor]
    """`unsureness` of the plain model, each [M]."""
    kv_cache: KVCache
    """Keys and values of the context and the continuations, of the layers from the fork layer on."""
    fork_MD: Tensor
    """Hidden states at the logit positions as the fork layer takes them."""
    final_MD: Tensor
    """The same as the output head takes them."""
    visible_MT: Tensor
    """bool: the cached slots that the samples of a logit position attend to: all that its token does, but its own."""
    position_M: Tensor
    noise_key: int

    @property
    def nbytes(self) -> int:
        tensors = (self.fork_MD, self.final_MD, self.visible_MT, self.position_M, *self.measures.values())
        return self.kv_cache.nbytes + sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True)
class Chunk:
    """Logit positions of a request in one pass."""

    request: CachedActivations
    at_C: Tensor
    """int64: the positions among the request's."""
    place_C: Tensor
    """int64: the same among those of all requests that are scored together."""


def together(
    activations: dict[int, CachedActivations], samples: dict[int, Tensor], budget: Budget
) -> Iterator[list[int]]:
    """Requests whose samples go through one pass, or one whose samples take several; longest first."""
    batch: list[int] = []
    size = 0
    for i in sorted(activations, key=lambda i: -activations[i].kv_cache.length):
        own = int((samples[i] - 1).sum())
        if batch and (size + own > budget.tokens or len(batch) == budget.sequences):
            yield batch
            batch, size = [], 0
        batch.append(i)
        size += own
    if batch:
        yield batch


def passes(
    requests: Sequence[tuple[CachedActivations, Tensor]], n: int, budget: Budget
) -> Iterator[list[Chunk]]:
    """The logit positions with n samples in chunks of at most `CHUNK_SAMPLES`, each pass within the budget.

    Args:
        requests: each with the samples of its logit positions.
    """
    most = max(1, min(CHUNK_SAMPLES, budget.tokens) // (n - 1))
    at_once = max(1, budget.tokens // (most * (n - 1)))
    chunks, first = [], 0
    for request, samples_M in requests:
        for at_C in (samples_M == n).nonzero()[:, 0].split(most):
            if len(at_C):
                chunks.append(Chunk(request, at_C, first + at_C))
        first += len(samples_M)
    for start in range(0, len(chunks), at_once):
        yield chunks[start : start + at_once]
