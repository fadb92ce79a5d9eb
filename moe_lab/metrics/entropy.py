"""The entropy of counts."""

from __future__ import annotations

import numpy as np


def entropy_bits(counts: np.ndarray) -> np.ndarray:
    """Entropy in bits over the last axis; 0 where nothing was counted."""
    total = counts.sum(axis=-1, keepdims=True)
    share = counts / np.where(total > 0, total, 1)
    return -(share * np.log2(np.where(share > 0, share, 1.0))).sum(axis=-1)
