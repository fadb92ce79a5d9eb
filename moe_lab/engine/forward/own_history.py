"""Rows with histories of their own (the standard cache): from the first noisy layer on, n batch entries per sequence.

Every token that is read with noise is noisy in all rows but the first, and each row attends to its own keys and values.

B = sequences, S = new tokens, M = wanted tokens, n = rows of each.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.clean_history import Rows
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.layers import PerToken, decoder_layers, fork_layer, layer_inputs
from moe_lab.routing.gumbel_top_k import NoisyTokens


class OwnHistory:
    """Hooks on decoder layers: in front of the first noisy one, B sequences become B x n."""

    columns = 0
    """Columns that the rows of a wanted token take in the cache while it is read."""

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        self.n = ensemble.n
        self.first_layer, _ = fork_layer(model, ensemble.first_noisy)
        self.layers = decoder_layers(model)[self.first_layer :]
        self._per_token: PerToken | None = None
        """Of this pass; None: it has no noise, and all rows are still one."""

    def install(self, stack: ExitStack) -> None:
        for layer in self.layers:
            hook = layer.register_forward_pre_hook(self._before_layer, with_kwargs=True)
            stack.callback(hook.remove)

    def expect(self, tokens: Tokens, cache: KVCache) -> Rows | None:
        """Get ready for a pass; None: it reads without noise, and all rows are still one."""
        self._per_token = PerToken(self._repeated, masks=True) if tokens.noise else None
        if not tokens.noise:
            return None
        B, S = tokens.ids_BS.shape
        cache.part(self.n, B, self.first_layer)
        sequence, token = tokens.logit_positions_M // S, tokens.logit_positions_M % S
        row = torch.arange(self.n, device=tokens.ids_BS.device)
        logits_at = (sequence[:, None] * self.n + row) * S + token[:, None]
        noisy = self._noisy_tokens(tokens)
        return Rows(logits_at, noisy, len(noisy.index))

    def _noisy_tokens(self, tokens: Tokens) -> NoisyTokens:
        B, S = tokens.ids_BS.shape
        real_BS = torch.ones(B, S, dtype=torch.bool) if tokens.real_BS is None else tokens.real_BS
        row_n = torch.arange(self.n, device=tokens.ids_BS.device)
        noisy_BnS = real_BS.to(row_n.device)[:, None] & (row_n > 0)[:, None]

        def spread(values: Tensor) -> Tensor:
            return values.expand_as(noisy_BnS)[noisy_BnS]

        return NoisyTokens(
            index=noisy_BnS.reshape(-1).nonzero()[:, 0],
            document=spread(tokens.noise_key_B[:, None, None]),
            repeat=spread(tokens.sample_index_B[:, None, None]),
            row=spread(row_n[:, None]),
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
