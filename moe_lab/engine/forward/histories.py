"""The tokens that routing samples attend to: one clean history for all (clean cache), or one of
each sample.

Clean history: noisy samples of a token are extra slots of its sequence. Own histories (standard
cache): each sample is a batch entry of its own from the fork layer on.

B = sequences, S = new tokens, T = cached slots, R = S + the most noisy samples of a sequence, M =
logit positions, n = routing samples of each.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace

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
    layer_inputs,
)
from moe_lab.routing.samples import NoisyTokens
from moe_lab.routing.tokens import KeyedTokens


@dataclass(frozen=True)
class SamplePlaces:
    """The places of a pass's samples after the fork layer."""

    logits_at: Tensor
    """int64 [M, n]: flat index of each sample of each logit position among all tokens of the
    pass."""
    noisy: NoisyTokens


@dataclass(frozen=True)
class Fork:
    """The R slots that S clean tokens of B sequences become. Sequences with fewer samples are
    padded."""

    positions_M: Tensor
    """The logit positions that fork."""
    sequence_B1: Tensor
    """int64: 0 to B-1."""
    source_BR: Tensor
    """int64: the clean token that each slot is a copy of."""
    others_BRS: Tensor
    """bool: False for the clean token of a noisy sample, which the sample replaces."""
    itself_BRN: Tensor
    """bool: the slots of noisy samples that each slot attends to: a sample to itself."""
    logits_at: Tensor
    """int64 [M, n]: flat indices into B x R of the samples of each logit position, the clean one
    first."""
    noisy: NoisyTokens
    """The M (n - 1) noisy samples, by logit position."""
    clean: Tensor
    """int64: flat indices into B x S of the clean tokens of these."""

    def copies(self, tensor: Tensor) -> Tensor:
        """The values of clean tokens, [B, S, ...], for the slots that are their copies: [B, R,
        ...].

        [1, S, ...] are values for all sequences.
        """
        B, R = self.source_BR.shape
        clean_BS = tensor.expand(B, *tensor.shape[1:])
        # all slots are copies of a single token: no copy in memory is needed
        if tensor.shape[1] == 1:
            return clean_BS.expand(B, R, *tensor.shape[2:])
        return clean_BS[self.sequence_B1.to(tensor.device), self.source_BR.to(tensor.device)]

    def visible(self, visible_BSK: Tensor) -> Tensor:
        """bool [B, R, T + R]: the slots that each slot attends to, from those of the clean tokens.

        A sample sees the slots that its token sees, without the token's own, and its own slot: so
        all samples share the clean history, and no sample sees another one.
        """
        S = visible_BSK.shape[1]
        visible_BRK = self.copies(visible_BSK)
        new_BRS = visible_BRK[..., -S:] & self.others_BRS
        return torch.cat([visible_BRK[..., :-S], new_BRS, self.itself_BRN], dim=-1)

    def visible_in_place(self, visible_B1K: Tensor, slot: Tensor) -> Tensor:
        """bool [B, R, K]: `visible` for a fixed cache of K slots, in which each sequence has its
        one new token at `slot`, and the noisy samples of it in the slots after that."""
        R = self.source_BR.shape[1]
        K = visible_B1K.shape[-1]
        from_slot_K = torch.arange(K, device=slot.device) - slot
        itself_RK = from_slot_K == torch.arange(R, device=slot.device)[:, None]
        return (visible_B1K & (from_slot_K != 0)) | itself_RK


def fork_samples(tokens: Tokens, n: int) -> Fork:
    """Add n - 1 noisy samples to every logit position. A sample attends to itself instead of its
    token.

    No shape depends on a value of the device.
    """
    device = tokens.ids_BS.device
    positions_M = tokens.logit_positions_M
    B, S = tokens.ids_BS.shape
    noisy_slots = tokens.most_logits * (n - 1)
    sequence_M = positions_M // S
    token_M = positions_M % S
    slot_Mn = _slots_of_samples(sequence_M, token_M, S, n)
    logits_at = sequence_M[:, None] * (S + noisy_slots) + slot_Mn

    # the clean token that each slot is a copy of; slots of padding are copies of token 0
    slot_R = torch.arange(S + noisy_slots, device=device)
    token_S = slot_R[:S]
    source_BR = torch.nn.functional.pad(token_S.expand(B, S), (0, noisy_slots))
    noisy_slot_Mm = slot_Mn[:, 1:]
    source_BR[sequence_M[:, None], noisy_slot_Mm] = token_M[:, None].expand_as(noisy_slot_Mm)

    others_BRS = source_BR[..., None] != token_S
    others_BRS[:, :S] = True
    itself_RN = slot_R[:, None] == slot_R[S:]
    return Fork(
        positions_M=positions_M,
        sequence_B1=torch.arange(B, device=device)[:, None],
        source_BR=source_BR,
        others_BRS=others_BRS,
        itself_BRN=itself_RN.expand(B, -1, -1),
        logits_at=logits_at,
        noisy=_noisy_samples(tokens, logits_at),
        clean=positions_M.repeat_interleave(n - 1),
    )


