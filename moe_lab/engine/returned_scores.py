"""The scores of `generate(return_dict_in_generate=True)`, kept while sequences are generated.

B = sequences, A = unfinished sequences, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moe_lab.engine.prefill import GenerationState


class KeptScores:
    """Scores of next tokens by sequence and step: an engine may generate the sequences of a batch one by one."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], Tensor] = {}

    def keep(self, scores_AV: Tensor, states: Sequence[GenerationState]) -> None:
        """Keep the scores by which the next token of each sequence is chosen."""
        for scores_V, state in zip(scores_AV, states, strict=True):
            self._rows[state.index, len(state.generated)] = scores_V.detach().clone()

    def steps(self, sequences: int, pad: int) -> tuple[Tensor, ...]:
        """One float32 [B, V] for each new token, as transformers returns them.

        A sequence that has ended has log-probability 0 at the padding token and -inf elsewhere, so that sums over a
        sequence are those of its own tokens.
        """
        ended_V = torch.full_like(next(iter(self._rows.values())), -torch.inf)
        ended_V[pad] = 0.0
        count = 1 + max(step for _, step in self._rows)
        return tuple(
            torch.stack([self._rows.get((b, step), ended_V) for b in range(sequences)])
            for step in range(count)
        )
