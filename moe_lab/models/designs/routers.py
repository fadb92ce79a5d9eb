"""Routers of designs: tokens choose experts, the first token of a unit chooses for all of it, or
experts choose tokens.

**Token choice.** The scores of experts are a float32 softmax over all of them. With a selection
bias, experts are chosen by scores plus bias, and weights are the scores without it, as in
DeepSeek-V3 (whose scores are sigmoids; Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing"). The
bias is a float32 buffer: no optimizer changes it.

**Words and sentences.** MoE-Bench says that tokens of one word, or of one sentence, have the same
routing, but not what it is computed from. Here the decision of a unit, its experts and their
weights, is that of its first token. A causal model must process that token before it knows any
other of the unit, so no other shared decision is causal. Router logits are those of the decision,
so each unit counts once for each of its tokens in losses and loads.

**Hashed words.** The work that MoE-Bench cites for words (dos Santos et al. 2023) fixes their
experts by the word's id. A causal model knows a word's first token alone when it routes it, so here
the id is that of the first token.

**Expert choice** (Zhou et al. 2022). Each expert takes its capacity of tokens, so all experts have
the same number. An expert takes the tokens to which it is most probable, by a softmax over experts,
and weighs them by that probability. It chooses among the tokens of one sequence, not of the whole
batch: the score of a document would depend on the other documents of its batch. A token may have
any number of experts, none included. It is not causal: whether an expert takes a token depends on
later tokens. So nothing can be cached, and generation reads the whole sequence for every new token.

B = sequences, S = positions, T = B x S tokens, E = experts, K = experts per token, C = capacity, H
= hidden size, I = width of an expert.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, LinearAttentionAndFullAttentionLayer
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.designs.deepseek import DeepseekExperts
from moe_lab.models.designs.units import Units
from moe_lab.routing.families import fixed_routing
from moe_lab.routing.noise import gumbel_for_tokens

Decision = tuple[Tensor, Tensor, Tensor]
"""(router logits [T, E], combine weights [T, K], experts int64 [T, K])"""


class DesignRouter(Qwen2MoeTopKRouter):
    """What the routers of all designs have: router weights [E, H], and the bias or None."""

    def __init__(self, config: MoeDesignConfig):
        super().__init__(config)
        self.fixed_routing = fixed_routing(config)
        bias_E = None
        if config.selection_bias:
            bias_E = torch.zeros(self.num_experts, dtype=torch.float32)
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
    """Token choice with a selection bias: a class of its own, since its rule is another one
    (`routing/families.py`)."""


class UnitTopKRouter(DesignRouter):
    """Words or sentences: each token takes the K experts of the first token of its unit."""

    def __init__(self, config: MoeDesignConfig, layer: int):
        super().__init__(config)
        self.layer = layer

    def forward(self, hidden_TH: Tensor, units: Units, cache: Cache | None) -> Decision:
        logits_BSE = F.linear(hidden_TH, self.weight).unflatten(0, units.first_BS.shape)
        return self.decide(self.of_first_token(logits_BSE, units, cache).flatten(0, 1))

    def of_first_token(self, own_BSX: Tensor, units: Units, cache: Cache | None) -> Tensor:
        """[B, S, X]: for each token the values of its unit's first token.

        Args:
            own_BSX: each token's own values.
            cache: has the values of the unit that an earlier pass has begun, and gets those of the
                last unit of this pass; None: there is no earlier pass.
        """
        earlier_BX = None if cache is None else cache.get_recurrent_state(self.layer)
        if earlier_BX is None:
            earlier_BX = torch.zeros_like(own_BSX[:, 0])
        with_earlier_BRX = torch.cat([earlier_BX[:, None], own_BSX], dim=1)
        # place 0 is the earlier unit, for tokens whose first_BS is -1
        source_BSX = (units.first_BS + 1)[..., None].expand_as(own_BSX)
        decided_BSX = with_earlier_BRX.gather(1, source_BSX)
        if cache is not None:
            cache.update_conv_state(units.kind_BS[:, None], self.layer, conv_kernel_size=1)
            cache.update_recurrent_state(decided_BSX[:, -1], self.layer)
        return decided_BSX


class HashedWordRouter(UnitTopKRouter):
    """Words: each token takes K experts by a hash of the layer and the id of its word's first
    token, equally weighted.

    It has no parameters. Its logits are 0: the choice depends on no hidden state.
    """

    def __init__(self, config: MoeDesignConfig, layer: int):
        super().__init__(config, layer)
        self.weight = None

    def forward(self, hidden_TH: Tensor, units: Units, cache: Cache | None) -> Decision:
        """The decision for T tokens: logits of 0, equal weights, and K experts by the hash."""
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
    has_place = len(cache.layers) > layer and isinstance(
        cache.layers[layer], LinearAttentionAndFullAttentionLayer
    )
    if not has_place:
        raise ValueError("Word and sentence routers need cache=DynamicCache(config=model.config).")
    if not cache.has_previous_state(layer):
        return None
    return cache.get_conv_state(layer)[:, 0]


_ROUNDING = 1e-6
"""What a capacity may be above a whole number by rounding in its product."""


class ExpertChoiceRouter(DesignRouter):
    """Each expert takes `ceil(capacity_factor * tokens * K / E)` tokens of a sequence, at least 1,
    at most all.

    Padding is not among the tokens. In a sequence that is shorter than others of its batch, places
    are left over: their weight is 0.
    """

    def __init__(self, config: MoeDesignConfig):
        super().__init__(config)
        self.tokens_per_token = config.capacity_factor * self.top_k / self.num_experts
        """Tokens of one expert, relative to the tokens of a sequence."""

    def capacity(self, tokens: int) -> int:
        """Tokens that each expert takes of a sequence of this length."""
        return min(tokens, max(1, math.ceil(self.tokens_per_token * tokens - _ROUNDING)))

    def forward(self, hidden_TH: Tensor, real_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(router logits [T, E], weights [E, M] in their dtype, tokens int64 [E, M]) for M = B C.

        The tokens are indices among all T. Places that an expert does not fill have weight 0.

        Args:
            hidden_TH: hidden states.
            real_BS: bool; false: padding.
        """
        B, S = real_BS.shape
        logits_TE = F.linear(hidden_TH, self.weight)
        scores_TE = torch.softmax(logits_TE, dim=-1, dtype=torch.float32)
        scores_BES = scores_TE.unflatten(0, (B, S)).transpose(1, 2)
        scores_BES = scores_BES.masked_fill(~real_BS[:, None], -1.0)
        weights_BEC, index_BEC = scores_BES.topk(self.capacity(S), dim=-1)
        taken_BC = self._taken(real_BS, weights_BEC.shape[-1])
        weights_BEC = torch.where(taken_BC[:, None], weights_BEC, 0.0).to(logits_TE.dtype)
        offset_B11 = torch.arange(B, device=index_BEC.device)[:, None, None] * S
        index_EM = (index_BEC + offset_B11).transpose(0, 1).flatten(1)
        weights_EM = weights_BEC.transpose(0, 1).flatten(1)
        return logits_TE, weights_EM, index_EM

    def _taken(self, real_BS: Tensor, places: int) -> Tensor:
        """bool [B, C]: whether the c-th choice of an expert is within its capacity in each
        sequence."""
        tokens_B = real_BS.sum(dim=1)
        capacity_B = torch.ceil(self.tokens_per_token * tokens_B.double() - _ROUNDING).clamp(min=1)
        capacity_B = torch.minimum(capacity_B, tokens_B)
        return torch.arange(places, device=real_BS.device) < capacity_B[:, None]


class ExpertChoiceExperts(DeepseekExperts):
    """The routed experts, each on tokens of its own choice, by batched products over all experts.

    All experts have the same number of tokens, so `experts_implementation` makes no difference.
    """

    def forward(self, hidden_TH: Tensor, index_EM: Tensor, weights_EM: Tensor) -> Tensor:
        """The sum of the experts that took each token, [T, H]; 0 where none did."""
        hidden_EMH = hidden_TH[index_EM]
        gate_up_EMI = torch.bmm(hidden_EMH, self.gate_up_proj.transpose(1, 2))
        out_EMH = torch.bmm(self._apply_gate(gate_up_EMI), self.down_proj.transpose(1, 2))
        out_EMH = out_EMH * weights_EM[..., None]
        total_TH = torch.zeros_like(hidden_TH)
        return total_TH.index_add(0, index_EM.flatten(), out_EMH.flatten(0, 1).to(hidden_TH.dtype))
