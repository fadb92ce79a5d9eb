"""RoE with the clean cache. vLLM's pass is the base model's. Noisy samples run for its logits.

`forward` runs the base model and keeps the input of the fork layer, the first layer with noise.
`compute_logits` gets some rows of its output: the last token of each text, or all tokens of a
prompt that is scored. From each of them n - 1 noisy samples pass through the fork layer and all
later ones. Each sample is a virtual request of one new token. It reads the blocks of its text, but
its last block is a scratch block: a copy with the sample's own keys and values at the end. So the
cache holds keys and values of the base model alone.

T = tokens of vLLM's pass, M = rows that need logits, n = samples, R = noisy samples of a chunk,
D = hidden size, V = vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from vllm.forward_context import get_forward_context, set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec

from moe_lab.routing.samples import NoisyTokens
from moe_lab_vllm.options import Options
from moe_lab_vllm.requests import NAME, Requests
from moe_lab_vllm.routers import NoisyRouters
from moe_lab_vllm.scheduler import scratch_blocks

BASE = 256
"""Row numbers are written with two digits of this base. Every floating-point type holds them
exactly. So a pass has at most `check.MOST_TOKENS` rows."""


@dataclass(frozen=True)
class Pass:
    """What the noisy samples need of vLLM's last pass."""

    requests: Requests
    start: Tensor
    """int32: the first token of each request, and the end of the last one."""
    block_table: Tensor
    """int32: the KV blocks of each request."""
    position_T: Tensor
    fork_TD: Tensor
    """The input of the fork layer."""


