"""Operations are those of a count by hand, whatever computes the experts, forward and backward."""

import pytest
import torch

import moe_lab.models.experts  # noqa: F401 - registers weights_first
from moe_lab.engine.flops import FlopCount
from tests.support.models import make_model

V = 64
D = 32
F = 24
LAYERS = 3
E = 8
K = 2


@pytest.fixture
def model():
    sizes = dict(
        hidden_size=D, intermediate_size=F, num_hidden_layers=LAYERS, num_experts_per_tok=K
    )
    return make_model("olmoe", vocab_size=V, num_experts=E, pad_token_id=0, **sizes)


def by_hand(T: int, B: int = 1) -> int:
    """B sequences of T tokens: projections, attention to all T slots, router, experts, head.

    An expert has three products.
    """
    attention = 4 * 2 * T * D * D + 2 * 2 * T * T * D
    experts = 2 * T * D * E + T * K * 3 * 2 * D * F
    return B * (LAYERS * (attention + experts) + 2 * T * D * V)


@pytest.mark.parametrize("experts", ["eager", "grouped_mm", "weights_first"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_forward_pass(model, experts, attention):
    model.set_experts_implementation(experts)
    model.set_attn_implementation(attention)
    with FlopCount() as flops, torch.no_grad():
        model(torch.randint(1, V, (2, 50)), use_cache=False)
    assert flops.total == by_hand(50, 2)


def test_weights_first_counts_the_row_that_it_adds(model):
    """An expert with one row or three computes one more: what is done is counted."""
    model.set_experts_implementation("weights_first")
    with FlopCount() as flops, torch.no_grad():
        model(torch.tensor([[5]]), use_cache=False)
    assert flops.total == by_hand(1) + LAYERS * K * 3 * 2 * D * F


@pytest.mark.parametrize("experts", ["eager", "grouped_mm", "weights_first"])
def test_a_backward_pass_to_the_embeddings_alone(model, experts):
    """As many products again, without the gradients of weights.

    The backward pass of attention has five products where the forward pass has two.
    """
    T = 50
    model.set_experts_implementation(experts)
    model.set_attn_implementation("sdpa")
    model.requires_grad_(False)
    hidden = torch.randn(1, T, D, requires_grad=True)
    logits = model(inputs_embeds=hidden, use_cache=False).logits
    with FlopCount() as flops:
        logits.logsumexp(-1).sum().backward()
    assert flops.total == by_hand(T) + LAYERS * 3 * 2 * T * T * D
