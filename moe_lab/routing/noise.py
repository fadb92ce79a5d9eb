"""Keyed Gumbel noise.

A value is a function of (seed, document, repeat, row, layer, position, expert). It does not depend on the batch, the
order, the padding or the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices that have no float64. Their noise is computed in float32 (`_gumbel_in_float32`)."""

_GOLDEN = (
    -7046029254386353131
)  # 0x9E3779B97F4A7C15, the odd integer nearest to 2**64 / golden ratio, as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def document_key(token_ids: Sequence[int]) -> int:
    """64-bit key of a prompt: BLAKE2b of its token ids as little-endian int64, read as a signed integer."""
    digest = blake2b(np.asarray(token_ids, dtype="<i8").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def gumbel(
    seed: int,
    document: int,
    repeat: int,
    row: int,
    layer: int,
    positions: Sequence[int] | Tensor,
    n_experts: int,
    antithetic: bool = False,
) -> Tensor:
    """Keyed Gumbel(0, 1) noise, float32 [positions, n_experts] (equation 1 of the RoE paper).

    Args:
        seed: the run's seed.
        document: `document_key` of the prompt (the context when scoring, the window when rolling).
        repeat: 0, 1, ... for several answers to one prompt.
        row: 1 ... n-1; row 0 is the clean one and has no noise.
        layer: number of the MoE layer, from 0.
        positions: indices of the input tokens in the unpadded sequence.
        n_experts: number of experts of the layer.
        antithetic: whether rows 2j-1 and 2j share their uniform number: row 2j has the noise `-log(-log(1 - u))` with
            the u of row 2j-1. Odd rows do not change.

    The hash works on 64-bit integers that wrap around. With `mix` the finalizer of SplitMix64
    (`z ^= z >>> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >>> 27; z *= 0x94D049BB133111EB; z ^= z >>> 31`), it starts at 0
    and takes in seed, document, repeat, row, layer, position and expert, in this order, by
    `h = mix((h ^ value) + 0x9E3779B97F4A7C15)`. The upper 53 bits k of the result give the uniform number
    `u = (k + 0.5) / 2**53`, and the noise is `-log(-log(u))`, computed in float64. Where the device has none, it is
    computed in float32 and differs by at most 3e-7 * max(1, |noise|).
    """
    position_T = torch.as_tensor(positions, dtype=torch.int64)
    document_T, repeat_T, row_T = (torch.full_like(position_T, value) for value in (document, repeat, row))
    layer_L = torch.tensor([layer], device=position_T.device)
    return gumbel_for_tokens(seed, document_T, repeat_T, row_T, position_T, layer_L, n_experts, antithetic)[0]


def gumbel_for_tokens(
    seed: int,
    document_T: Tensor,
    repeat_T: Tensor,
    row_T: Tensor,
    position_T: Tensor,
    layer_L: Tensor,
    n_experts: int,
    antithetic: bool = False,
) -> Tensor:
    """`gumbel` for T tokens, each with its own key, and L layers at once: float32 [L, T, n_experts]."""
    mirrored_T = (row_T > 0) & (row_T % 2 == 0) & antithetic
    row_T = row_T - mirrored_T.long()
    hash_T = _absorb(torch.zeros_like(document_T), torch.full_like(document_T, seed))
    for value_T in (document_T, repeat_T, row_T):
        hash_T = _absorb(hash_T, value_T)
    hash_LT = _absorb(_absorb(hash_T[None], layer_L[:, None]), position_T[None])
    expert_E = torch.arange(n_experts, device=document_T.device)
    k_LTE = _shift(_absorb(hash_LT[..., None], expert_E), 11)
    k_LTE = torch.where(mirrored_T[:, None], 2**53 - 1 - k_LTE, k_LTE)  # the k of 1 - u
    if document_T.device.type in WITHOUT_FLOAT64:
        return _gumbel_in_float32(k_LTE)
    uniform_LTE = (k_LTE.double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform_LTE)).float()


def _gumbel_in_float32(k: Tensor) -> Tensor:
    """`-log(-log(u))` of `u = (k + 0.5) / 2**53` in float32 alone, to 3e-7 * max(1, |value|).

    Where u is above 1/2, float32 has no digits left for it. There 1 - u is computed, whose k is 2**53 - 1 - k.
    """
    small = k < 2**52
    part = (torch.where(small, k, 2**53 - 1 - k).float() + 0.5) * 2.0**-53
    return -torch.log(torch.where(small, -torch.log(part), -torch.log1p(-part)))


def _absorb(hash_: Tensor, value: Tensor) -> Tensor:
    z = (hash_ ^ value) + _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's own keeps the sign)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
