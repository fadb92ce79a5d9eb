"""The routers of a model in training: noise on their choice, and what the regularizers read.

T = tokens of a pass, E = experts, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from moe_lab.models.designs.routers import UnitTopKRouter
from moe_lab.routing.gumbel_top_k import NoisyTokens
from moe_lab.routing.hook import Router, Routing, find_routers, routed, why_fixed
from moe_lab.routing.noise import gumbel_for_tokens


@dataclass(frozen=True)
class Decisions:
    """A layer's decisions in one pass."""

    logits_TE: Tensor
    index_TK: Tensor


class TrainingRouting:
    """A policy that keeps every layer's decisions of a pass, and routes with noise first where a pass asks for it.

    The noise is RoE's (equation 1): experts are chosen by scores + temperature x Gumbel noise, and weighed by the clean
    scores. Its key is (seed, row, position, layer, expert), so a resumed training draws the same.
    """

    def __init__(self, seed: int):
        self.seed = seed
        self.layers: list[Decisions] = []
        """Of the last pass; empty for routers that make no decision of a token (expert choice)."""
        self._tokens: NoisyTokens | None = None
        self._temperature_T: Tensor | None = None

    def begin(self, row_B: Tensor, length: int, temperature_B: Tensor | None) -> None:
        """Announce a pass over rows [B] of `length` tokens; `temperature_B` is None for no noise."""
        self.layers = []
        self._temperature_T = None
        if temperature_B is None:
            return
        device, count = row_B.device, row_B.numel() * length
        zero_T = torch.zeros(count, dtype=torch.int64, device=device)
        position_T = torch.arange(length, device=device).repeat(row_B.numel())
        self._temperature_T = temperature_B.to(device).repeat_interleave(length)
        self._tokens = NoisyTokens(
            index=torch.arange(count, device=device),
            document=row_B.repeat_interleave(length),
            repeat=zero_T,
            row=zero_T + 1,
            position=position_T,
        )

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        noisy = None if self._temperature_T is None else self._with_noise(router, routing)
        decided = noisy or routing
        self.layers.append(Decisions(decided.logits_TE, decided.index_TK))
        return noisy

    def observe(self, module: nn.Module, args: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
        """A forward hook that keeps the decisions of a router as they are."""
        self.layers.append(Decisions(output[0], output[2]))

    def _with_noise(self, router: Router, routing: Routing) -> Routing:
        tokens, logits_TE = self._tokens, routing.logits_TE
        assert tokens is not None and self._temperature_T is not None
        layer = torch.tensor([router.layer], device=logits_TE.device)
        with torch.no_grad():
            noise_TE = gumbel_for_tokens(
                *(self.seed, tokens.document, tokens.repeat, tokens.row, tokens.position),
                layer,
                logits_TE.shape[-1],
            )[0]
            noisy_TE = router.scores(logits_TE) + self._temperature_T[:, None] * noise_TE
            index_TK = router.choose(noisy_TE, routing.index_TK.shape[-1])
        weights_TK = router.weights(logits_TE, index_TK).to(routing.weights_TK.dtype)
        return Routing(logits_TE, weights_TK, index_TK)


def temperatures(seed: int, rows: int, highest: float) -> Tensor:
    """float32 [rows]: the temperature of each row of a training, uniform between 0 and `highest`."""
    drawn = np.random.default_rng([seed, rows]).random(rows, dtype=np.float32)
    return torch.from_numpy(drawn) * highest


@contextmanager
def training_routing(model: nn.Module, seed: int) -> Iterator[TrainingRouting]:
    """Install the policy on a model with routers of single tokens.

    Routers of words and sentences are only observed. Dense models and expert choice have no decision of a token.
    """
    routing = TrainingRouting(seed)
    if find_routers(model) and not why_fixed(model):
        with routed(model, routing):
            yield routing
        return
    units = [module for module in model.modules() if isinstance(module, UnitTopKRouter)]
    handles = [unit.register_forward_hook(routing.observe) for unit in units]
    try:
        yield routing
    finally:
        for handle in handles:
            handle.remove()