def _slots_of_samples(sequence_M: Tensor, token_M: Tensor, S: int, n: int) -> Tensor:
    """int64 [M, n]: the slots of each logit position's samples in its sequence.

    The clean sample is the token itself. The noisy ones come after the S tokens, position by
    position. With S = 3 and n = 3, a sequence whose logit positions are its tokens 1 and 2 has the
    samples [[1, 3, 4], [2, 5, 6]].

    Args:
        sequence_M, token_M: the sequence and the token of each logit position, in order.
    """
    device = sequence_M.device
    # the first logit position of a position's sequence is found by a search, since they are in
    # order
    first_M = torch.searchsorted(sequence_M, sequence_M)
    number_in_sequence_M = torch.arange(len(sequence_M), device=device) - first_M
    m = n - 1
    noisy_Mm = S + number_in_sequence_M[:, None] * m + torch.arange(m, device=device)
    return torch.cat([token_M[:, None], noisy_Mm], dim=1)


def _noisy_samples(tokens: Tokens, logits_at: Tensor) -> NoisyTokens:
    """The noisy samples of all logit positions; `logits_at` is that of `Fork`."""
    M, n = logits_at.shape
    S = tokens.ids_BS.shape[1]
    clean = tokens.logit_positions_M.repeat_interleave(n - 1)
    sequence = clean // S
    return NoisyTokens(
        index=logits_at[:, 1:].reshape(-1),
        document=tokens.noise_key_B[sequence],
        repeat=tokens.sample_index_B[sequence],
        row=torch.arange(1, n, device=logits_at.device).repeat(M),
        position=tokens.position_BS.flatten()[clean],
    )


