"""Replay of recorded routing decisions.

with record(model) as routes:
    model.generate(input_ids)
with replay(model, routes):
    model(longer_ids)

T = tokens of a pass, R = recorded tokens, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from moe_lab.config.arguments import wrong
from moe_lab.errors import RoutingError
from moe_lab.routing.hook import Router, Routing, require_routers, routed
from moe_lab.routing.nesting import REPLAY, opened
from moe_lab.routing.pass_tokens import PassTokens, pass_tokens
from moe_lab.routing.record import Record, check_tokens

_LONGEST = 2**32
"""More tokens than a sequence has."""


class Replay:
    """A policy: routes every token as the record has it, by the number of its sequence and its position in it."""

    def __init__(self, record: Record):
        self.weights, self.indices = record.weights, record.indices
        key_R = _keys(record.sequences, record.positions)
        self._key_R, self._order_R = key_R.sort(stable=True)
        self._passes: list[tuple[Tensor, Tensor]] = []
        """Of each forward pass: (real_T, places in the record of its tokens)."""

    def expect(self, tokens: PassTokens) -> None:
        """Set the tokens of the next forward pass. Raises RoutingError for one that was not recorded."""
        key_N = _keys(tokens.sequence_T, tokens.position_T)[tokens.real_T]
        # of a token that was read twice the last decision counts
        place_N = torch.searchsorted(self._key_R, key_N, right=True) - 1
        missing_N = self._key_R[place_N.clamp(min=0)] != key_N
        if missing_N.any():
            sequence, position = divmod(int(key_N[missing_N][0]), _LONGEST)
            raise RoutingError(f"No decision is recorded for token {position} of sequence {sequence}.")
        self._passes.append((tokens.real_T, self._order_R[place_N]))

    def __call__(self, router: Router, routing: Routing) -> Routing:
        return self.again(router, routing, -1)

    def again(self, router: Router, routing: Routing, number: int) -> Routing:
        """The decisions of a forward pass, by its number."""
        real_T, token_N = self._passes[number] if self._passes else (torch.zeros(0), torch.zeros(0))
        check_tokens(len(real_T), routing)
        weights_RK, index_RK = self.weights[router.layer], self.indices[router.layer]
        if index_RK.shape[1] != routing.index_TK.shape[1]:
            raise RoutingError(
                f"The record has {index_RK.shape[1]} experts per token, and {router.name} chooses "
                f"{routing.index_TK.shape[1]}."
            )
        device = routing.index_TK.device
        at_N = real_T.to(device).nonzero()[:, 0]
        weights_NK = weights_RK[token_N.to(weights_RK.device)].to(device, routing.weights_TK.dtype)
        index_NK = index_RK[token_N.to(index_RK.device)].to(device)
        return Routing(
            routing.logits_TE,
            routing.weights_TK.index_copy(0, at_N, weights_NK),
            routing.index_TK.index_copy(0, at_N, index_NK),
        )


def _keys(sequence: Tensor, position: Tensor) -> Tensor:
    return sequence * _LONGEST + position


@contextmanager
def replay(model: nn.Module, record: Record) -> Iterator[None]:
    """Route the tokens of `model(...)` and `model.generate(...)` inside the context as they were recorded.

    Sequences are numbered as in the record, from 0 in each `replay`, so that what was recorded step by step can be
    replayed in one pass. The model may be another one of the same architecture.

    Raises RoutingError for a record of another number of MoE layers and, in a pass, for a token that was not recorded.
    """
    layers = len(require_routers(model))
    if not isinstance(record, Record):
        raise wrong("replay(model, record)", record, "give what `with record(model) as routes:` yields")
    if len(record.indices) != layers:
        raise RoutingError(f"The record has {len(record.indices)} MoE layers, and the model has {layers}.")
    policy = Replay(record)
    with (
        opened(model, REPLAY),
        pass_tokens(model, policy.expect),
        routed(model, policy, again=policy.again),
    ):
        yield
