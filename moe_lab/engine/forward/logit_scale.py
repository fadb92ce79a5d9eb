"""The logit scale: one number by which all logits are multiplied before the softmax, 1 / softmax temperature.

`ScaleSweep` finds the best one in one pass over the texts, since the logits of a token are the same for all scales.

M = logit positions, P = scored tokens, S = scales, V = vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEP, STEPS = 1.02, 70
"""The scales are STEP ** -STEPS ... STEP ** STEPS: 0.25 to 4."""
SCALES = torch.tensor([STEP**power for power in range(-STEPS, STEPS + 1)], dtype=torch.float64)


class ScaleSweep:
    """Sums of log-likelihoods at each of `SCALES`, over all tokens that `add` gets."""

    def __init__(self) -> None:
        self.totals_S = torch.zeros(len(SCALES), dtype=torch.float64)
        self.tokens = 0

    def add(self, logits_MV: Tensor, at_P: Tensor, target_P: Tensor) -> None:
        """Count the tokens `target` after the logit positions `at`; `logits` are float32, of any scale."""
        chosen_P = logits_MV[at_P, target_P]
        for place, scale in enumerate(SCALES.tolist()):
            norm_M = (scale * logits_MV).logsumexp(dim=-1)
            self.totals_S[place] += float((scale * chosen_P - norm_M[at_P]).double().sum())
        self.tokens += len(target_P)

    def best(self) -> tuple[float, float]:
        """(scale, mean negative log-likelihood per token in nats) at the most likely of `SCALES`."""
        place = int(self.totals_S.argmax())
        return float(SCALES[place]), -float(self.totals_S[place]) / self.tokens


def at_bound(scale: float) -> bool:
    """Whether a scale is the smallest or the largest one of `SCALES`: the best may lie beyond it."""
    return not float(SCALES[0]) < scale < float(SCALES[-1])
