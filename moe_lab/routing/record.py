"""Recording of routing decisions, and their replay.

    with record(model) as routes:
        model.generate(input_ids)
    routes.indices[3]     # MoE layer 3: int64 [tokens, k]
    with replay(model, routes):
        model(longer_ids)

T = tokens of a pass, R = recorded tokens, K = experts per token.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from moe_lab.config.arguments import wrong
from moe_lab.errors import RoutingError
from moe_lab.routing.hook import Router, Routing, opened, require_routers, routed
from moe_lab.routing.passes import PassTokens, pass_tokens


class Record:
    """Logits, weights and indices per MoE layer, of all tokens of all forward passes, without padding.

    Tokens are in the order of the passes, and within a pass sequence by sequence. `sequences` and `positions` identify
    them.
    """

    observes = True

    def __init__(self) -> None:
        self._parts: dict[int, list[Routing]] = {}
        self._tokens: list[PassTokens] = []

    def __repr__(self) -> str:
        experts = "/".join(map(str, dict.fromkeys(self.experts)))
        of = f" of {experts} experts" if experts else ""
        return f"Record({len(self._parts)} MoE layers{of}, {len(self.positions):,} tokens)"

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
    def experts(self) -> list[int]:
        """Per MoE layer: the number of experts."""
        return [self._parts[layer][0].logits_TE.shape[-1] for layer in sorted(self._parts)]

    @property
    def sequences(self) -> Tensor:
        """int64 [tokens]: the number of each token's sequence. A pass without cached tokens begins new sequences.

        The texts of a packed row are sequences of their own.
        """
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
        # a mask would make the host wait for the device
        at_N = real_T.nonzero()[:, 0].to(routing.index_TK.device)
        kept = Routing(*(tensor.detach()[at_N] for tensor in routing))
        self._parts.setdefault(router.layer, []).append(kept)


def check_tokens(expected: int, routing: Routing) -> None:
    """Raise RoutingError for a pass whose tokens are not those of the model's last forward pass."""
    if len(routing.logits_TE) != expected:
        raise RoutingError(
            f"A router decides for {len(routing.logits_TE)} tokens, but the model was called with {expected}. "
            "model(...) and model.generate can be recorded; an ensemble runs later layers on their own."
        )


@contextmanager
def record(model: nn.Module) -> Iterator[Record]:
    """Record all routing decisions of `model(...)` and `model.generate(...)` inside the context.

    Packed rows, given by `position_ids` without an attention mask, are one sequence for each of their texts. Tokens
    with 0 in a two-dimensional `attention_mask` of the model are padding. In `generate`, transformers feeds padding to
    sequences that have ended, unmasked: it is recorded as their tokens.

    Raises ModelError and RoutingError as `routed` does, so also under gradient checkpointing.
    """
    routes = Record()
    with opened(model, "record(model)"), pass_tokens(model, routes.expect), routed(model, routes):
        yield routes


_LONGEST = 2**32
"""Larger than the length of any sequence."""


class Replay:
    """A policy: routes every token as the record has it, by the number of its sequence and its position in it.

    With `fresh` the experts are those of the record, and their weights those of the router's own logits.
    """

    def __init__(self, record: Record, fresh: bool = False):
        self.fresh = fresh
        self.weights, self.indices, self.experts = record.weights, record.indices, record.experts
        key_R = _keys(record.sequences, record.positions)
        self._key_R, self._order_R = key_R.sort(stable=True)
        self._pass = (torch.zeros(0, dtype=torch.bool), torch.zeros(0, dtype=torch.int64))
        """(real_T, places in the record of its tokens) of the next forward pass."""

    def expect(self, tokens: PassTokens) -> None:
        """Set the tokens of the next forward pass. Raises RoutingError for one that was not recorded."""
        key_N = _keys(tokens.sequence_T, tokens.position_T)[tokens.real_T]
        # the last decision counts for a token that was read twice
        place_N = torch.searchsorted(self._key_R, key_N, right=True) - 1
        missing_N = self._key_R[place_N.clamp(min=0)] != key_N
        if missing_N.any():
            sequence, position = divmod(int(key_N[missing_N][0]), _LONGEST)
            raise RoutingError(f"No decision is recorded for token {position} of sequence {sequence}.")
        self._pass = tokens.real_T, self._order_R[place_N]

    def __call__(self, router: Router, routing: Routing) -> Routing:
        real_T, token_N = self._pass
        check_tokens(len(real_T), routing)
        weights_RK, index_RK = self.weights[router.layer], self.indices[router.layer]
        if self.experts[router.layer] != routing.logits_TE.shape[-1]:
            raise RoutingError(
                f"The record has {self.experts[router.layer]} experts, and {router.name} has "
                f"{routing.logits_TE.shape[-1]}."
            )
        if index_RK.shape[1] != routing.index_TK.shape[1]:
            raise RoutingError(
                f"The record has {index_RK.shape[1]} experts per token, and {router.name} chooses "
                f"{routing.index_TK.shape[1]}."
            )
        device = routing.index_TK.device
        at_N = real_T.nonzero()[:, 0].to(device)
        weights_NK = weights_RK[token_N.to(weights_RK.device)].to(device, routing.weights_TK.dtype)
        index_NK = index_RK[token_N.to(index_RK.device)].to(device)
        index_TK = routing.index_TK.index_copy(0, at_N, index_NK)
        if self.fresh:
            weights_TK = router.weights(routing.logits_TE, index_TK).to(routing.weights_TK.dtype)
        else:
            weights_TK = routing.weights_TK.index_copy(0, at_N, weights_NK)
        return Routing(routing.logits_TE, weights_TK, index_TK)


def _keys(sequence: Tensor, position: Tensor) -> Tensor:
    return sequence * _LONGEST + position


@contextmanager
def replay(model: nn.Module, record: Record, *, weights: str = "record") -> Iterator[None]:
    """Route the tokens of `model(...)` and `model.generate(...)` inside the context as they were recorded.

        with record(old) as routes:
            ids = old.generate(**inputs)
        with replay(model, routes, weights="model"):
            model(ids).logits    # the recorded experts; gradients reach the routers

    Sequences are numbered as in the record, from 0 in each `replay`, so that what was recorded step by step can be
    replayed in one pass. The model may be another one of the same architecture.

    Args:
        weights: combine weights of the recorded experts. "record": as recorded, which are constants: the gradient
            of routers is 0. "model": those that the router gives them now, with gradients (routing replay in
            reinforcement learning).

    Raises ConfigError for another value of `weights`, and RoutingError for a record of another number of MoE layers
    and, in a pass, for a token that was not recorded.
    """
    layers = len(require_routers(model))
    if weights not in ("record", "model"):
        raise wrong("weights", weights, 'give "record" or "model"')
    if not isinstance(record, Record):
        raise wrong("replay(model, record)", record, "give what `with record(model) as routes:` yields")
    if len(record.indices) != layers:
        raise RoutingError(f"The record has {len(record.indices)} MoE layers, and the model has {layers}.")
    policy = Replay(record, fresh=weights == "model")
    with (
        opened(model, "replay(model, routes)"),
        pass_tokens(model, policy.expect),
        routed(model, policy),
    ):
        yield
