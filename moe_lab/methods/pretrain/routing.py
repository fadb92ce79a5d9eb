"""The routing of a training: optional noise on the routers' choice,
and the decisions that regularizers read.

T = tokens of a pass, B = its rows, E = experts, K = experts per token, L = MoE layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moe_lab.models.designs.routers import DesignRouter
from moe_lab.routing import Policy, Router, Routing, find_routers, routed
from moe_lab.routing.hook import why_fixed
from moe_lab.routing.noise import gumbel_for_tokens
from moe_lab.routing.samples import NoisyTokens, SamplePolicy, noisy_choice, with_experts


class RoutingNoise(SamplePolicy):
    """RoE's noise on the routers' choice (equation 1) while a model trains,
    with a temperature for each row.

    This policy chooses experts by scores + temperature x Gumbel noise, and weighs them by the clean
    scores. It changes only the passes inside `noisy`. The key of the noise is (seed, row, position,
    layer, expert), so a resumed training draws the same noise, and several processes draw the same
    noise as one.

    Args:
        temperatures: float32, of each row of the training.
    """

    def __init__(self, seed: int, temperatures: Tensor):
        super().__init__()
        self.seed = seed
        self.temperatures = temperatures
        self._temperature_T = temperatures[:0]
        """Of the tokens of the pass."""
        self.expect(None)

    @classmethod
    def of(cls, seed: int, highest: float, rows: int) -> RoutingNoise | None:
        """With temperatures that are uniform between 0 and the highest one; None if that is 0."""
        if not highest:
            return None
        drawn = np.random.default_rng([seed, rows]).random(rows, dtype=np.float32)
        return cls(seed, torch.from_numpy(drawn) * highest)

    @contextmanager
    def noisy(self, row_B: Tensor, length: int) -> Iterator[None]:
        """Add noise to a pass over these rows, each of `length` tokens."""
        device = row_B.device
        zero_T = torch.zeros(row_B.numel() * length, dtype=torch.int64, device=device)
        tokens = NoisyTokens(
            index=None,
            document=row_B.repeat_interleave(length),
            repeat=zero_T,
            row=zero_T + 1,
            position=torch.arange(length, device=device).repeat(row_B.numel()),
        )
        temperature_B = self.temperatures[row_B.cpu()].to(device)
        self._temperature_T = temperature_B.repeat_interleave(length)
        self.expect(tokens)
        try:
            yield
        finally:
            self.expect(None)

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        tokens = self.tokens
        logits_TE = routing.logits_TE
        if tokens is None:
            return None
        noise_LTE = gumbel_for_tokens(
            self.seed,
            tokens.document,
            tokens.repeat,
            tokens.row,
            tokens.position,
            torch.tensor([router.layer], device=logits_TE.device),
            logits_TE.shape[-1],
        )
        noise_TE = self._temperature_T[:, None] * noise_LTE[0]
        with torch.no_grad():
            _, index_TK = noisy_choice(router, logits_TE, noise_TE, routing.index_TK.shape[-1])
        return with_experts(router, routing, tokens, logits_TE, index_TK)


class TrainingRouting(Policy):
    """A policy that records every layer's decisions of a training pass,
    after optional noise on them."""

    def __init__(self, noise: RoutingNoise | None):
        self.noise = noise
        self.layers: list[Routing] = []
        """The decisions of the last pass, by layer; empty for a dense model. With expert choice
        `index_TK` has the tokens of each expert instead; then no regularizer reads them."""
        self._keeps = False

    @contextmanager
    def one_pass(self, row_B: Tensor, length: int) -> Iterator[None]:
        """Record one pass over rows [B] of `length` tokens."""
        self.layers = []
        self._keeps = True
        noisy: AbstractContextManager[None] = nullcontext()
        if self.noise is not None:
            noisy = self.noise.noisy(row_B, length)
        try:
            with noisy:
                yield
        finally:
            self._keeps = False

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        noisy = None
        if self.noise is not None:
            noisy = self.noise(router, routing)
        self.keep(routing if noisy is None else noisy)
        return noisy

    def keep(self, decided: Routing) -> None:
        """Record the decisions of a layer, if the pass is recorded."""
        if self._keeps:
            self.layers.append(decided)


@contextmanager
def training_routing(model: nn.Module, noise: RoutingNoise | None) -> Iterator[TrainingRouting]:
    """Install the policy on a model with routers of single tokens.

    Routers of words and sentences and expert choice are only observed. A dense model has none.
    """
    routing = TrainingRouting(noise)
    if find_routers(model) and not why_fixed(model):
        with routed(model, routing):
            yield routing
        return

    def keep(router: nn.Module, args: Any, output: Any) -> None:
        routing.keep(Routing(*output))

    handles = []
    for module in model.modules():
        if isinstance(module, DesignRouter):
            handles.append(module.register_forward_hook(keep))
    try:
        yield routing
    finally:
        for handle in handles:
            handle.remove()
