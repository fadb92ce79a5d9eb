"""Rows as batch entries over copies of the model's own cache: for layers that keep more than keys and values.

A recurrent state cannot be cropped, and holds no columns that a mask could hide. So what a token's rows read is copied
for each of them: one prompt or question at a time, so that there is no padding, and token by token behind what has been
read, which every model of transformers is made for.

R = rows (1, or the ensemble's n), S = new tokens, V = vocabulary.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.errors import RoutingError
from moe_lab.routing import routed
from moe_lab.routing.gumbel_top_k import NoisyTokens


class NoiseKey(NamedTuple):
    """Of the noise of one prompt or question."""

    noise_key: int
    sample_index: int = 0


@dataclass
class RecurrentState:
    """What a model keeps of the tokens that it has read, for each of some rows."""

    rows: int
    length: int = 0
    cache: Cache | None = None
    """Of the model's own making; None before the first token."""

    def copied(self) -> RecurrentState:
        return replace(self, cache=copy.deepcopy(self.cache))

    def take(self, rows: list[int]) -> None:
        """Become these of the rows, in this order; one may be taken several times."""
        index = torch.tensor(rows)
        if self.cache is not None:
            self.cache.reorder_cache(index)
            # MiniMax keeps its recurrent states beside its layers, where this method does not look.
            for layer, state in enumerate(getattr(self.cache, "linear_cache", [])):
                if isinstance(state, Tensor):
                    self.cache.linear_cache[layer] = state[index.to(state.device)]
        self.rows = len(rows)


class RecurrentForward:
    """A causal language model that reads tokens behind a `RecurrentState`, for an ensemble of rows.

    with RecurrentForward(model, ensemble) as forward:
        state, rest = forward.begin(prompt)
        logits_nV = forward.step(state, rest, NoiseKey(document))
    """

    def __init__(self, model: Any, ensemble: Ensemble):
        self.model, self.ensemble = model, ensemble
        self.device = next(model.parameters()).device
        self.tokens_in = 0
        """Tokens put through the model so far, rows included."""
        # Not all caches tell how much they hold (a first layer may have no columns).
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def __enter__(self) -> RecurrentForward:
        self._stack = ExitStack()
        self._stack.enter_context(torch.inference_mode())
        if head := self.model.get_output_embeddings():
            self._stack.callback(head.register_forward_pre_hook(_last_token).remove)
        if self.ensemble.routing:
            self._stack.enter_context(routed(self.model, self.ensemble.routing))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def begin(self, prompt: Sequence[int]) -> tuple[RecurrentState, Sequence[int]]:
        """(what is read of a prompt before its rows part, the tokens that are left)."""
        if self.ensemble.own_history and self.ensemble.prefill == "noisy":
            return RecurrentState(self.ensemble.n), prompt
        state = RecurrentState(rows=1)
        if len(prompt) > 1:
            self._read(state, prompt[:-1], None)
        if self.ensemble.own_history:
            state.take([0] * self.ensemble.n)
        return state, prompt[-1:]

    def step(self, state: RecurrentState, ids: Sequence[int], key: NoiseKey) -> Tensor:
        """Logits [n, V] after the last of `ids`, the clean row first.

        `state` then holds these tokens too: those of row 0 alone with a clean history.
        """
        if self.ensemble.own_history:
            return self._read(state, ids, key)
        state.take([0] * self.ensemble.n)
        logits_nV = self._read(state, ids, key)
        state.take([0])
        return logits_nV

    def _read(self, state: RecurrentState, ids: Sequence[int], key: NoiseKey | None) -> Tensor:
        """Logits [R, V] after the last of `ids`, all rows but the first with the noise of `key`."""
        for part in [ids] if state.length == 0 else [[token] for token in ids]:
            logits_RV = self._pass(state, part, key)
        return logits_RV

    def _pass(self, state: RecurrentState, ids: Sequence[int], key: NoiseKey | None) -> Tensor:
        if self.ensemble.routing:
            self.ensemble.routing.expect(self._noisy_tokens(state, len(ids), key) if key else None)
        position = torch.arange(state.length, state.length + len(ids), device=self.device)
        output = self.model(
            input_ids=torch.tensor(ids, device=self.device).expand(state.rows, -1),
            past_key_values=state.cache,
            use_cache=True,
            **({"position_ids": position.expand(state.rows, -1)} if self._takes_positions else {}),
        )
        if output.past_key_values is None:
            raise RoutingError(
                f"{type(self.model).__name__} keeps nothing of what it reads; use method=base."
            )
        state.cache = output.past_key_values
        state.length += len(ids)
        self.tokens_in += state.rows * len(ids)
        return output.logits[:, -1]

    def _noisy_tokens(self, state: RecurrentState, count: int, key: NoiseKey) -> NoisyTokens:
        index = torch.arange(count, state.rows * count, device=self.device)
        return NoisyTokens(
            index=index,
            document=torch.full_like(index, key.noise_key),
            repeat=torch.full_like(index, key.sample_index),
            row=index // count,
            position=state.length + index % count,
        )


def _last_token(head: nn.Module, args: tuple) -> tuple:
    """The output head's input, [R, S, hidden] -> [R, 1, hidden]."""
    return (args[0][:, -1:], *args[1:])
