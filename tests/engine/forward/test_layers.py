"""Layers that attend to a window or a chunk, or whose attention is unusual: the engine equals the base model, and
RoE its slow reference, with prompts that are longer than a window.

What would break these: a window that counts padding, other branches or samples as tokens, a layer with a wrong mask,
samples that fork where the layer cannot take them.
"""

from __future__ import annotations

import random

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import Store
from moe_lab.engine.forward.layers import (
    FULL,
    AttentionWindow,
    attention_windows,
    decoder_layers,
    runs_on_kv_cache,
)
from moe_lab.engine.scoring import Budget
from moe_lab.engine.two_phase import TwoPhaseScorer
from moe_lab.routing import find_routers
from tests.support import attention_kinds
from tests.support import roe_reference as reference
from tests.support.ensembles import (
    HISTORIES,
    SEED,
    N,
    answers_of,
    assert_scores,
    ensemble_for,
    greedy_by_transformers,
    plain,
    prompts_for,
    questions_for,
    scores_of,
    temperatures_for,
)
from tests.support.models import build
from tests.support.tiers import by_family

BUDGETS = [Budget(4000), Budget(4000, 1), Budget(4000, 3), Budget(45)]


@pytest.fixture(scope="module", params=by_family(attention_kinds.KV_CACHE))
def model(request):
    return build(request.param, attention_kinds.KV_CACHE[request.param])


@pytest.fixture(scope="module")
def double(model):
    return reference.in_float64(model)


def long_questions(count, choices=2):
    questions = questions_for(random.Random(1), count, choices=choices, longest=20)
    assert max(len(question.context) for question in questions) > 3 * attention_kinds.WINDOW
    return questions


def long_prompts(count):
    prompts = prompts_for(random.Random(5), count)
    assert max(map(len, prompts)) > 2 * attention_kinds.WINDOW
    return prompts


@pytest.fixture(scope="module")
def untouched(model):
    """(the scores of six questions, the answers to six prompts) by the model itself"""
    questions, prompts = long_questions(6), long_prompts(6)
    scores = [[plain(model, q, c) for c in q.continuations] for q in questions]
    return scores, [greedy_by_transformers(model, prompt, 12) for prompt in prompts]


def test_models_here_run_on_a_kv_cache(model):
    assert runs_on_kv_cache(model)


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_scores_equal_the_untouched_model(model, untouched, budget):
    found, _ = scores_of(model, long_questions(6), budget)
    assert_scores(found, untouched[0])


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_tokens_equal_the_untouched_model(model, untouched, budget):
    assert answers_of(model, long_prompts(6), budget, 12) == untouched[1]


@pytest.mark.parametrize("history", HISTORIES, ids="-".join)
def test_scores_equal_the_slow_reference(model, double, history):
    questions = long_questions(2, choices=1)
    switches = dict(seed=SEED, cache=history[0], prefill=history[1])
    expected = [
        [
            reference.score(double, q.context, c, N, temperatures_for(model), **switches)
            for c in q.continuations
        ]
        for q in questions
    ]
    for budget in BUDGETS:
        ensemble = ensemble_for(model, history)
        assert_scores(scores_of(model, questions, budget, ensemble)[0], expected)
        assert ensemble.routing.decisions[0] > 0
        if history[0] == "clean":
            assert_scores(two_phase_scores(model, ensemble, questions, budget), expected)


def two_phase_scores(model, ensemble, questions, budget):
    found = {}
    TwoPhaseScorer(model, ensemble.first_noisy, Store(0)).score(
        ensemble, questions, budget, found.__setitem__
    )
    return found


@pytest.mark.parametrize("history", HISTORIES, ids="-".join)
def test_tokens_equal_the_slow_reference(model, double, history):
    prompts = long_prompts(3)
    switches = dict(seed=SEED, cache=history[0], prefill=history[1])
    expected = [
        reference.generate(double, p, N, temperatures_for(model), steps=4, **switches) for p in prompts
    ]
    for budget in BUDGETS:
        found = answers_of(model, prompts, budget, 4, ensemble_for(model, history))
        for tokens, (expected_tokens, gap) in zip(found, expected, strict=True):
            # Below this gap between the best two probabilities, float32 may choose otherwise.
            assert tokens == expected_tokens or gap < 1e-5


def test_each_layer_has_the_mask_that_the_model_gives_it(model):
    """Broken by a family whose configuration names windows that its layers do not have, or the other way round."""
    given = {}
    for i, layer in enumerate(decoder_layers(model)):
        layer.register_forward_pre_hook(
            lambda layer, args, kwargs, i=i: given.__setitem__(i, kwargs["attention_mask"]), with_kwargs=True
        )
    length = 3 * attention_kinds.WINDOW
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
    model = build("gpt_oss", attention_kinds.KV_CACHE["gpt_oss"])
    questions = long_questions(2)
    before, _ = scores_of(model, questions, Budget(4000))
    with torch.no_grad():
        for layer in decoder_layers(model):
            layer.self_attn.sinks += 3
    after, _ = scores_of(model, questions, Budget(4000))
    assert abs(before[0][0][0] - after[0][0][0]) > 1e-3
    assert_scores(after, [[plain(model, q, c) for c in q.continuations] for q in questions])


def test_samples_at_temperature_zero_are_copies(model):
    questions = long_questions(3)
    expected, _ = scores_of(model, questions, Budget(4000))
    still = ensemble_for(model, ("clean", "noisy"), temperatures=[0.0] * len(find_routers(model)))
    assert isinstance(still, Ensemble) and still.noiseless
    assert_scores(two_phase_scores(model, still, questions, Budget(4000)), [expected[i] for i in range(3)])
