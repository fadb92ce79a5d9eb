"""Attention without gradients of the prefix equals torch's own, with gradients of the new slots.

Broken by: gradients of other slots, scores that are rounded before the softmax, a replacement
of transformers' own attention, or of other models' attention.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from moe_lab.engine import suffix_attention
from moe_lab.engine.token_span import TokenSpan
from moe_lab.routing.remix import Remix
from tests.support.models import small_model
from tests.support.suffixes import other_probs, read_suffixes, with_gradients
from tests.support.tiers import by_family

torch_attention = torch.nn.functional.scaled_dot_product_attention


def leaf(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_()


@pytest.mark.parametrize("heads", [2, 4, 8], ids=lambda heads: f"{heads} key-value heads of 8")
@pytest.mark.parametrize("new", [1, 3])
def test_it_is_torchs_attention(heads, new):
    """Two sequences: a prefix of 11 slots and the new slots.

    The second sequence has 7 slots of the prefix.
    """
    torch.manual_seed(0)
    prefix = 11
    smallest = torch.finfo(torch.float64).min
    query = torch.randn(2, 8, new, 16, dtype=torch.float64)
    key = torch.randn(2, heads, prefix + new, 16, dtype=torch.float64)
    value = torch.randn(2, heads, prefix + new, 12, dtype=torch.float64)
    mask = torch.zeros(2, 1, new, prefix + new, dtype=torch.float64)
    mask[1, :, :, :4] = smallest
    mask[:, :, 0, prefix + 1 :] = smallest

    leaves = [leaf(query), leaf(key), leaf(value)]
    expected = torch_attention(*leaves, mask, scale=0.3, enable_gqa=True)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    query_gradient, key_gradient, value_gradient = torch.autograd.grad(
        (expected * weights).sum(), leaves
    )

    new_leaves = [leaf(query), leaf(key[:, :, prefix:]), leaf(value[:, :, prefix:])]
    output = suffix_attention._Attention.apply(*new_leaves, key, value, mask, 0.3)
    found_gradients = torch.autograd.grad((output * weights).sum(), new_leaves)

    def assert_close(tensor: Tensor, expected_tensor: Tensor) -> None:
        torch.testing.assert_close(tensor, expected_tensor, atol=1e-12, rtol=0)

    assert_close(output, expected)
    assert_close(found_gradients[0], query_gradient)
    assert_close(found_gradients[1], key_gradient[:, :, prefix:])
    assert_close(found_gradients[2], value_gradient[:, :, prefix:])


def test_scores_are_not_rounded_before_the_softmax():
    """Scores rounded to bfloat16 have errors of 0.05 here; the shares' own rounding, of 0.011."""
    torch.manual_seed(0)
    query = torch.randn(1, 2, 8, 64).bfloat16() * 3
    key = torch.randn(1, 2, 40, 64).bfloat16() * 3
    value = torch.randn(1, 2, 40, 64).bfloat16()
    mask = torch.zeros(1, 1, 8, 40, dtype=torch.bfloat16)

    output = suffix_attention._Attention.apply(
        query, key[:, :, 32:], value[:, :, 32:], key, value, mask, 64**-0.5
    )

    exact = torch_attention(query.double(), key.double(), value.double())
    assert (output.double() - exact).abs().max() < 0.02


class CountedCalls:
    """A function that counts how often it is called."""

    def __init__(self, function: Any):
        self.function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.function(*arguments)


def forgetful(update: Any) -> Any:
    """The `update` of a layer whose keys do not say what is new."""

    def update_and_forget(self: Any, *args: Any, **kwargs: Any) -> Any:
        keys, values = update(self, *args, **kwargs)
        del keys.moe_lab_new
        return keys, values

    return update_and_forget


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "deepseek"]))
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)], ids=str
)
def test_suffixes_use_it_and_get_what_torchs_own_gives(family, dtype, tolerance, monkeypatch):
    """Layers after a re-routed token have gradients."""
    model = copy.deepcopy(small_model(family)).to(dtype)
    replay, suffixes = read_suffixes(model, TokenSpan("last", 3))
    probs = with_gradients(other_probs(model, suffixes))
    counted = CountedCalls(suffix_attention._Attention.apply)
    monkeypatch.setattr(suffix_attention._Attention, "apply", counted)

    def gradients() -> tuple[Tensor, ...]:
        total = replay.logits(suffixes, Remix(probs)).logsumexp(-1).sum()
        return torch.autograd.grad(total, list(probs.values()))

    own_gradients = gradients()
    calls = counted.calls
    assert calls >= 1

    layer = suffix_attention.SuffixLayer
    monkeypatch.setattr(layer, "update", forgetful(layer.update))
    torch_gradients = gradients()
    assert counted.calls == calls, "without it"

    for own_gradient, torch_gradient in zip(own_gradients, torch_gradients, strict=True):
        atol = torch_gradient.abs().max().item() * tolerance
        torch.testing.assert_close(own_gradient, torch_gradient, atol=atol, rtol=0)


def test_nothing_of_transformers_is_replaced():
    model = copy.deepcopy(small_model("olmoe"))
    other_model = small_model("olmoe")
    functions_before = dict(ALL_ATTENTION_FUNCTIONS)
    assert suffix_attention.NAME in functions_before
    with pytest.raises(ZeroDivisionError), suffix_attention.suffix_attention(model):
        assert model.config._attn_implementation == suffix_attention.NAME
        assert other_model.config._attn_implementation == "sdpa"
        assert dict(ALL_ATTENTION_FUNCTIONS) == functions_before
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa"


def test_eager_attention_stays():
    model = copy.deepcopy(small_model("olmoe"))
    model.set_attn_implementation("eager")
    with suffix_attention.suffix_attention(model):
        assert model.config._attn_implementation == "eager"
