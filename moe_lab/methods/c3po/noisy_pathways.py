"""C3PO combined with RoE: routing samples with Gumbel noise around optimized pathways. Not in either paper.

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


def samples_around(
    pathways: Pathways,
    suffixes: Sequence[PromptSuffix],
    noise_keys: Sequence[int],
    *,
    n: int,
    temperature: float,
    seed: int,
) -> list[Remix]:
    """n routing samples of N questions: the pathways themselves, then n - 1 samples that choose experts with noise.

    The noise is that of RoE (equation 1) at the re-routed tokens and layers only: top-k of the scores plus
    `temperature` times keyed Gumbel noise. The weights are those without noise.

    Args:
        noise_keys: `document_key` of each question.
    """
    return [pathways.remix("topk")] + [
        pathways.noisy({layer: temperature * noise for layer, noise in noises.items()})
        for noises in (_noise(pathways, suffixes, noise_keys, sample, seed) for sample in range(1, n))
    ]


def _noise(
    pathways: Pathways, suffixes: Sequence[PromptSuffix], noise_keys: Sequence[int], sample: int, seed: int
) -> dict[int, Tensor]:
    """[N, W, E] of each optimized layer."""
    N, W, _, E = pathways.clean_NWLE.shape
    key_T = torch.tensor(noise_keys).repeat_interleave(W)
    position_T = torch.tensor([suffix.position + w for suffix in suffixes for w in range(W)])
    noise_LTE = gumbel_for_tokens(
        seed,
        key_T,
        torch.zeros_like(key_T),
        torch.full_like(key_T, sample),
        position_T,
        torch.tensor(pathways.layers),
        E,
    )
    return dict(zip(pathways.layers, noise_LTE.unflatten(1, (N, W)).unbind(0), strict=True))
