"""C3PO and RoE together: rows of Gumbel noise around optimized pathways. Beyond both papers.

N = questions, W = re-routed tokens of each, L = optimized MoE layers, E = experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moe_lab.engine.suffix.recorder import PromptSuffix
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.routing.noise import gumbel_for_tokens
from moe_lab.routing.remix import Remix


def rows_around(
    pathways: Pathways,
    tails: Sequence[PromptSuffix],
    documents: Sequence[int],
    *,
    n: int,
    temperature: float,
    seed: int,
) -> list[Remix]:
    """n routings of N questions: the pathways as they are, then n - 1 that choose experts with noise.

    As in RoE (equation 1), but at the re-routed tokens and layers alone: top-k of the scores plus `temperature` times
    keyed Gumbel noise, weighed as without it.

    Args:
        documents: the noise's key of each question (`document_key`).
    """
    return [pathways.remix("topk")] + [
        pathways.noisy({layer: temperature * noise for layer, noise in noises.items()})
        for noises in (_noise(pathways, tails, documents, row, seed) for row in range(1, n))
    ]


def _noise(
    pathways: Pathways, tails: Sequence[PromptSuffix], documents: Sequence[int], row: int, seed: int
) -> dict[int, Tensor]:
    """[N, W, E] of each optimized layer."""
    N, W, _, E = pathways.clean_NWLE.shape
    document_T = torch.tensor(documents).repeat_interleave(W)
    position_T = torch.tensor([tail.position + w for tail in tails for w in range(W)])
    noise_LTE = gumbel_for_tokens(
        seed,
        document_T,
        torch.zeros_like(document_T),
        torch.full_like(document_T, row),
        position_T,
        torch.tensor(pathways.layers),
        E,
    )
    return dict(zip(pathways.layers, noise_LTE.unflatten(1, (N, W)).unbind(0), strict=True))