class CleanHistory:
    """Hooks that fork clean tokens into samples in front of the fork layer, with masks for it and
    the later layers."""

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        first = fork_layer(model, ensemble.first_noisy)
        layers = decoder_layers(model)[first:]
        windows = attention_windows(model)[first:]
        self.n = ensemble.n
        self.dtype = model.dtype
        self.extra_slots = ensemble.n - 1
        self.fork_layer = layers[0]
        self.window_of = dict(zip(layers, windows, strict=True))
        self._fork: Fork | None = None

    def install(self, stack: ExitStack) -> None:
        """Register the hooks until the stack is closed."""
        for layer in self.window_of:
            hook = layer.register_forward_pre_hook(self._before_layer, with_kwargs=True)
            stack.callback(hook.remove)

    def expect(self, tokens: Tokens, cache: KVCache) -> SamplePlaces | None:
        """Called before each pass. None: the pass has no noise or no logit positions."""
        if not tokens.noise or not len(tokens.logit_positions_M):
            self._fork = None
            return None
        if self._fork is None or self._fork.positions_M is not tokens.logit_positions_M:
            self._fork = fork_samples(tokens, self.n)
        fork = self._fork
        visible_BSK = tokens.visible(cache.length)
        noisy = fork.noisy.at(tokens.position_BS.flatten()[fork.clean])
        if tokens.slot is None:
            visible_BRK = fork.visible(visible_BSK)
        else:
            visible_BRK = fork.visible_in_place(visible_BSK, tokens.slot)
            noisy = replace(noisy, counted=tokens.real_BS.flatten()[fork.clean])
        self._masks = LayerMasks(visible_BRK, self.dtype)
        self._per_token = PerToken(fork.copies)
        return SamplePlaces(fork.logits_at, noisy)

    def keyed(self, tokens: Tokens) -> KeyedTokens:
        """The B x R slots of the pass, as a policy knows them."""
        assert self._fork is not None
        fork = self._fork
        B, S = tokens.ids_BS.shape
        R = fork.source_BR.shape[1]
        slots = tokens.keyed().at((fork.sequence_B1 * S + fork.source_BR).reshape(-1))
        sample_T = torch.zeros_like(slots.sample_T)
        sample_T[fork.noisy.index] = fork.noisy.row
        is_clean_T = (torch.arange(R, device=sample_T.device) < S).repeat(B)
        real_T = slots.real_T & (is_clean_T | (sample_T > 0))
        return replace(slots, sample_T=sample_T, real_T=real_T)

    def _before_layer(
        self, layer: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        """(no positional arguments, the layer's inputs with samples, by name); None: unchanged."""
        if self._fork is None:
            return None
        inputs = self._per_token(layer_inputs(layer, args, kwargs))
        inputs["attention_mask"] = self._masks.of(self.window_of[layer])
        if layer is self.fork_layer:
            inputs["hidden_states"] = self._fork.copies(inputs["hidden_states"]).contiguous()
        return (), inputs


class OwnHistory:
    """Hooks that fork B sequences into B x n in front of the fork layer.

    A token that is read with noise is noisy in all samples but the first. Each sample attends to
    its own keys and values.
    """

    extra_slots = 0

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        self.n = ensemble.n
        self.first_layer = fork_layer(model, ensemble.first_noisy)
        self.layers = decoder_layers(model)[self.first_layer :]
        self._per_token: PerToken | None = None
        """Of this pass; None for a pass without noise."""

    def install(self, stack: ExitStack) -> None:
        """Register the hooks until the stack is closed."""
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
        sequence_M = tokens.logit_positions_M // S
        token_M = tokens.logit_positions_M % S
        sample_n = torch.arange(self.n, device=tokens.ids_BS.device)
        logits_at = (sequence_M[:, None] * self.n + sample_n) * S + token_M[:, None]
        return SamplePlaces(logits_at, self._noisy_tokens(tokens))

    def keyed(self, tokens: Tokens) -> KeyedTokens:
        """The B x n x S tokens of the pass, as a policy knows them."""
        B, S = tokens.ids_BS.shape
        token_BS = torch.arange(B * S, device=tokens.ids_BS.device).view(B, S)
        of_samples = tokens.keyed().at(self._repeated(token_BS).reshape(-1))
        sample_n = torch.arange(self.n, device=tokens.ids_BS.device)
        sample_T = sample_n[:, None].expand(B, self.n, S).reshape(-1)
        return replace(of_samples, sample_T=sample_T)

    def _noisy_tokens(self, tokens: Tokens) -> NoisyTokens:
        """All tokens of all samples but the first of each sequence, without padding."""
        B, S = tokens.ids_BS.shape
        sample_n = torch.arange(self.n, device=tokens.ids_BS.device)
        place_BnS = torch.arange(B * self.n * S, device=sample_n.device).view(B, self.n, S)
        noisy_BmS = place_BnS[:, 1:]
        real_BmS = tokens.real_BS.to(noisy_BmS.device)[:, None].expand_as(noisy_BmS)
        if tokens.slot is None:
            index = noisy_BmS[real_BmS]
            counted = None
        else:
            # steps in place keep the shape of all sequences, and count the decisions of the
            # unfinished ones
            index = noisy_BmS.flatten()
            counted = real_BmS.flatten()

        def of_noisy(values: Tensor) -> Tensor:
            """[N]: the values of the noisy samples, from values that [B, n, S] expands."""
            return values.expand_as(place_BnS).reshape(-1)[index]

        return NoisyTokens(
            index=index,
            document=of_noisy(tokens.noise_key_B[:, None, None]),
            repeat=of_noisy(tokens.sample_index_B[:, None, None]),
            row=of_noisy(sample_n[:, None]),
            position=of_noisy(tokens.position_BS[:, None]),
            counted=counted,
        )

    def _before_layer(
        self, layer: nn.Module, args: tuple, kwargs: dict
    ) -> tuple[tuple, dict] | None:
        """(no positional arguments, the layer's inputs with samples, by name); None: unchanged."""
        if self._per_token is None:
            return None
        inputs = self._per_token(layer_inputs(layer, args, kwargs))
        if layer is self.layers[0]:
            inputs["hidden_states"] = self._repeated(inputs["hidden_states"])
        return (), inputs

    def _repeated(self, tensor: Tensor) -> Tensor:
        """[B n, ...]: each sequence's values n times, one after the other."""
        return tensor.repeat_interleave(self.n, dim=0)
