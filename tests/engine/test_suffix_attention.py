"""Attention without gradients of the prefix equals torch's own, with gradients of the new slots; suffix replay uses it.

Broken by a replacement of transformers' own attention, or of other models' attention.
"""

import copy

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from moe_lab.engine import suffix_attention
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import SuffixReplay
from moe_lab.engine.token_span import TokenSpan
from moe_lab.routing import find_routers
from moe_lab.routing.policies import Remix
from tests.support.brute_prompt_tail import prompts
from tests.support.models import small_model
from tests.support.tiers import by_family


@pytest.mark.parametrize("heads", [2, 4, 8], ids=lambda heads: f"{heads} key-value heads of 8")
@pytest.mark.parametrize("new", [1, 3])
def test_it_is_torchs_attention(heads, new):
    torch.manual_seed(0)
    T = 11
    query, key, value = (
        torch.randn(2, count, length, size, dtype=torch.float64)
        for count, length, size in ((8, new, 16), (heads, T + new, 16), (heads, T + new, 12))
    )
    mask = torch.zeros(2, 1, new, T + new, dtype=torch.float64)
    mask[1, :, :, :4] = torch.finfo(torch.float64).min
    mask[:, :, 0, T + 1 :] = torch.finfo(torch.float64).min
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, mask, scale=0.3, enable_gqa=True)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)

    own = [tensor.clone().requires_grad_() for tensor in (query, key[:, :, T:], value[:, :, T:])]
    found = suffix_attention._Attention.apply(*own, key, value, mask, 0.3)
    gradients = torch.autograd.grad((found * weights).sum(), own)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients[0], wanted[0], atol=1e-12, rtol=0)
    for one, other in zip(gradients[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other[:, :, T:], atol=1e-12, rtol=0)


def test_scores_are_not_rounded_before_the_softmax():
    """Scores rounded to bfloat16 have errors of 0.05 here; the shares' own rounding, of 0.011."""
    torch.manual_seed(0)
    query, key = (torch.randn(1, 2, size, 64).bfloat16() * 3 for size in (8, 40))
    value, mask = torch.randn(1, 2, 40, 64).bfloat16(), torch.zeros(1, 1, 8, 40, dtype=torch.bfloat16)
    exact = torch.nn.functional.scaled_dot_product_attention(query.double(), key.double(), value.double())
    new = key[:, :, 32:], value[:, :, 32:]
    found = suffix_attention._Attention.apply(query, *new, key, value, mask, 64**-0.5)
    assert (found.double() - exact).abs().max() < 0.02


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "deepseek"]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tails_use_it_and_get_what_torchs_own_gives(family, dtype, monkeypatch):
    model = copy.deepcopy(small_model(family)).to(dtype)
    replay, read, probs = prepared(model)

    def gradients():
        total = replay.logits(read, Remix(probs)).logsumexp(-1).sum()
        return torch.autograd.grad(total, list(probs.values()))

    calls = []
    usual = suffix_attention._Attention.apply
    monkeypatch.setattr(
        suffix_attention._Attention, "apply", lambda *given: calls.append(len(given)) or usual(*given)
    )
    own = gradients()
    assert len(calls) >= 1, "layers after a re-routed token have gradients"
    layer = suffix_attention.SuffixLayer
    monkeypatch.setattr(layer, "update", forgetful(layer.update))
    count = len(calls)
    torchs = gradients()
    assert len(calls) == count
    for one, other in zip(own, torchs, strict=True):
        atol = other.abs().max().item() * (1e-5 if dtype == torch.float32 else 0.05)
        torch.testing.assert_close(one, other, atol=atol, rtol=0)


def test_nothing_of_transformers_is_replaced():
    model, other = copy.deepcopy(small_model("olmoe")), small_model("olmoe")
    before = dict(ALL_ATTENTION_FUNCTIONS)
    assert suffix_attention.NAME in before
    with pytest.raises(ZeroDivisionError), suffix_attention.suffix_attention(model):
        assert model.config._attn_implementation == suffix_attention.NAME
        assert other.config._attn_implementation == "sdpa"
        assert dict(ALL_ATTENTION_FUNCTIONS) == before
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with suffix_attention.suffix_attention(model):
        assert model.config._attn_implementation == "eager"


def prepared(model):
    """(replay, prompts read by it, probabilities that require gradients) of a model's last two MoE layers."""
    first = len(find_routers(model)) - 2
    replay = SuffixReplay(model, first, TokenSpan("last", 3))
    read = replay.read(prompts(least=3), Budget(64))
    torch.manual_seed(0)
    return (
        replay,
        read,
        {
            layer: torch.rand(len(read), 3, read[0].pathway_WME.shape[-1]).softmax(-1).requires_grad_()
            for layer in (first, first + 1)
        },
    )


def forgetful(update):
    """Of a layer whose keys do not say what is new."""

    def changed(self, *args, **kwargs):
        found = update(self, *args, **kwargs)
        del found[0].moe_lab_new
        return found

    return changed
