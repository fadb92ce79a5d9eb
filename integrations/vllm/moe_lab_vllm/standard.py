"""RoE with the standard cache: each routing sample has its own keys and values.

From the fork layer on, each of the T tokens of a pass is n rows. An attention layer with n times as
many heads keeps the samples apart: head r * H + h belongs to sample r. So a KV block is n times as
wide, and vLLM's scheduler, chunked prefill, preemption and kernels need no change.

T = tokens of vLLM's pass, M = rows that need logits, n = samples, H = heads, D = hidden size,
V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention

from moe_lab.routing.samples import NoisyTokens
from moe_lab_vllm.options import Options
from moe_lab_vllm.requests import NAME
from moe_lab_vllm.routers import NoisyRouters


class SamplesAsHeads(Attention):
    """Attention over n samples of each token, [T * n, H * size] in and out."""

    @classmethod
    def in_place_of(cls, own: Attention, n: int, vllm_config: Any) -> SamplesAsHeads:
        """A layer of the same name with n times the heads of `own`."""
        if own.sliding_window is not None or own.has_sink:
            raise ValueError(
                "RoE in vLLM: cache=standard is not tested with sliding windows or attention sinks."
            )
        del vllm_config.compilation_config.static_forward_context[own.layer_name]
        made = cls(
            *(n * own.num_heads, own.head_size, own.impl.scale, n * own.num_kv_heads),
            cache_config=vllm_config.cache_config,
            quant_config=own.quant_config,
            prefix=own.layer_name,
        )
        made.samples = n
        return made

    samples: int

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *others: Any) -> Tensor:
        wide = [part.reshape(len(part) // self.samples, -1) for part in (query, key, value)]
        return super().forward(*wide, *others).reshape(len(query), -1)


class StandardCache:
    """All samples in vLLM's own pass. Arguments as of `CleanCache`."""

    def __init__(
        self, model: Any, head: Callable[[Tensor], Tensor], options: Options, vllm_config: Any
    ):
        decoder = model.model
        self.n, self.head = options.n, head
        self.routers = NoisyRouters(
            decoder.layers, vllm_config.model_config.hf_text_config.model_type, options
        )
        for layer in decoder.layers[self.routers.fork :]:
            layer.self_attn.attn = SamplesAsHeads.in_place_of(
                layer.self_attn.attn, self.n, vllm_config
            )
            layer.register_forward_pre_hook(self._widen)
        self._tokens = 0

    def _widen(self, layer: nn.Module, arguments: tuple) -> tuple:
        """Positions of T * n rows; at the fork layer, hidden states too."""
        position, hidden, residual = arguments
        if len(hidden) == self._tokens:
            hidden = hidden.repeat_interleave(self.n, dim=0)
            residual = None if residual is None else residual.repeat_interleave(self.n, dim=0)
        return position.repeat_interleave(self.n), hidden, residual

    def forward(self, run: Callable[[], Tensor], positions: Tensor) -> Tensor:
        """[T, n * D]: the hidden states of all samples."""
        self._tokens = len(positions)
        with self.routers.noise(self._noisy_tokens(positions)):
            hidden = run()
        return hidden.unflatten(0, (-1, self.n)).flatten(1)

    def _noisy_tokens(self, positions: Tensor) -> NoisyTokens | None:
        context = get_forward_context()
        if context.attn_metadata is None:  # while vLLM measures its memory
            return None
        start = next(iter(context.attn_metadata.values())).query_start_loc
        # without padding after the last request
        token = torch.arange(int(start[-1]), device=positions.device)
        request_T = torch.searchsorted(start, token.int(), right=True) - 1
        document_T, repeat_T, _ = context.no_compile_layers[NAME].columns(request_T)
        row = torch.arange(1, self.n, device=positions.device)
        return NoisyTokens(
            index=(token[:, None] * self.n + row).flatten(),
            document=document_T.repeat_interleave(self.n - 1),
            repeat=repeat_T.repeat_interleave(self.n - 1),
            row=row.repeat(len(token)),
            position=positions[: len(token)].repeat_interleave(self.n - 1),
        )

    def compute_logits(self, wide: Tensor) -> Tensor:
        """float32 [M, V]: the log of the averaged distribution."""
        logits = self.head(wide.unflatten(1, (self.n, -1)).flatten(0, 1))
        scores_MnV = logits.float().log_softmax(dim=-1).unflatten(0, (-1, self.n))
        return scores_MnV.logsumexp(dim=1) - math.log(self.n)
