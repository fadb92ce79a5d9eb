"""Routing samples with their own histories (the standard cache): n batch entries per sequence from the fork layer on.

A token that is read with noise is noisy in all samples but the first. Each sample attends to its own keys and values.

B = sequences, S = new tokens, M = logit positions, n = routing samples of each.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.clean_history import SamplePlaces
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.layers import PerToken, decoder_layers, fork_layer, layer_inputs
from moe_lab.routing.gumbel_top_k import NoisyTokens


class OwnHistory:
    """Hooks that fork B sequences into B x n in front of the fork layer."""

    extra_slots = 0

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        self.n = ensemble.n
        self.first_layer, _ = fork_layer(model, ensemble.first_noisy)
        self.layers = decoder_layers(model)[self.first_layer :]
        self._per_token: PerToken | None = None
        """Of this pass; None for a pass without noise."""

    def install(self, stack: ExitStack) -> None:
        for layer in self.layers:
            hook = layer.register_forward_pre_hook(self._before_layer, with_kwargs=True)
            stack.callback(hook.remove)

    def expect(self, tokens: Tokens, cache: KVCache) -> SamplePlaces | None:
        """Called before each pass. Returns None for a pass without noise, in which the samples have not forked."""
        self._per_token = PerToken(self._repeated, masks=True) if tokens.noise else None
        if not tokens.noise:
            return None
        B, S = tokens.ids_BS.shape
        cache.fork(self.n, B, self.first_layer)
        sequence, token = tokens.logit_positions_M // S, tokens.logit_positions_M % S
        sample = torch.arange(self.n, device=tokens.ids_BS.device)
        logits_at = (sequence[:, None] * self.n + sample) * S + token[:, None]
        return SamplePlaces(logits_at, self._noisy_tokens(tokens))

    def _noisy_tokens(self, tokens: Tokens) -> NoisyTokens:
        B, S = tokens.ids_BS.shape
        real_BS = torch.ones(B, S, dtype=torch.bool) if tokens.real_BS is None else tokens.real_BS
        sample_n = torch.arange(self.n, device=tokens.ids_BS.device)
        noisy_BnS = real_BS.to(sample_n.device)[:, None] & (sample_n > 0)[:, None]

        def spread(values: Tensor) -> Tensor:
            return values.expand_as(noisy_BnS)[noisy_BnS]

        return NoisyTokens(
            index=noisy_BnS.reshape(-1).nonzero()[:, 0],
            document=spread(tokens.noise_key_B[:, None, None]),
            repeat=spread(tokens.sample_index_B[:, None, None]),
            row=spread(sample_n[:, None]),
            position=spread(tokens.position_BS[:, None]),
        )

    def _before_layer(self, layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self._per_token is None:
            return None
        inputs = self._per_token(layer_inputs(layer, args, kwargs))
        if layer is self.layers[0]:
            inputs["hidden_states"] = self._repeated(inputs["hidden_states"])
        return (), inputs

    def _repeated(self, tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(self.n, dim=0)
