"""Rows over one clean history (the clean cache): the noisy rows of a token are further slots of its sequence.

B = sequences, S = new tokens, T = cached columns, R = S + noisy slots of the sequence with the most wanted tokens,
M = wanted tokens, n = rows of each.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.layers import PerToken, decoder_layers, fork_layer, gather_tokens, layer_inputs
from moe_lab.engine.forward.masks import LayerMasks, attention_windows
from moe_lab.routing.gumbel_top_k import NoisyTokens

# fmt: off
LATE = frozenset({
    "afmoe", "aria_text", "axk1", "cohere2_moe", "deepseek", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe",
    "exaone_moe", "flex_olmo", "flint", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granitemoe", "granitemoe_swa",
    "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "jetmoe", "kolibri1", "laguna", "mellum", "mimo_v2_flash",
    "minimax_m2", "minimax_m3_vl_text", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe", "solar_open",
})
# fmt: on
"""Families (by `model_type`) whose layers add what their MoE block returns to a residual, token by token: the block may
be given more tokens than the layer's attention. A test holds each against rows that part in front of the layer, as
all other families do (Llama-4's layers reshape to the residual, DBRX's block is the layer itself)."""


@dataclass(frozen=True)
class Rows:
    """Where the rows of a pass are once they have parted."""

    logits_at: Tensor
    """int64 [M, n]: flat places, among all tokens that reach the output head, of each wanted token's rows."""
    noisy: NoisyTokens | None
    """None: this pass has no noise."""
    extra: int
    """Tokens that rows add to those that were given."""


@dataclass(frozen=True)
class Split:
    """Where the rows of a pass come from: S clean tokens become R (rows of short sequences are padding)."""

    source_BR: Tensor
    """int64: the clean token each row is a copy of."""
    visible_BRK: Tensor
    """bool [B, R, T + R]."""
    noisy: Tensor
    """int64 [M (n - 1)]: flat indices into B x R of the noisy rows, wanted token by wanted token."""
    logits_at: Tensor
    """int64 [M, n]: flat indices into B x R of each wanted token's rows, the clean one first."""


def fork_samples(logit_positions_M: Tensor, visible_BSK: Tensor, n: int) -> Split:
    """Give every wanted token n - 1 noisy rows. Each sees what its token sees of others, and itself."""
    B, S, K = visible_BSK.shape
    device = logit_positions_M.device
    sequence_M, token_M = logit_positions_M // S, logit_positions_M % S
    per_sequence_B = torch.bincount(sequence_M, minlength=B)
    first_B = per_sequence_B.cumsum(0) - per_sequence_B
    order_M = torch.arange(len(logit_positions_M), device=device) - first_B[sequence_M]
    slots = int(per_sequence_B.max()) * (n - 1)
    R = S + slots
    slot_Mn = S + order_M[:, None] * (n - 1) + torch.arange(n - 1, device=device)
    source_BR = torch.arange(S, device=device).expand(B, S)
    source_BR = torch.cat([source_BR, torch.zeros(B, slots, dtype=torch.long, device=device)], dim=1)
    source_BR[sequence_M[:, None], slot_Mn] = token_M[:, None].expand_as(slot_Mn)

    visible_BRK = torch.zeros(B, R, K + slots, dtype=torch.bool, device=device)
    visible_BRK[:, :S, :K] = visible_BSK
    others_MK = visible_BSK[sequence_M, token_M]
    others_MK[torch.arange(len(logit_positions_M), device=device), K - S + token_M] = False
    visible_BRK[sequence_M[:, None], slot_Mn, :K] = others_MK[:, None]
    slot = torch.arange(slots, device=device)
    visible_BRK[:, S + slot, K + slot] = True

    rows_Mn = sequence_M[:, None] * R + torch.cat([token_M[:, None], slot_Mn], dim=1)
    return Split(source_BR, visible_BRK, rows_Mn[:, 1:].reshape(-1), rows_Mn)


class CleanHistory:
    """Hooks on decoder layers: at the first noisy one the clean tokens become rows, with masks and positions to fit.

    A single new token per sequence parts as late as it can: in models of `LATE`, in front of that layer's MoE block,
    its attention still computed once (the residual is then added to all rows). Otherwise in front of the layer.
    """

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        first, router = fork_layer(model, ensemble.first_noisy)
        layers, windows = decoder_layers(model), attention_windows(model)
        self.n, self.dtype = ensemble.n, model.dtype
        self.columns = ensemble.n - 1
        self.first = layers[first]
        self.windows = dict(zip(layers[first:], windows[first:], strict=True))
        self.block = router.block
        self.parts_late = model.config.get_text_config(decoder=True).model_type in LATE
        self._split: Split | None = None
        self._late = False

    def install(self, stack: ExitStack) -> None:
        for layer in self.windows:
            stack.callback(layer.register_forward_pre_hook(self._before_layer, with_kwargs=True).remove)
        stack.callback(self.block.register_forward_pre_hook(self._before_block).remove)

    def expect(self, tokens: Tokens, cache: KVCache) -> Rows | None:
        """Get ready for a pass; None: it has no rows (no noise, or no wanted tokens)."""
        self._split = None
        if not tokens.noise or not len(tokens.logit_positions_M):
            return None
        split = fork_samples(tokens.logit_positions_M, tokens.visible(cache.length), self.n)
        self._split, self._masks = split, LayerMasks(split.visible_BRK, self.dtype)
        self._late = self.parts_late and tokens.ids_BS.shape[1] == 1
        self._per_token = PerToken(partial(gather_tokens, source_BR=split.source_BR))
        return Rows(split.logits_at, self._noisy_tokens(tokens, split), len(split.noisy))

    def _noisy_tokens(self, tokens: Tokens, split: Split) -> NoisyTokens:
        R = split.source_BR.shape[1]
        sequence = split.noisy // R
        source = split.source_BR.reshape(-1)[split.noisy]
        return NoisyTokens(
            index=split.noisy,
            document=tokens.noise_key_B[sequence],
            repeat=tokens.sample_index_B[sequence],
            row=torch.arange(1, self.n, device=source.device).repeat(len(tokens.logit_positions_M)),
            position=tokens.position_BS[sequence, source],
        )

    def _before_layer(self, layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self._split is None or (self._late and layer is self.first):
            return None
        inputs = self._per_token(layer_inputs(layer, args, kwargs))
        inputs["attention_mask"] = self._masks.of(self.windows[layer])
        if layer is self.first:
            inputs["hidden_states"] = gather_tokens(inputs["hidden_states"], self._split.source_BR)
        return (), inputs

    def _before_block(self, block: nn.Module, args: tuple) -> tuple | None:
        if self._split is None or not self._late:
            return None
        return (gather_tokens(args[0], self._split.source_BR), *args[1:])