class CleanCache:
    """The two phases.

    Args:
        model: with the decoder layers `model.model.layers` and the last norm `model.model.norm`.
        head: hidden states [M, D] -> logits [M, V].
    """

    def __init__(
        self, model: Any, head: Callable[[Tensor], Tensor], options: Options, vllm_config: Any
    ):
        decoder = model.model
        self.options, self.vllm_config, self.head, self.norm = (
            options,
            vllm_config,
            head,
            decoder.norm,
        )
        self.routers = NoisyRouters(
            decoder.layers, vllm_config.model_config.hf_text_config.model_type, options
        )
        self.layers: list[nn.Module] = list(decoder.layers[self.routers.fork :])
        self.attentions = [layer.self_attn.attn for layer in self.layers]
        self._builder: Any = None
        self._fork_TD: Tensor | None = None
        self._last: Pass | None = None
        self.layers[0].register_forward_pre_hook(self._keep_fork)

    def _keep_fork(self, layer: nn.Module, arguments: tuple) -> None:
        _, hidden, residual = arguments
        # a new tensor: the layer adds in place
        self._fork_TD = hidden.clone() if residual is None else hidden + residual

    def forward(self, run: Callable[[], Tensor], positions: Tensor) -> Tensor:
        """[T, D + 2]: the hidden states of vLLM's pass. Two more columns hold the row numbers."""
        with self.routers.noise(None):
            hidden_TD = run()
        context = get_forward_context()
        self._last = None
        if context.attn_metadata is not None:  # None while vLLM measures its memory
            attention = context.attn_metadata[self.attentions[0].layer_name]
            assert self._fork_TD is not None
            self._last = Pass(
                requests=context.no_compile_layers[NAME],
                start=attention.query_start_loc,
                block_table=attention.block_table,
                position_T=positions,
                fork_TD=self._fork_TD,
            )
        row_T = torch.arange(len(hidden_TD), device=hidden_TD.device)
        digits_T2 = torch.stack([row_T // BASE, row_T % BASE], dim=1).to(hidden_TD.dtype)
        return torch.cat([hidden_TD, digits_T2], dim=1)

    def compute_logits(self, packed: Tensor) -> Tensor:
        """float32 [M, V]: the log of the averaged distribution."""
        hidden_MD, digits_M2 = packed[:, :-2], packed[:, -2:].long()
        scores_MV = self.head(hidden_MD.contiguous()).float().log_softmax(dim=-1)
        if self._last is None:
            return scores_MV
        row_M = digits_M2[:, 0] * BASE + digits_M2[:, 1]
        request_M = torch.searchsorted(self._last.start, row_M.int(), right=True) - 1
        *_, first_M = self._last.requests.columns(request_M)
        noisy = (self._last.position_T[row_M] >= first_M).nonzero()[:, 0]
        chunks = noisy.split(self._scratch() // (self.options.n - 1)) if len(noisy) else ()
        for at in chunks:
            logits_RV = self._noisy_logits(self._last, row_M[at], request_M[at])
            noisy_CnV = logits_RV.float().log_softmax(dim=-1).unflatten(0, (len(at), -1))
            all_CnV = torch.cat([scores_MV[at, None], noisy_CnV], dim=1)
            scores_MV[at] = all_CnV.logsumexp(dim=1) - math.log(self.options.n)
        return scores_MV

    def _noisy_logits(self, last: Pass, row_C: Tensor, request_C: Tensor) -> Tensor:
        """[R, V]: logits of n - 1 noisy samples of each of these rows of vLLM's pass."""
        noisy = self.options.n - 1
        position_C = last.position_T[row_C]
        table, slot_R = self._blocks(last.block_table[request_C], position_C)
        document_C, repeat_C, _ = last.requests.columns(request_C)
        position_R = position_C.repeat_interleave(noisy)
        tokens = NoisyTokens(
            index=torch.arange(len(position_R), device=row_C.device),
            document=document_C.repeat_interleave(noisy),
            repeat=repeat_C.repeat_interleave(noisy),
            row=torch.arange(1, noisy + 1, device=row_C.device).repeat(len(row_C)),
            position=position_R,
        )
        attention = self._attention_metadata(position_R, table, slot_R)
        names = [attention_layer.layer_name for attention_layer in self.attentions]
        in_context = set_forward_context(
            dict.fromkeys(names, attention),
            self.vllm_config,
            num_tokens=len(position_R),
            slot_mapping=dict.fromkeys(names, slot_R),
        )
        hidden, residual = last.fork_TD[row_C].repeat_interleave(noisy, dim=0), None
        with in_context, self.routers.noise(tokens, self.routers.fork):
            # vLLM counts MoE layers from the first decoder layer on. Without its list, it finds
            # layers by name.
            get_forward_context().all_moe_layers = None
            for layer in self.layers:
                hidden, residual = layer(position_R, hidden, residual)
        hidden, _ = self.norm(hidden, residual)
        return self.head(hidden)

    def _blocks(self, table_CB: Tensor, position_C: Tensor) -> tuple[Tensor, Tensor]:
        """Block tables [R, blocks] of the samples, and the slots [R] of their keys and values.

        Copies the last block of each text to the scratch blocks of its samples.
        """
        noisy, size = self.options.n - 1, self.vllm_config.cache_config.block_size
        last_C = position_C[:, None] // size
        own_C = table_CB.gather(1, last_C)[:, 0].long()
        count = len(own_C) * noisy
        blocks = len(self.attentions[0].kv_cache)
        begin = blocks - self._scratch()
        for attention in self.attentions:
            scratch = attention.kv_cache[begin : begin + count].unflatten(0, (-1, noisy))
            scratch.copy_(attention.kv_cache[own_C][:, None])
        scratch_R = torch.arange(begin, begin + count, device=own_C.device)
        table_RB = table_CB.repeat_interleave(noisy, dim=0)
        table_RB.scatter_(
            1, last_C.repeat_interleave(noisy, dim=0), scratch_R[:, None].to(table_RB.dtype)
        )
        return table_RB, scratch_R * size + position_C.repeat_interleave(noisy) % size

    def _attention_metadata(self, position_R: Tensor, table_RB: Tensor, slot_R: Tensor) -> Any:
        """The back end's metadata for R requests with one new token each."""
        if self._builder is None:
            self._builder = self._make_builder()
        start = torch.arange(len(position_R) + 1, dtype=torch.int32, device=position_R.device)
        length_R = (position_R + 1).int()
        return self._builder.build(
            0,
            CommonAttentionMetadata(
                query_start_loc=start,
                query_start_loc_cpu=start.cpu(),
                seq_lens=length_R,
                num_reqs=len(position_R),
                num_actual_tokens=len(position_R),
                max_query_len=1,
                max_seq_len=int(length_R.max()),
                block_table_tensor=table_RB,
                slot_mapping=slot_R,
            ),
        )

    def _make_builder(self) -> Any:
        """The metadata builder of the back end. All layers have one kind of KV cache."""
        specs = [attention.get_kv_cache_spec(self.vllm_config) for attention in self.attentions]
        if any(spec != specs[0] or type(spec) is not FullAttentionSpec for spec in specs):
            raise ValueError(
                "RoE in vLLM: cache=clean needs full attention of the same size in all layers.\n"
                "Use cache=standard."
            )
        names = [attention.layer_name for attention in self.attentions]
        backend = self.attentions[0].get_attn_backend()
        device = self.attentions[0].kv_cache.device
        return backend.get_builder_cls()(specs[0], names, self.vllm_config, device)

    def _scratch(self) -> int:
        return scratch_blocks(self.options, len(self.attentions[0].kv_cache))
