"""The language model of `method=soft-prompt` and `method=prefix-tuning`: contexts behind virtual tokens.

The engine gets V placeholder tokens before every context, so that positions, masks and shared prefixes are right. When
a pass would read the placeholders, the adapter's keys and values take their place in the cache.

V = virtual tokens, B = sequences, S = new tokens, M = logit positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.kv_engine import KVEngine
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.engine.tokenization import Encoder
from moe_lab.methods.base import engine_options

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.models.load import LoadedModel

PLACEHOLDER = 0
"""Token id of the placeholders, which the model does not read."""


def short_lm(model: LoadedModel, config: Config, virtual_tokens: int) -> EngineLM:
    """The untouched model with room for virtual tokens before its inputs."""
    return EngineLM(model.model, model.tokenizer, **_options(model, config, virtual_tokens))


def _options(model: LoadedModel, config: Config, virtual_tokens: int) -> dict[str, Any]:
    room = (config.max_length or model.facts.max_length) - virtual_tokens
    return engine_options(config) | {"max_length": room}


class VirtualTokensLM(EngineLM):
    """Scores multiple-choice questions.

    Args:
        prefix: keys and values of the virtual tokens, for one sequence.
    """

    def __init__(self, model: LoadedModel, config: Config, prefix: KVCache):
        def make_engine(lm: EngineLM) -> KVEngine:
            return KVEngine(VirtualTokensForward(model.model, prefix), lm.budget)

        options = _options(model, config, prefix.length)
        super().__init__(model.model, model.tokenizer, **options, make_engine=make_engine)
        self._encoder = _BehindPlaceholders(self, prefix.length)

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        assert kind == "loglikelihood", "other tasks are refused before weights load"
        super().answer(kind, requests, on_answer)


class _BehindPlaceholders(Encoder):
    def __init__(self, lm: EngineLM, count: int):
        super().__init__(lm)
        self.placeholders = (PLACEHOLDER,) * count

    def pair(self, context: str, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        context_ids, ids = super().pair(context, continuation)
        return self.placeholders + context_ids, ids


class VirtualTokensForward(EnsembleForward):
    """Passes of the plain model in which the first V tokens of every sequence are placeholders of `prefix`."""

    def __init__(self, model: Any, prefix: KVCache):
        super().__init__(model, Ensemble())
        self.prefix = prefix

    def __call__(self, tokens: Tokens, cache: KVCache) -> Tensor:
        if cache.length:
            return super().__call__(tokens, cache)
        B, S = tokens.ids_BS.shape
        V = self.prefix.length
        for own, new in zip(self.prefix.layers, cache.layers, strict=True):
            new.update(own.keys.expand(B, -1, -1, -1), own.values.expand(B, -1, -1, -1))
        if S == V:
            return torch.empty(0, 1, self.model.config.get_text_config().vocab_size, device=self.device)
        return super().__call__(_behind(tokens, V), cache)


def _behind(tokens: Tokens, V: int) -> Tokens:
    """All but the first V tokens of each sequence, which have no logit positions."""
    B, S = tokens.ids_BS.shape
    return replace(
        tokens,
        ids_BS=tokens.ids_BS[:, V:],
        position_BS=tokens.position_BS[:, V:],
        visible_BSK=None if tokens.visible_BSK is None else tokens.visible_BSK[:, V:],
        logit_positions_M=tokens.logit_positions_M // S * (S - V) + tokens.logit_positions_M % S - V,
        count=tokens.count and tokens.count - B * V,
        real_BS=None if tokens.real_BS is None else tokens.real_BS[:, V:],
    )
