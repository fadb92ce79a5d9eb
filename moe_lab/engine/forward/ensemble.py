"""n routings of one token as n rows, and their answers as one distribution.

M = wanted tokens, n = rows of each (row 0 is clean), V = vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from moe_lab.routing import GumbelTopK


@dataclass(frozen=True)
class Ensemble:
    """How many rows a wanted token has, how they are routed and averaged. `Ensemble()` is the plain model."""

    n: int = 1
    routing: GumbelTopK | None = None
    first_noisy: int = 0
    """The first MoE layer whose routing may differ between rows; all layers before it are computed once."""
    aggregate: str = "probabilities"
    include_clean: bool = True
    cache: str = "clean"
    """Whose history rows read: "clean", all one without noise; "standard", each its own; "none", each its own, computed
    anew for every generated token."""
    prefill: str = "noisy"
    """Rows with histories of their own: whether prompts are read with noise, or "clean" up to their last token."""

    @property
    def own_history(self) -> bool:
        """Whether each row has keys and values of its own."""
        return self.n > 1 and self.cache != "clean"

    @property
    def noiseless(self) -> bool:
        """Whether all rows are copies of the clean one."""
        return self.n == 1 or self.routing is None or not any(self.routing.temperatures)

    def next_scores(self, logits_MnV: Tensor) -> Tensor:
        """float32 [M, V]: what decoding and logits processors act on: the model's own logits where there is one row,
        else the log of the averaged distribution (-inf where its probability is below float32)."""
        if self.n == 1:
            return logits_MnV[:, 0].float()
        if self._one_row:
            return self._merged(logits_MnV).log_softmax(dim=-1)
        return self._mean_probs(logits_MnV).log()

    def greedy(self, logits_MnV: Tensor) -> Tensor:
        """int64 [M]: the most probable token."""
        scores = self._merged(logits_MnV) if self._one_row else self._mean_probs(logits_MnV)
        return scores.argmax(dim=-1)

    def score(self, logits_MnV: Tensor, wanted_P: Tensor, target_P: Tensor) -> Tensor:
        """float32 [P]: log-probability of token `target` after wanted token `wanted`, exact for any probability."""
        if self._one_row:
            logits_MV = self._merged(logits_MnV)
            return logits_MV[wanted_P, target_P] - logits_MV.logsumexp(dim=-1)[wanted_P]
        rows = self._averaged_rows(logits_MnV)
        log_probs_Pn = rows[wanted_P, :, target_P] - rows.logsumexp(dim=-1)[wanted_P]
        return log_probs_Pn.logsumexp(dim=-1) - math.log(rows.shape[1])

    @property
    def _one_row(self) -> bool:
        """Whether one softmax says it all: a single row, or rows merged before it."""
        return self.n == 1 or self.aggregate == "logits"

    def _averaged_rows(self, logits_MnV: Tensor) -> Tensor:
        return logits_MnV.float() if self.include_clean else logits_MnV[:, 1:].float()

    def _merged(self, logits_MnV: Tensor) -> Tensor:
        return logits_MnV[:, 0].float() if self.n == 1 else self._averaged_rows(logits_MnV).mean(dim=1)

    def _mean_probs(self, logits_MnV: Tensor) -> Tensor:
        return self._averaged_rows(logits_MnV).softmax(dim=-1).mean(dim=1)
