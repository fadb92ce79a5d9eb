"""The tokens that routing samples attend to: one clean history for all (clean cache), or one of each sample.

Clean history: noisy samples of a token are extra slots of its sequence. Own histories (standard cache): each sample is
a batch entry of its own from the fork layer on.

B = sequences, S = new tokens, T = cached slots, R = S + the most noisy samples of a sequence, M = logit positions,
n = routing samples of each.
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
from moe_lab.engine.forward.layers import (
    LayerMasks,
    PerToken,
    attention_windows,
    decoder_layers,
    fork_layer,
    gather_tokens,
    layer_inputs,
)
from moe_lab.routing.noise import NoisyTokens

# fmt: off
LATE = frozenset({
    "afmoe", "aria_text", "axk1", "cohere2_moe", "deepseek", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe",
    "exaone_moe", "flex_olmo", "flint", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granitemoe", "granitemoe_swa",
    "granitemoeshared", "hunyuan_v1_moe", "hy_v3", "jetmoe", "kolibri1", "laguna", "mellum", "mimo_v2_flash",
    "minimax_m2", "minimax_m3_vl_text", "mixtral", "moe_design", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe",
    "solar_open",
})
# fmt: on
"""Families (by `model_type`) whose layers add the output of their MoE block to a residual, token by token. Their block
can take more tokens than the layer's attention, so samples may fork after the attention, which is then computed once.
In other families samples fork in front of the layer (Llama-4's layers reshape to the residual, DBRX's block is the
layer itself). A test compares both ways."""


@dataclass(frozen=True)
class SamplePlaces:
    """The places of a pass's samples after the fork layer."""

    logits_at: Tensor
    """int64 [M, n]: flat index of each sample of each logit position among all tokens of the pass."""
    noisy: NoisyTokens


@dataclass(frozen=True)
class Fork:
    """The R slots that S clean tokens become. Sequences with fewer samples are padded."""

    source_BR: Tensor
    """int64: the clean token that each slot is a copy of."""
    visible_BRK: Tensor
    """bool [B, R, T + R]."""
    noisy: Tensor
    """int64 [M (n - 1)]: flat indices into B x R of the noisy samples, by logit position."""
    logits_at: Tensor
    """int64 [M, n]: flat indices into B x R of the samples of each logit position, the clean one first."""


def fork_samples(logit_positions_M: Tensor, most: int, visible_BSK: Tensor, n: int) -> Fork:
    """Add n - 1 noisy samples to every logit position. A sample attends to itself instead of its token.

    No shape depends on a value of the device: `most` is the number of positions of the sequence that has most of them.
    """
    B, S, K = visible_BSK.shape
    device = logit_positions_M.device
    sequence_M, token_M = logit_positions_M // S, logit_positions_M % S
    order_M = torch.arange(len(logit_positions_M), device=device)
    # the number of each position within its sequence: positions are ascending, so a search finds a sequence's first
    order_M = order_M - torch.searchsorted(sequence_M, sequence_M)
    slots = most * (n - 1)
    R = S + slots
    slot_Mn = S + order_M[:, None] * (n - 1) + torch.arange(n - 1, device=device)
    source_BR = torch.arange(S, device=device).expand(B, S)
    source_BR = torch.cat([source_BR, torch.zeros(B, slots, dtype=torch.long, device=device)], dim=1)
    source_BR[sequence_M[:, None], slot_Mn] = token_M[:, None].expand_as(slot_Mn)

    # A sample sees the slots that its token sees, without the token's own, and its own slot: so all samples share the
    # clean history, and no sample sees another one.
    visible_BRK = torch.zeros(B, R, K + slots, dtype=torch.bool, device=device)
    visible_BRK[:, :S, :K] = visible_BSK
    others_MK = visible_BSK[sequence_M, token_M]
    others_MK[torch.arange(len(logit_positions_M), device=device), K - S + token_M] = False
    visible_BRK[sequence_M[:, None], slot_Mn, :K] = others_MK[:, None]
    slot = torch.arange(slots, device=device)
    visible_BRK[:, S + slot, K + slot] = True

    logits_at_Mn = sequence_M[:, None] * R + torch.cat([token_M[:, None], slot_Mn], dim=1)
    return Fork(source_BR, visible_BRK, logits_at_Mn[:, 1:].reshape(-1), logits_at_Mn)


