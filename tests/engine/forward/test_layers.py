"""Masks of layers that attend to a window or a chunk, and attention sinks.

Windows and sinks in the engine: tests/engine/forward/test_histories.py compares it with the slow reference.
"""

from __future__ import annotations

import random

import pytest
import torch

from moe_lab.engine.forward.layers import FULL, AttentionWindow, attention_windows, decoder_layers
from tests.support.ensembles import assert_scores, plain, questions_for, scores_of
from tests.support.families import COMMON, WINDOW, ZOO
from tests.support.models import build, kv_cache_model
from tests.support.tiers import by_family

FAMILIES = ("gpt_oss", "mixtral", "qwen2_moe", "llama4_text", "gemma4_text", "deepseek_v3", "granitemoe")


@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_each_layer_has_the_mask_that_the_model_gives_it(family):
    """Broken by a family whose configuration names windows that its layers do not have, or the other way round."""
    model, given = kv_cache_model(family), {}
    for i, layer in enumerate(decoder_layers(model)):
        layer.register_forward_pre_hook(
            lambda layer, args, kwargs, i=i: given.__setitem__(i, kwargs["attention_mask"]), with_kwargs=True
        )
    length = 3 * WINDOW
    ids, padding = torch.zeros(2, length, dtype=torch.long), torch.ones(2, length, dtype=torch.long)
    padding[0, :3] = 0  # sdpa makes no mask where it can do without
    with torch.no_grad():
        model(ids, attention_mask=padding)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    for i, reach in enumerate(attention_windows(model)):
        mask = given[i][1, 0]
        assert (mask if mask.dtype == torch.bool else mask == 0).equal(reach.of(causal[None])[0]), i
    for layer in decoder_layers(model):
        layer._forward_pre_hooks.clear()


def test_attention_windows():
    visible = torch.tensor([[[1, 0, 1, 1, 0, 1, 1]]], dtype=torch.bool)  # positions 0, -, 1, 2, -, 3, 4
    assert AttentionWindow(window=2).of(visible).int().tolist() == [[[0, 0, 0, 0, 0, 1, 1]]]
    assert AttentionWindow(chunk=3).of(visible).int().tolist() == [[[0, 0, 0, 0, 0, 1, 1]]]
    assert AttentionWindow(chunk=2).of(visible).int().tolist() == [[[0, 0, 0, 0, 0, 0, 1]]]
    assert AttentionWindow(window=9).of(visible).equal(visible) and FULL.of(visible).equal(visible)


def test_sinks_count_in_attention():
    model = build("gpt_oss", COMMON | ZOO["gpt_oss"])
    questions = questions_for(random.Random(1), 2)
    before, _ = scores_of(model, questions)
    with torch.no_grad():
        for layer in decoder_layers(model):
            layer.self_attn.sinks += 3
    after, _ = scores_of(model, questions)
    assert abs(before[0][0][0] - after[0][0][0]) > 1e-3
    assert_scores(after, [[plain(model, q, c) for c in q.continuations] for q in questions])
