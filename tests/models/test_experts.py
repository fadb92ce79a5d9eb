"""Weights-first experts are those of transformers' plain loop, for every number of tokens and way of routing."""

from __future__ import annotations

import pytest
import torch

from moe_lab.models.experts import MAX_TOKENS_PER_EXPERT, weights_first_experts_forward
from tests.conftest import make_model


@pytest.mark.parametrize("tokens", [1, 2, 5, 8 * MAX_TOKENS_PER_EXPERT // 2, 8 * MAX_TOKENS_PER_EXPERT])
@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen3_moe"])
def test_equals_the_plain_loop(family, tokens):
    model = make_model(family)
    experts = next(module for name, module in model.named_modules() if name.endswith("mlp.experts"))
    generator = torch.Generator().manual_seed(0)
    hidden_TH = torch.randn(tokens, 48, generator=generator)
    index_TK = torch.stack(
        [torch.randperm(experts.num_experts, generator=generator)[:2] for _ in range(tokens)]
    )
    weights_TK = torch.rand(tokens, 2, generator=generator)
    with torch.inference_mode():
        found = weights_first_experts_forward(experts, hidden_TH, index_TK, weights_TK)
    model.set_experts_implementation("eager")
    with torch.inference_mode():
        torch.testing.assert_close(found, experts(hidden_TH, index_TK, weights_TK), rtol=1e-5, atol=1e-6)
