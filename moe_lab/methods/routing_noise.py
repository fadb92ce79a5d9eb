"""RoE's noise on the routers' choice (equation 1) while a model trains, with a temperature for each sequence.

T = tokens of a pass, B = its sequences, E = experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from moe_lab.routing.hook import Router, Routing
from moe_lab.routing.noise import NoisyTokens, gumbel_for_tokens


class Temperatures:
    """The temperature of each sequence of a training, uniform between 0 and the highest one.

    With `schedule` "constant" the highest temperature stays the same; with "linear" it falls to 0 at the last step.
    """

    def __init__(self, highest: float, schedule: str, *, steps: int, sequences: int, seed: int):
        self.falls, self.steps = schedule == "linear", steps
        drawn = np.random.default_rng([seed, sequences]).random(sequences, dtype=np.float32)
        self.drawn = torch.from_numpy(drawn) * highest

    def __call__(self, sequence_B: Tensor, step: int) -> Tensor:
        """float32 [B]: the temperatures of these sequences (numbered over the training) at an optimizer step."""
        share = 1 - step / max(1, self.steps - 1) if self.falls else 1.0
        return share * self.drawn[sequence_B.cpu()]


@dataclass(frozen=True)
class _Pass:
    tokens: NoisyTokens
    temperature_T: Tensor


class RoutingNoise:
    """A policy that chooses experts by scores + temperature x Gumbel noise, and weighs them by the clean scores.

    It changes only the passes inside `noisy`. The noise's key is (seed, sequence, position, layer, expert), so a
    resumed training draws the same noise, and so do several processes.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self._pass: _Pass | None = None

    @contextmanager
    def noisy(self, sequence_B: Tensor, length: int, temperature_B: Tensor) -> Iterator[None]:
        """Add noise to passes over these sequences, each of `length` tokens with padding on the right."""
        device, count = temperature_B.device, sequence_B.numel() * length
        zero_T = torch.zeros(count, dtype=torch.int64, device=device)
        tokens = NoisyTokens(
            index=torch.arange(count, device=device),
            document=sequence_B.to(device).repeat_interleave(length),
            repeat=zero_T,
            row=zero_T + 1,
            position=torch.arange(length, device=device).repeat(sequence_B.numel()),
        )
        self._pass = _Pass(tokens, temperature_B.repeat_interleave(length))
        try:
            yield
        finally:
            self._pass = None

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        if self._pass is None:
            return None
        tokens, logits_TE = self._pass.tokens, routing.logits_TE
        layer = torch.tensor([router.layer], device=logits_TE.device)
        with torch.no_grad():
            noise_TE = gumbel_for_tokens(
                *(self.seed, tokens.document, tokens.repeat, tokens.row, tokens.position),
                layer,
                logits_TE.shape[-1],
            )[0]
            noisy_TE = router.scores(logits_TE) + self._pass.temperature_T[:, None] * noise_TE
            index_TK = router.choose(noisy_TE, routing.index_TK.shape[-1])
        weights_TK = router.weights(logits_TE, index_TK).to(routing.weights_TK.dtype)
        return Routing(logits_TE, weights_TK, index_TK)
