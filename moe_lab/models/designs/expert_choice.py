"""Expert choice (Zhou et al. 2022): each expert takes its capacity of tokens, so all experts have the same number.

An expert takes the tokens to whom it is most probable, by a softmax over experts, and weighs them by that probability.
It chooses among the tokens of one sequence, not of the whole batch: the score of a document would depend on the other
documents of its batch. A token may have any number of experts, none included.

It is not causal: whether an expert takes a token depends on later tokens. So nothing can be cached, and generation
reads the whole sequence for every new token.

B = sequences, S = positions, T = B x S tokens, E = experts, C = capacity, H = hidden size, I = width of an expert.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from moe_lab.models.deepseek.modeling import DeepseekExperts
from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.designs.routers import DesignRouter

_ROUNDING = 1e-6
"""What a capacity may be above a whole number by rounding in its product."""


class ExpertChoiceRouter(DesignRouter):
    """Each expert takes `ceil(capacity_factor * tokens * K / E)` tokens of a sequence, at least 1, at most all.

    Padding is not among the tokens. In a sequence that is shorter than others of its batch, places are left over: their
    weight is 0.
    """

    def __init__(self, config: MoeDesignConfig):
        super().__init__(config)
        self.tokens_per_token = config.capacity_factor * self.top_k / self.num_experts
        """Tokens of one expert, relative to the tokens of a sequence."""

    def capacity(self, tokens: int) -> int:
        """Tokens that each expert takes of a sequence of so many tokens."""
        return min(tokens, max(1, math.ceil(self.tokens_per_token * tokens - _ROUNDING)))

    def forward(self, hidden_TH: Tensor, real_BS: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """
        Args:
            hidden_TH: hidden states.
            real_BS: bool; false: padding.

        Returns:
            logits: [T, E].
            weights: [E, B C], in the logits' dtype.
            index: int64 [E, B C], indices among the T tokens.
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
        by_expert = ((index_BEC + offset_B11).transpose(0, 1), weights_BEC.transpose(0, 1))
        index_EM, weights_EM = (tensor.flatten(1) for tensor in by_expert)
        return logits_TE, weights_EM, index_EM

    def _taken(self, real_BS: Tensor, places: int) -> Tensor:
        """bool [B, C]: whether the c-th choice of an expert is within its capacity in each sequence."""
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
