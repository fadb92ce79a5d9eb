"""Broken by: an expert that is not filled, padding that is chosen, a capacity over the whole batch, a cache."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from tests.support.designs import VOCAB, design

IDS = torch.randint(0, VOCAB, (2, 12), generator=torch.Generator().manual_seed(2))


def choices(model, ids, mask=None):
    """(weights, indices among all tokens), each [E, places], of each layer."""
    seen = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda *seen_: seen.append(seen_[2][1:]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids, attention_mask=mask)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize(
    ("factor", "k", "capacity"), [(1.0, 1, 3), (1.0, 2, 5), (1.5, 2, 8), (0.01, 1, 1), (9.0, 2, 12)]
)
def test_every_expert_takes_its_capacity_of_distinct_tokens_of_each_sequence(factor, k, capacity):
    model = design("expert", capacity_factor=factor, num_experts_per_tok=k)
    assert model.model.layers[0].mlp.gate.capacity(12) == capacity
    for weights, index in choices(model, IDS):
        assert weights.shape == index.shape == (5, 2 * capacity) and (weights > 0).all()
        for expert in index:
            assert len(set(expert.tolist())) == 2 * capacity
            assert (expert < 12).sum() == (expert >= 12).sum() == capacity


def test_a_capacity_is_not_raised_by_rounding():
    gate = (
        design("expert", capacity_factor=1.1, n_routed_experts=10, num_experts_per_tok=1)
        .model.layers[0]
        .mlp.gate
    )
    assert 1.1 / 10 * 100 > 11 and gate.capacity(100) == 11
    real = torch.ones(1, 100, dtype=torch.bool)
    assert gate._taken(real, 12).sum() == 11


def test_padding_is_never_taken_and_shortens_the_capacity():
    model = design("expert", num_experts_per_tok=1)
    mask = torch.ones_like(IDS)
    mask[1, 4:] = 0
    for weights, index in choices(model, IDS, mask):
        taken = weights > 0
        assert (taken.sum(dim=1) == 3 + 1).all()
        assert index[taken].max() < 12 + 4


def test_it_reads_later_tokens_and_no_other_sequence():
    model = design("expert")
    changed = IDS.clone()
    changed[0, -1] = (changed[0, -1] + 1) % VOCAB
    with torch.no_grad():
        before, after, alone = model(IDS).logits, model(changed).logits, model(IDS[1:]).logits
    assert (before[0, :-1] != after[0, :-1]).any(dim=-1).sum() > 3
    assert torch.equal(before[1], after[1])
    torch.testing.assert_close(before[1:], alone, rtol=1e-4, atol=1e-5)
    assert not model.is_causal_router and design("word").is_causal_router


def test_it_runs_without_a_cache():
    model = design("expert")
    with torch.no_grad():
        plain = model(IDS)
        asked = model(IDS, use_cache=True, past_key_values=DynamicCache())
        assert plain.past_key_values is None and asked.past_key_values is None
        assert torch.equal(plain.logits, asked.logits)
        generated = model.generate(IDS, max_new_tokens=5, do_sample=False, use_cache=True)
        full = design("token")(IDS).past_key_values
        expected = IDS
        for _ in range(5):
            expected = torch.cat([expected, model(expected).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(generated, expected)
    with pytest.raises(ValueError, match="runs without past_key_values"):
        model(IDS[:, -1:], past_key_values=full)