class CleanHistory:
    """Hooks that fork clean tokens into samples at the fork layer, and pass masks and positions to the later layers.

    Tokens fork in front of the layer. A single new token per sequence in a model of `LATE` forks in front of the
    layer's MoE block: attention is computed once, and the residual is added to all samples.
    """

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        first, router = fork_layer(model, ensemble.first_noisy)
        layers, windows = decoder_layers(model), attention_windows(model)
        self.n, self.dtype = ensemble.n, model.dtype
        self.extra_slots = ensemble.n - 1
        self.first = layers[first]
        self.windows = dict(zip(layers[first:], windows[first:], strict=True))
        self.block = router.block
        self.forks_late = model.config.get_text_config(decoder=True).model_type in LATE
        self._fork: Fork | None = None
        self._late = False

    def install(self, stack: ExitStack) -> None:
        for layer in self.windows:
            stack.callback(layer.register_forward_pre_hook(self._before_layer, with_kwargs=True).remove)
        stack.callback(self.block.register_forward_pre_hook(self._before_block).remove)

    def expect(self, tokens: Tokens, cache: KVCache) -> SamplePlaces | None:
        """Called before each pass. None: the pass has no noise or no logit positions."""
        self._fork = None
        if not tokens.noise or not len(tokens.logit_positions_M):
            return None
        fork = fork_samples(
            tokens.logit_positions_M, tokens.most_logits, tokens.visible(cache.length), self.n
        )
        self._fork, self._masks = fork, LayerMasks(fork.visible_BRK, self.dtype)
        # with one new token no clean token attends to another new one, so attention need not know the samples
        self._late = self.forks_late and tokens.ids_BS.shape[1] == 1
        self._per_token = PerToken(partial(gather_tokens, source_BR=fork.source_BR))
        return SamplePlaces(fork.logits_at, self._noisy_tokens(tokens, fork))

    def _noisy_tokens(self, tokens: Tokens, fork: Fork) -> NoisyTokens:
        R = fork.source_BR.shape[1]
        sequence = fork.noisy // R
        source = fork.source_BR.reshape(-1)[fork.noisy]
        return NoisyTokens(
            index=fork.noisy,
            document=tokens.noise_key_B[sequence],
            repeat=tokens.sample_index_B[sequence],
            row=torch.arange(1, self.n, device=source.device).repeat(len(tokens.logit_positions_M)),
            position=tokens.position_BS[sequence, source],
        )

    def _before_layer(self, layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self._fork is None or (self._late and layer is self.first):
            return None
        inputs = self._per_token(layer_inputs(layer, args, kwargs))
        inputs["attention_mask"] = self._masks.of(self.windows[layer])
        if layer is self.first:
            inputs["hidden_states"] = gather_tokens(inputs["hidden_states"], self._fork.source_BR)
        return (), inputs

    def _before_block(self, block: nn.Module, args: tuple) -> tuple | None:
        if self._fork is None or not self._late:
            return None
        return (gather_tokens(args[0], self._fork.source_BR), *args[1:])


class OwnHistory:
    """Hooks that fork B sequences into B x n in front of the fork layer.

    A token that is read with noise is noisy in all samples but the first. Each sample attends to its own keys and
    values.
    """

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
        """Called before each pass. None: the pass has no noise, and the samples have not forked."""
        self._per_token = PerToken(self._repeated, masks=True) if tokens.noise else None
        if not tokens.noise:
            return None
        B, S = tokens.ids_BS.shape
        # earlier layers are the same in all samples, so their cache stays one entry per sequence
        cache.fork(self.n, B, self.first_layer)
        sequence, token = tokens.logit_positions_M // S, tokens.logit_positions_M % S
        sample = torch.arange(self.n, device=tokens.ids_BS.device)
        logits_at = (sequence[:, None] * self.n + sample) * S + token[:, None]
        return SamplePlaces(logits_at, self._noisy_tokens(tokens))

    def _noisy_tokens(self, tokens: Tokens) -> NoisyTokens:
        B, S = tokens.ids_BS.shape
        sample_n = torch.arange(self.n, device=tokens.ids_BS.device)
        place_BnS = torch.arange(B * self.n * S, device=sample_n.device).view(B, self.n, S)
        index = place_BnS[:, 1:].reshape(-1)
        if (
            tokens.real_BS is not None
        ):  # a mask makes the host wait for the device, which a step without padding avoids
            real_BS = tokens.real_BS.to(index.device)
            index = index[real_BS[:, None].expand_as(place_BnS[:, 1:]).reshape(-1)]

        def spread(values: Tensor) -> Tensor:
            return values.expand_as(place_BnS).reshape(-1)[index]

        return NoisyTokens(
            index=index,
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
