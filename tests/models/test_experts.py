"""Weights-first experts are those of transformers' plain loop, for every number of tokens and every family's experts.

Broken by: a gate, bias, layout or norm of some family that is overlooked, a token's rows put back in another order.
"""

import pytest
import torch

from moe_lab.models import experts as weights_first
from moe_lab.models.experts import MAX_TOKENS_PER_EXPERT, weights_first_experts_forward
from tests.support.families import ZOO
from tests.support.models import make_model, small_model
from tests.support.tiers import by_family

OWN_FORWARD = {"dbrx", "jetmoe", "llama4_text", "longcat_flash"}
"""Families whose experts know no implementation but their own."""


def experts_of(model):
    return next((module for module in model.modules() if hasattr(module, "is_transposed")), None)


def inputs(experts, tokens, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    weights = next(experts.parameters())
    hidden = experts.down_proj.shape[-1 if experts.is_transposed else -2]
    assert weights.dtype == dtype
    index_TK = torch.stack(
        [torch.randperm(experts.num_experts, generator=generator)[:2] for _ in range(tokens)]
    )
    hidden_TH = torch.randn(tokens, hidden, generator=generator).to(dtype)
    return hidden_TH, index_TK, torch.rand(tokens, 2, generator=generator).to(dtype)


def eager(model, experts, given):
    before = model.config._experts_implementation
    model.set_experts_implementation("eager")
    with torch.inference_mode():
        found = experts(*given)
    model.set_experts_implementation(before)
    return found


@pytest.mark.parametrize("family", by_family(sorted(ZOO)))
def test_equals_the_plain_loop(family):
    model = small_model(family)
    experts = experts_of(model)
    assert (experts is None) == (family in OWN_FORWARD)
    for tokens in (1, 2, 5, 8 * MAX_TOKENS_PER_EXPERT // 2, 8 * MAX_TOKENS_PER_EXPERT) if experts else ():
        given = inputs(experts, tokens)
        with torch.inference_mode():
            found = weights_first_experts_forward(experts, *given)
        torch.testing.assert_close(found, eager(model, experts, given), rtol=1e-5, atol=1e-6)


def test_bfloat16_is_left_to_grouped_mm(monkeypatch):
    model = make_model("olmoe").to(torch.bfloat16)
    experts = experts_of(model)
    asked = []
    monkeypatch.setattr(weights_first, "grouped_mm_experts_forward", lambda *given: asked.append(given))
    with torch.inference_mode():
        weights_first_experts_forward(experts, *inputs(experts, 3, torch.bfloat16))
    assert len(asked) == 1
