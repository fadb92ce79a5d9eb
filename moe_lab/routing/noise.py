"""Keyed Gumbel noise, and Gumbel-top-k routing with it (RoE, equation 1).

A value of the noise is a function of (seed, document, repeat, row, layer, position, expert). It
does not depend on the batch, the order, the padding or the number of processes.

Gumbel-top-k chooses the k experts with the largest `scores + temperature * noise`. Scores are the
router's logits, or its sigmoids plus a bias (DeepSeek-V3 and similar).

T = tokens, N = noisy tokens among them, L = noisy layers, E = experts, K = experts per token.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing
from moe_lab.routing.samples import CountedSamples, NoisyTokens, noisy_choice, with_experts

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices that have no float64. Their noise is computed on the CPU."""

NOISE_BYTES = 33
"""Bytes for each token, layer and expert while noise is computed, in int64 and float64."""
AT_ONCE_BYTES = 2**24
"""Noise of several layers is computed together up to this size."""

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15: 2**64 / golden ratio, odd, as int64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def document_key(token_ids: Sequence[int]) -> int:
    """64-bit key of a prompt: BLAKE2b of its token ids as little-endian int64, read as a signed
    integer."""
    digest = blake2b(np.asarray(token_ids, dtype="<i8").tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def gumbel(
    seed: int,
    document: int,
    repeat: int,
    row: int,
    layer: int,
    positions: Sequence[int] | Tensor,
    n_experts: int,
    antithetic: bool = False,
) -> Tensor:
    """Keyed Gumbel(0, 1) noise, float32 [positions, n_experts] (equation 1 of the RoE paper).

    Args:
        seed: the run's seed.
        document: `document_key` of the prompt (the context when scoring, the window when rolling).
        repeat: 0, 1, ... for several answers to one prompt.
        row: 1 ... n-1; row 0 is the clean one and has no noise.
        layer: number of the MoE layer, from 0.
        positions: indices of the input tokens in the unpadded sequence.
        n_experts: number of experts of the layer.
        antithetic: whether rows 2j-1 and 2j share their uniform number: row 2j has the noise
            `-log(-log(1 - u))` with the u of row 2j-1. Odd rows do not change.

    The hash works on 64-bit integers that wrap around. With `mix` the finalizer of SplitMix64
    (`z ^= z >>> 30; z *= 0xBF58476D1CE4E5B9; z ^= z >>> 27; z *= 0x94D049BB133111EB; z ^= z >>>
    31`), it starts at 0 and takes in seed, document, repeat, row, layer, position and expert, in
    this order, by `h = mix((h ^ value) + 0x9E3779B97F4A7C15)`. The upper 53 bits k of the result
    give the uniform number `u = (k + 0.5) / 2**53`, and the noise is `-log(-log(u))`, computed in
    float64.
    """
    position_T = torch.as_tensor(positions, dtype=torch.int64)
    document_T = torch.full_like(position_T, document)
    repeat_T = torch.full_like(position_T, repeat)
    row_T = torch.full_like(position_T, row)
    layer_L = torch.tensor([layer], device=position_T.device)
    noise_LTE = gumbel_for_tokens(
        seed, document_T, repeat_T, row_T, position_T, layer_L, n_experts, antithetic
    )
    return noise_LTE[0]


def gumbel_for_tokens(
    seed: int,
    document_T: Tensor,
    repeat_T: Tensor,
    row_T: Tensor,
    position_T: Tensor,
    layer_L: Tensor,
    n_experts: int,
    antithetic: bool = False,
) -> Tensor:
    """`gumbel` for T tokens, each with its own key, and L layers at once: float32 [L, T,
    n_experts]."""
    hash_LT = _hash(seed, document_T, repeat_T, row_T, layer_L, antithetic)
    expert_E = torch.arange(n_experts, device=document_T.device)
    return _noise_at(hash_LT, position_T, expert_E, row_T if antithetic else None)


def _hash(
    seed: int,
    document_T: Tensor,
    repeat_T: Tensor,
    row_T: Tensor,
    layer_L: Tensor,
    antithetic: bool,
) -> Tensor:
    """int64 [L, T]: the part of the hash that all positions of a sample and all experts share."""
    if antithetic:
        # an even sample takes the hash of the odd one before it, and 1 - u in place of u
        row_T = row_T - _mirrored(row_T).long()
    hash_: Any = _seed_hash(seed)
    for value_T in (document_T, repeat_T, row_T):
        hash_ = absorb(hash_, value_T)
    return absorb(hash_[None], layer_L[:, None])


@lru_cache(maxsize=64)
def _seed_hash(seed: int) -> int:
    """The hash at its beginning: of the seed alone."""
    hashed = absorb(np.zeros(1, dtype=np.int64), np.array([seed]))
    return int(hashed[0])


def _mirrored(row_T: Tensor) -> Tensor:
    """bool [T]: whether a sample has the antithetic noise of the one before it."""
    return (row_T > 0) & (row_T % 2 == 0)


def _noise_at(
    hash_LT: Tensor, position_T: Tensor, expert_E: Tensor, antithetic_row_T: Tensor | None
) -> Tensor:
    """float32 [L, T, E]: the noise of experts at positions.

    Args:
        hash_LT: `_hash` of the samples.
        antithetic_row_T: the samples' rows with antithetic noise; None: independent noise.
    """
    device = hash_LT.device
    if device.type in WITHOUT_FLOAT64:
        hash_LT = hash_LT.cpu()
        position_T = position_T.cpu()
        expert_E = expert_E.cpu()
    k_LTE = _numbers_at(hash_LT, position_T, expert_E)
    if antithetic_row_T is not None:
        mirrored_T = _mirrored(antithetic_row_T).to(k_LTE.device)
        k_LTE = torch.where(mirrored_T[:, None], 2**53 - 1 - k_LTE, k_LTE)  # the k of 1 - u
    uniform_LTE = (k_LTE.double() + 0.5) * 2.0**-53
    return -torch.log(-torch.log(uniform_LTE)).float().to(device)


def _numbers_at(hash_LT: Tensor, position_T: Tensor, expert_E: Tensor) -> Tensor:
    """int64 [L, T, E]: the k of `gumbel`, 0 to 2**53 - 1, of experts at positions."""
    hash_LT = absorb(hash_LT, position_T[None])
    hash_LTE = absorb(hash_LT[..., None], expert_E)
    return _shift(hash_LTE, 11)  # the upper 53 bits


def uniform_for_tokens(
    seed: int,
    document_T: Tensor,
    repeat_T: Tensor,
    row_T: Tensor,
    position_T: Tensor,
    layer_L: Tensor,
    n_experts: int,
) -> Tensor:
    """Keyed uniform numbers, float32 [L, T, n_experts], above 0 and below 1.

    A number is `(j + 0.5) / 2**23`, where j are the upper 23 bits of the k of `gumbel`: float32
    holds each exactly.
    """
    hash_LT = _hash(seed, document_T, repeat_T, row_T, layer_L, antithetic=False)
    expert_E = torch.arange(n_experts, device=document_T.device)
    k_LTE = _numbers_at(hash_LT, position_T, expert_E)
    return (_shift(k_LTE, 30).float() + 0.5) * 2.0**-23


def absorb(hash_: Any, value: Any) -> Any:
    """A hash of `hash_` and a further value: one step of the hash of `gumbel`.

    Both are int64, tensors or NumPy arrays, of shapes that broadcast; so is the result.
    """
    z = (hash_ ^ value) + _GOLDEN
    z = (z ^ _shift(z, 30)) * _MIX_1
    z = (z ^ _shift(z, 27)) * _MIX_2
    return z ^ _shift(z, 31)


def _shift(z: Any, bits: int) -> Any:
    """Logical right shift of int64 (torch's own keeps the sign)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class _Constants(NamedTuple):
    """Numbers that noise is computed from, on a device."""

    layer_L: Tensor
    """int64: the numbers of some noisy layers."""
    temperature_L: Tensor
    """Of these layers."""
    expert_E: Tensor
    """int64: 0 to E-1."""


class GumbelTopK(CountedSamples):
    """Samples choose their experts with noise.

    Args:
        temperatures: one per MoE layer; 0: no noise.
        seed: key of the noise.
        perturbed_weights: compute combine weights from the noisy logits instead of the clean ones;
            for families with `chooses_by_logits`.
        antithetic: rows 2j-1 and 2j have antithetic noise (`gumbel`).

    `moe_lab.RoE` runs a model with this policy.
    """

    repeatable = True

    def __init__(
        self,
        temperatures: Sequence[float],
        seed: int,
        perturbed_weights: bool = False,
        *,
        antithetic: bool = False,
    ):
        super().__init__()
        self.temperatures = list(temperatures)
        self.seed = seed
        self.perturbed_weights = perturbed_weights
        self.antithetic = antithetic
        self._noisy_layers = [
            layer for layer, temperature in enumerate(temperatures) if temperature > 0
        ]
        self.noiseless = not self._noisy_layers
        self._noise: dict[int, Tensor] = {}
        """float32 [N, E] of some layers, by layer: noise times temperature."""
        self._constants: dict[Any, _Constants] = {}
        """By device, number of experts and layers."""

    def expect(self, tokens: NoisyTokens | None) -> None:
        self._noise = {}
        super().expect(tokens)

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        tokens = self.tokens
        if tokens is None or self.temperatures[router.layer] == 0:
            return None
        logits_NE = tokens.of(routing.logits_TE)
        noise_NE = self._noise_of(tokens, router.layer, logits_NE.shape[-1])
        noisy = noisy_choice(router, logits_NE, noise_NE, routing.index_TK.shape[-1])
        self._counter.decided(noisy.index_NK, routing.index_TK)
        if self.perturbed_weights:
            logits_NE = router.family.rule.logits(noisy.scores_NE).to(logits_NE.dtype)
        return with_experts(router, routing, tokens, logits_NE, noisy.index_NK)

    def _noise_of(self, tokens: NoisyTokens, layer: int, n_experts: int) -> Tensor:
        """float32 [N, E]: noise times temperature.

        Few tokens get the noise of all layers at once: a step of generation has few operations.
        """
        if layer not in self._noise:
            bytes_of_layer = NOISE_BYTES * max(1, len(tokens.position)) * n_experts
            layers_at_once = max(1, AT_ONCE_BYTES // bytes_of_layer)
            at = self._noisy_layers.index(layer)
            layers = tuple(self._noisy_layers[at : at + layers_at_once])
            self._noise = self._noise_of_layers(tokens, layers, n_experts)
            self._compare()
        return self._noise[layer]

    def _noise_of_layers(
        self, tokens: NoisyTokens, layers: tuple[int, ...], n_experts: int
    ) -> dict[int, Tensor]:
        """Noise times temperature, float32 [N, E], by layer."""
        constants = self._constants_of(tokens.position.device, layers, n_experts)
        key = (self, *layers)
        if key not in tokens.known:
            tokens.known[key] = _hash(
                self.seed,
                tokens.document,
                tokens.repeat,
                tokens.row,
                constants.layer_L,
                self.antithetic,
            )
        antithetic_row = tokens.row if self.antithetic else None
        hash_LN = tokens.known[key]
        noise_LNE = _noise_at(hash_LN, tokens.position, constants.expert_E, antithetic_row)
        noise_LNE = noise_LNE * constants.temperature_L[:, None, None]
        return dict(zip(layers, noise_LNE, strict=True))

    def _constants_of(
        self, device: torch.device, layers: tuple[int, ...], n_experts: int
    ) -> _Constants:
        """The numbers on the device, put there once: a step of generation uploads nothing."""
        key = (device, n_experts, *layers)
        if key not in self._constants:
            temperatures = [self.temperatures[layer] for layer in layers]
            self._constants[key] = _Constants(
                layer_L=torch.tensor(layers, device=device),
                temperature_L=torch.tensor(temperatures, device=device),
                expert_E=torch.tensor(range(n_experts), device=device),
            )
        return self._constants[key]
