"""Recording of routing decisions.

with record(model) as routes:
    model(input_ids, attention_mask=attention_mask)
routes.indices[3]     # MoE layer 3: int64 [tokens, k]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import Router, Routing, routed
from moe_lab.routing.nesting import RECORD, opened
from moe_lab.routing.pass_tokens import PassTokens, pass_tokens


class Record:
    """Logits, weights and indices per MoE layer, of all tokens of all forward passes, without padding.

    Tokens stand in the order of the passes, and in a pass sequence by sequence. `sequences` and `positions` tell them
    apart.
    """

    def __init__(self) -> None:
        self._parts: dict[int, list[Routing]] = {}
        self._tokens: list[PassTokens] = []

    def expect(self, tokens: PassTokens) -> None:
        """Set the tokens of the next forward pass."""
        self._tokens.append(tokens)

    @property
    def logits(self) -> list[Tensor]:
        """Per MoE layer: [tokens, experts], in the router's dtype."""
        return self._stacked(0)

    @property
    def weights(self) -> list[Tensor]:
        """Per MoE layer: [tokens, k]."""
        return self._stacked(1)

    @property
    def indices(self) -> list[Tensor]:
        """Per MoE layer: int64 [tokens, k]."""
        return self._stacked(2)

    @property
    def sequences(self) -> Tensor:
        """int64 [tokens]: number of each token's sequence. Every pass without cached tokens begins new ones."""
        return self._of_tokens("sequence_T")

    @property
    def positions(self) -> Tensor:
        """int64 [tokens]: index of each token in its sequence, padding not counted."""
        return self._of_tokens("position_T")

    def _of_tokens(self, field: str) -> Tensor:
        parts = [getattr(tokens, field)[tokens.real_T] for tokens in self._tokens]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)

    def _stacked(self, field: int) -> list[Tensor]:
        return [torch.cat([part[field] for part in self._parts[layer]]) for layer in sorted(self._parts)]

    def __call__(self, router: Router, routing: Routing) -> None:
        real_T = self._tokens[-1].real_T if self._tokens else torch.zeros(0)
        check_tokens(len(real_T), routing)
        # detached first: gradient checkpointing counts what a layer keeps for its gradients
        kept = Routing(*(tensor.detach()[real_T.to(tensor.device)] for tensor in routing))
        self._parts.setdefault(router.layer, []).append(kept)


def check_tokens(expected: int, routing: Routing) -> None:
    """Raise RoutingError for a pass whose tokens are not those of the model's last forward pass."""
    if len(routing.logits_TE) != expected:
        raise RoutingError(
            f"A router decides for {len(routing.logits_TE)} tokens, but the model was called with {expected}. "
            "model(...) and model.generate can be recorded; an ensemble runs later layers apart."
        )


def _once(router: Router, routing: Routing, number: int) -> None:
    """A repeated decision is recorded already."""


@contextmanager
def record(model: nn.Module) -> Iterator[Record]:
    """Record all routing decisions of `model(...)` and `model.generate(...)` inside the context.

    Tokens with 0 in a two-dimensional `attention_mask` of the model are padding. In `generate`, transformers feeds
    padding to sequences that have ended, unmasked: it is recorded as their tokens. What gradient checkpointing computes
    again in a backward pass is recorded once.

    Raises ModelError and RoutingError as `routed` does.
    """
    routes = Record()
    with opened(model, RECORD), pass_tokens(model, routes.expect), routed(model, routes, again=_once):
        yield routes
