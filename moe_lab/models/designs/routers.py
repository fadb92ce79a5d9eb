"""Routers of designs in which tokens choose experts: each token for itself, or the first token of a unit for all of it.

The scores of experts are a float32 softmax over all of them. With a selection bias, experts are chosen by scores plus
bias, and weights are the scores without it, as in DeepSeek-V3 (whose scores are sigmoids; Wang et al. 2024, "Auxiliary-
Loss-Free Load Balancing"). The bias is a float32 buffer: no optimizer changes it.

**Words and sentences.** MoE-Bench says that tokens of one word, or of one sentence, have the same routing, and not
from what it is computed. Here the decision of a unit, its experts and their weights, is that of its first token. A
causal model must process that token before it knows any other of the unit, so no other shared decision is causal.
Router logits are those of the decision, so each unit counts once for each of its tokens in losses and loads.

**Hashed words.** The work that MoE-Bench cites for words (dos Santos et al. 2023) fixes their experts by the word's id.
A causal model knows a word's first token alone when it routes it, so here the id is that of the first token.

B = sequences, S = positions, T = B x S tokens, E = experts, K = experts per token, H = hidden size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionAndFullAttentionLayer
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.routing.designs import fixed_routing
from moe_lab.routing.noise import gumbel_for_tokens

Decision = tuple[Tensor, Tensor, Tensor]
"""(router logits [T, E], combine weights [T, K], experts int64 [T, K])"""


class Units(NamedTuple):
    """Where the units of a pass begin."""

    first_BS: Tensor
    """int64: the position in this pass of the first token of each token's unit; -1: it was in an earlier pass."""
    kind_BS: Tensor
    """int64: the kind of each token (`units.py`), by which it is decided whether the next one begins a unit."""
    id_BS: Tensor
    """int64: each token's id."""


class DesignRouter(Qwen2MoeTopKRouter):
    """What the routers of all designs have: router weights [E, H], and the bias or None."""

    def __init__(self, config: MoeDesignConfig):
        super().__init__(config)
        self.fixed_routing = fixed_routing(config)
        bias_E = torch.zeros(self.num_experts, dtype=torch.float32) if config.selection_bias else None
        self.register_buffer("selection_bias", bias_E)

    def decide(self, logits_TE: Tensor) -> Decision:
        """The K experts with the largest scores plus bias."""
        scores_TE = torch.softmax(logits_TE, dim=-1, dtype=torch.float32)
        if self.selection_bias is None:
            weights_TK, index_TK = scores_TE.topk(self.top_k, dim=-1)
        else:
            index_TK = (scores_TE + self.selection_bias.float()).topk(self.top_k, dim=-1).indices
            weights_TK = scores_TE.gather(-1, index_TK)
        if self.norm_topk_prob:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
        return logits_TE, weights_TK.to(logits_TE.dtype), index_TK


class DesignTopKRouter(DesignRouter):
    """Token choice: each token takes its K experts."""

    def forward(self, hidden_TH: Tensor) -> Decision:
        return self.decide(F.linear(hidden_TH, self.weight))


class BiasedTopKRouter(DesignTopKRouter):
    """Token choice with a selection bias: a class of its own, since its rule is another one (`routing/families.py`)."""


class UnitTopKRouter(DesignRouter):
    """Words or sentences: each token takes the K experts of the first token of its unit."""

    def __init__(self, config: MoeDesignConfig, layer: int):
        super().__init__(config)
        self.layer = layer

    def forward(self, hidden_TH: Tensor, units: Units, cache: Cache | None) -> Decision:
        logits_BSE = F.linear(hidden_TH, self.weight).unflatten(0, units.first_BS.shape)
        return self.decide(self.of_first_token(logits_BSE, units, cache).flatten(0, 1))

    def of_first_token(self, own_BSX: Tensor, units: Units, cache: Cache | None) -> Tensor:
        """[B, S, X]: for each token what its unit's first token has in `own_BSX`; a cache keeps the last unit's."""
        earlier_BX = None if cache is None else cache.get_recurrent_state(self.layer)
        if earlier_BX is None:
            earlier_BX = torch.zeros_like(own_BSX[:, 0])
        source_BSX = (units.first_BS + 1)[..., None].expand_as(own_BSX)
        decided_BSX = torch.cat([earlier_BX[:, None], own_BSX], dim=1).gather(1, source_BSX)
        if cache is not None:
            cache.update_conv_state(units.kind_BS[:, None], self.layer, conv_kernel_size=1)
            cache.update_recurrent_state(decided_BSX[:, -1], self.layer)
        return decided_BSX


class HashedWordRouter(UnitTopKRouter):
    """Words: each token takes K experts by a hash of the layer and the id of its word's first token, equally weighted.

    It has no parameters. Its logits are 0: the choice depends on no hidden state.
    """

    def __init__(self, config: MoeDesignConfig, layer: int):
        super().__init__(config, layer)
        self.weight = None

    def forward(self, hidden_TH: Tensor, units: Units, cache: Cache | None) -> Decision:
        id_T = self.of_first_token(units.id_BS[..., None], units, cache).flatten()
        zero_T = torch.zeros_like(id_T)
        layer_L = torch.tensor([self.layer], device=id_T.device)
        noise_TE = gumbel_for_tokens(0, id_T, zero_T, zero_T, zero_T, layer_L, self.num_experts)[0]
        index_TK = noise_TE.topk(self.top_k, dim=-1).indices
        weights_TK = hidden_TH.new_full(index_TK.shape, 1 / self.top_k)
        return hidden_TH.new_zeros(noise_TE.shape), weights_TK, index_TK


def last_kind(cache: Cache | None, layer: int) -> Tensor | None:
    """int64 [B, 1]: the kind of the last token that a cache holds; None for an empty one.

    Raises ValueError for a cache without a place for it.
    """
    if cache is None:
        return None
    if len(cache.layers) <= layer or not isinstance(
        cache.layers[layer], LinearAttentionAndFullAttentionLayer
    ):
        raise ValueError(
            "A model that routes words or sentences keeps the decision of the present one in its cache. Use "
            "DynamicCache(config=model.config)."
        )
    return cache.get_conv_state(layer)[:, 0] if cache.has_previous_state(layer) else None
