"""Adaptive computation: the clean sample of a token decides how many routing samples the token takes.

M = logit positions, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MARGIN, ENTROPY = "margin", "entropy"
MEASURES = (MARGIN, ENTROPY)


def unsureness(logits_MV: Tensor) -> dict[str, Tensor]:
    """The measures of clean next-token distributions, each float32 [M].

    margin: the difference of the two largest probabilities. entropy: in nats.
    """
    probs_MV = logits_MV.float().softmax(dim=-1)
    best_M2 = probs_MV.topk(2, dim=-1).values
    return {MARGIN: best_M2[:, 0] - best_M2[:, 1], ENTROPY: torch.special.entr(probs_MV).sum(dim=-1)}


class Adaptive:
    """The number of routing samples by bands of a measure.

    Args:
        measure: "margin" or "entropy" (`unsureness`).
        bands: (bound, samples) of each band, the most unsure first. A token belongs to the first band whose bound it
            meets: a margin below it, or an entropy of at least it. Its samples are the first ones of the ensemble. A
            token of no band takes the clean sample alone.
    """

    def __init__(self, measure: str, bands: Sequence[tuple[float, int]]):
        self.measure, self.bands = measure, list(bands)
        self.tokens = [0] * (len(self.bands) + 1)
        """Tokens of each band so far, and behind them those of no band."""

    def samples_of(self, measures: dict[str, Tensor]) -> Tensor:
        """int64 [M]: the routing samples of each logit position, at least 1. The positions are counted in `tokens`."""
        value_M = measures[self.measure]
        band_M = torch.full_like(value_M, len(self.bands), dtype=torch.long)
        for band, (bound, _) in reversed(list(enumerate(self.bands))):
            band_M[value_M < bound if self.measure == MARGIN else value_M >= bound] = band
        counts = torch.bincount(band_M, minlength=len(self.tokens)).tolist()
        self.tokens = [so_far + count for so_far, count in zip(self.tokens, counts, strict=True)]
        return torch.tensor([*(samples for _, samples in self.bands), 1], device=band_M.device)[band_M]

    def uncounted(self) -> Adaptive:
        """The same bands, whose tokens are counted apart."""
        return Adaptive(self.measure, self.bands)
