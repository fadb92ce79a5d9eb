"""n routings of one token as n rows, and their answers as one distribution.

M = wanted tokens, n = rows of each (row 0 is clean), V = vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
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


@dataclass(frozen=True)
class Split:
    """Where the rows of a pass come from: S clean tokens become S + M (n - 1) (rows of short sequences are padding).

    R = S + noisy slots of the sequence with the most wanted tokens.
    """

    source_BR: Tensor
    """int64: the clean token each row is a copy of."""
    visible_BRK: Tensor
    """bool [B, R, T + R]."""
    noisy: Tensor
    """int64 [M (n - 1)]: flat indices into B x R of the noisy rows, wanted token by wanted token."""
    logits_at: Tensor
    """int64 [M, n]: flat indices into B x R of each wanted token's rows, the clean one first."""


def split_rows(wanted_M: Tensor, visible_BSK: Tensor, n: int) -> Split:
    """Give every wanted token n - 1 noisy rows. Each sees what its token sees of others, and itself."""
    B, S, K = visible_BSK.shape
    device = wanted_M.device
    sequence_M, token_M = wanted_M // S, wanted_M % S
    per_sequence_B = torch.bincount(sequence_M, minlength=B)
    first_B = per_sequence_B.cumsum(0) - per_sequence_B
    order_M = torch.arange(len(wanted_M), device=device) - first_B[sequence_M]
    slots = int(per_sequence_B.max()) * (n - 1)
    R = S + slots
    slot_Mn = S + order_M[:, None] * (n - 1) + torch.arange(n - 1, device=device)
    source_BR = torch.arange(S, device=device).expand(B, S)
    source_BR = torch.cat([source_BR, torch.zeros(B, slots, dtype=torch.long, device=device)], dim=1)
    source_BR[sequence_M[:, None], slot_Mn] = token_M[:, None].expand_as(slot_Mn)

    visible_BRK = torch.zeros(B, R, K + slots, dtype=torch.bool, device=device)
    visible_BRK[:, :S, :K] = visible_BSK
    others_MK = visible_BSK[sequence_M, token_M]
    others_MK[torch.arange(len(wanted_M), device=device), K - S + token_M] = False
    visible_BRK[sequence_M[:, None], slot_Mn, :K] = others_MK[:, None]
    slot = torch.arange(slots, device=device)
    visible_BRK[:, S + slot, K + slot] = True

    rows_Mn = sequence_M[:, None] * R + torch.cat([token_M[:, None], slot_Mn], dim=1)
    return Split(source_BR, visible_BRK, rows_Mn[:, 1:].reshape(-1), rows_Mn)
