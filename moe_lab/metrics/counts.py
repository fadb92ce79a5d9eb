"""How often experts are selected, alone and in pairs, by groups of documents.

G = groups of documents, P = phases, T = tokens, L = MoE layers, E = experts (of the layer with the most), K = experts
per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from moe_lab.metrics.routes import Read, Routes

PHASES = ("prefill", "decode")
"""Tokens of prompts; tokens of answers, generated or scored."""
LARGEST = 256 * 2**20
"""Bytes of pair counts up to which every document is a group of its own."""
LEAST_GROUPS = 50
TOKENS_AT_ONCE = 4096


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
    """Count every document as if it were read alone.

    A prompt that several of its requests share counts once for a document, the answer tokens of each request count.

    Args:
        documents: per document, the keys of its requests; all of them are in `routes.reads`.
        groups: into how many groups documents are dealt in turn; None: each its own, unless that took too much memory.
    """
    table, experts = routes.table(), [routes.experts[layer] for layer in routes.layers]
    L, E = len(experts), max(experts)
    size = len(PHASES) * L * E * E * 4
    G = min(len(documents), groups or max(LEAST_GROUPS, LARGEST // size))
    pairs_GPLEE = np.zeros((G, len(PHASES), L, E, E), dtype=np.int32)
    tokens_P = [0] * len(PHASES)
    for group in range(G):
        reads = [[read for key in keys for read in routes.reads[key]] for keys in documents[group::G]]
        for phase, names in enumerate((_prompts(reads), _answers(reads))):
            tokens_P[phase] += len(names)
            for start in range(0, len(names), TOKENS_AT_ONCE):
                index = table.of(names[start : start + TOKENS_AT_ONCE])
                pairs_GPLEE[group, phase] += pair_counts(index, E)
    return Counts(pairs_GPLEE, experts, tokens_P, len(documents))


def pair_counts(index: Sequence[np.ndarray], E: int) -> np.ndarray:
    """int32 [L, E, E]: tokens that take both experts; on the diagonal, that take the expert.

    Args:
        index: per layer the distinct experts of each token, [T, K].
    """
    chosen_LTE = torch.zeros(len(index), len(index[0]), E)
    for layer, index_TK in enumerate(index):
        chosen_LTE[layer].scatter_(-1, torch.from_numpy(index_TK.astype(np.int64)), 1.0)
    return (chosen_LTE.mT @ chosen_LTE).round().int().numpy()


def _prompts(reads: list[list[Read]]) -> np.ndarray:
    distinct = [{(len(r.prompt), int(r.prompt[-1])): r.prompt for r in document} for document in reads]
    return _joined([prompt for document in distinct for prompt in document.values()])


def _answers(reads: list[list[Read]]) -> np.ndarray:
    return _joined([read.answer for document in reads for read in document])


def _joined(names: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *names])
