"""64-bit names of tokens: hashes of a token together with all tokens before it.

A name depends on nothing else: not on the batch, the order, the padding or shared prefixes. Causal models route equal
names alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = tuple(map(np.uint64, (30, 27, 31)))


def token_names(ids: Sequence[int] | np.ndarray, first: int = 0) -> np.ndarray:
    """int64 [T]: a hash (SplitMix64) of each token and its position; positions are `first`, `first + 1`, ..."""
    positions = np.arange(first, first + len(ids), dtype=np.uint64)
    return token_names_at(ids, positions)


def token_names_at(ids: Sequence[int] | np.ndarray, positions: np.ndarray) -> np.ndarray:
    """int64 [T]: a hash of each token and its position."""
    z = _mixed(np.asarray(ids, dtype=np.uint64) + _GOLDEN) ^ positions.astype(np.uint64)
    return _mixed(z + _GOLDEN).view(np.int64)


def prefix_names(ids: Sequence[int]) -> np.ndarray:
    """int64 [T]: the name of each token together with all before it, the sum of their hashes."""
    return np.cumsum(token_names(ids))


def _mixed(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> _SHIFTS[0])) * _MIX_1
    z = (z ^ (z >> _SHIFTS[1])) * _MIX_2
    return z ^ (z >> _SHIFTS[2])
