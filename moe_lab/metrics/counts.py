"""How often experts are selected, alone and in pairs, by groups of documents.

G = groups of documents, P = phases, T = tokens, L = MoE layers, E = experts (of the layer with the most), K = experts
per token, N = parts of a batch, W = tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from moe_lab.metrics.routes import Read, Routes

PHASES = ("prefill", "decode")
"""Prompt tokens, and answer tokens, generated or scored."""
LARGEST = 256 * 2**20
"""Bytes of pair counts; as long as they suffice, every document is a group of its own."""
LEAST_GROUPS = 50
TOKENS_AT_ONCE = 4096

Part = tuple[int, np.ndarray]
"""A group, and the names of its tokens."""


@dataclass(frozen=True)
class Counts:
    """Selections of routed experts. A pair of experts is counted once per token, in both orders."""

    pairs_GPLEE: np.ndarray
    """int32; the diagonal holds the selections of single experts."""
    experts: list[int]
    """Experts of each layer."""
    tokens_P: list[int]
    documents: int

    @property
    def selections_GPLE(self) -> np.ndarray:
        return np.diagonal(self.pairs_GPLEE, axis1=-2, axis2=-1)


def count(routes: Routes, documents: Sequence[Sequence[str]], groups: int | None = None) -> Counts:
    """Count the selections of every document.

    The prompt that requests of a document share counts once; the answer tokens of each request count.

    Args:
        documents: the keys of each document's requests, all of them in `routes.reads`.
        groups: number of groups, to which documents are dealt in turn; None: a group per document, as memory allows.
    """
    table, experts = routes.table(), [routes.experts[layer] for layer in routes.layers]
    L, E = len(experts), max(experts)
    size = len(PHASES) * L * E * E * 4
    G = min(len(documents), groups or max(LEAST_GROUPS, LARGEST // size))
    pairs_GPLEE = np.zeros((G, len(PHASES), L, E, E), dtype=np.int32)
    tokens_P = [0] * len(PHASES)
    names = _names(routes, documents, G)
    for phase, by_group in enumerate(names):
        tokens_P[phase] = sum(map(len, by_group))
        for batch in _batches(by_group):
            counts_NLEE = pair_counts(table.of(np.concatenate([part for _, part in batch])), batch, E)
            np.add.at(pairs_GPLEE[:, phase], [group for group, _ in batch], counts_NLEE)
    return Counts(pairs_GPLEE, experts, tokens_P, len(documents))


def pair_counts(index: Sequence[np.ndarray], parts: Sequence[Part], E: int) -> np.ndarray:
    """int32 [N, L, E, E]: tokens of each part that select both experts; on the diagonal, that select the expert.

    Args:
        index: the distinct experts of each token by layer, [T, K], part by part.
    """
    W = max(len(names) for _, names in parts)
    place_T = torch.from_numpy(
        np.concatenate([n * W + np.arange(len(part)) for n, (_, part) in enumerate(parts)])
    )
    chosen = torch.zeros(len(index), len(parts) * W, E)
    for chosen_TE, index_TK in zip(chosen, index, strict=True):
        chosen_TE[place_T[:, None], torch.from_numpy(index_TK.astype(np.int64))] = 1.0
    chosen_LNWE = chosen.view(len(index), len(parts), W, E)
    return (chosen_LNWE.mT @ chosen_LNWE).round().int().transpose(0, 1).numpy()


def _names(routes: Routes, documents: Sequence[Sequence[str]], G: int) -> list[list[np.ndarray]]:
    """The counted tokens by phase and group."""
    names: list[list[np.ndarray]] = [[] for _ in PHASES]
    for group in range(G):
        reads = [[read for key in keys for read in routes.reads[key]] for keys in documents[group::G]]
        names[0].append(_prompts(reads))
        names[1].append(_answers(reads))
    return names


def _batches(by_group: list[np.ndarray]) -> Iterator[list[Part]]:
    """Batches of parts of similar length; a batch has at most `TOKENS_AT_ONCE` tokens, padding included."""
    step = TOKENS_AT_ONCE
    parts = [(g, names[i : i + step]) for g, names in enumerate(by_group) for i in range(0, len(names), step)]
    batch: list[Part] = []
    for part in sorted(parts, key=lambda part: -len(part[1])):
        if batch and len(batch[0][1]) * (len(batch) + 1) > step:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def _prompts(reads: list[list[Read]]) -> np.ndarray:
    distinct = [{(len(r.prompt), int(r.prompt[-1])): r.prompt for r in document} for document in reads]
    return _joined([prompt for document in distinct for prompt in document.values()])


def _answers(reads: list[list[Read]]) -> np.ndarray:
    return _joined([read.answer for document in reads for read in document])


def _joined(names: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *names])
