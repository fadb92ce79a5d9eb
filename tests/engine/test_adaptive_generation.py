"""Adaptive computation: a token takes the samples that its clean distribution asks for, in scoring as in decoding.

Broken by: a band's bound compared the wrong way, noise of other samples than the first ones, samples that attend to another
sequence or to padding, a first token that is not adaptive, noise in clean passes, a measure of another position.
"""

from __future__ import annotations

import math
import random
from functools import cache
from unittest.mock import MagicMock

import pytest
import torch

from moe_lab import RoE
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.ensemble import MEASURES, Adaptive, Ensemble, unsureness
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.suffix_forward import SuffixForward
from moe_lab.engine.prefill import GenerationState
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.engine.sampling import Decoding, Sampler, generation_config
from moe_lab.engine.scoring import Budget, ScoringRequest
from moe_lab.errors import RoutingError
from moe_lab.routing import GumbelTopK, document_key
from tests.support import attention_kinds, roe_reference, rounding
from tests.support.models import build, make_model, small_model
from tests.support.tiers import by_family
from tests.support.unsure import slow_measure

N, SEED = 4, 3
WIDE = Budget(4000)
STEPS = 4


def temperatures_of(model):
    layers = len(roe_reference.routers_of(model)) or 4
    return [0.0] + [0.8] * (layers - 1)


def ensemble_of(model, adaptive=None, n=N, **options):
    routing = GumbelTopK(temperatures_of(model), SEED)
    return Ensemble(n, routing, first_noisy=1, adaptive=adaptive, **options)


def prompts():
    """Of many lengths, two with a common beginning."""
    rng = random.Random(1)
    shared = [rng.randrange(256) for _ in range(9)]
    return [[*shared, 4], [*shared, 5, 9, 6], [7], [rng.randrange(256) for _ in range(13)]]


def questions():
    rng = random.Random(2)
    return [(prompt, [[rng.randrange(256) for _ in range(size)] for size in (1, 3)]) for prompt in prompts()]


@cache
def references(family):
    model = make_model(family)
    return model, roe_reference.in_float64(model)


def slow_samples(probs_V, measure, bands):
    """A loop over the bands, the most unsure first."""
    value = slow_measure(probs_V, measure)
    for bound, samples in bands:
        assert abs(value - bound) > 1e-6, "too close to the bound for float32"
        if value < bound if measure == "margin" else value > bound:
            return samples
    return 1


@cache
def slow_probs(family, prompt, ids, n):
    double = references(family)[1]
    return roe_reference.next_token_probs(double, prompt, ids, n, temperatures_of(double), SEED)


def bands_for(model, measure):
    """Two bands, of about a third of the prompts' ends each."""
    with torch.no_grad():
        ends = [unsureness(model(torch.tensor([prompt])).logits[0, -1:]) for prompt in prompts()]
    values = sorted(float(end[measure]) for end in ends)
    low, high = (values[0] + values[1]) / 2, (values[2] + values[3]) / 2
    return ((low, N), (high, 3)) if measure == "margin" else ((high, N), (low, 3))


def answers(model, ensemble, budget=WIDE, repeats=1, options=None, reuse=False, engine=None):
    engine = engine or KVEngine(EnsembleForward(model, ensemble), budget, reuse)
    requests = [ScoringRequest(context, own, document_key(context)) for context, own in questions()]
    found = {}
    engine.score(requests, found.__setitem__)
    states = [
        GenerationState(i, prompt, document_key(prompt), repeat)
        for i, prompt in enumerate(prompts())
        for repeat in range(repeats)
    ]
    config = generation_config(model, options or {})
    decoding = Decoding(Sampler(model, config, SEED), lambda generated: False, STEPS)
    engine.generate(states, decoding, lambda state: None)
    return [found[i] for i in range(len(requests))], [state.generated for state in states], engine


def assert_scores(found, expected):
    for own, other in zip(found, expected, strict=True):
        assert [value for value, _ in own] == rounding.approx([value for value, _ in other], tokens=4)
        assert [greedy for _, greedy in own] == [greedy for _, greedy in other]


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("family", ["olmoe", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_log_likelihoods_are_those_of_the_slow_reference(family, measure):
    model = references(family)[0]
    bands = bands_for(model, measure)
    expected, taken = [], []
    for context, continuations in questions():
        expected.append([])
        for own in continuations:
            total, greedy = 0.0, True
            for i, token in enumerate(own):
                here = (tuple(context), (*context, *own[:i]))
                n = slow_samples(slow_probs(family, *here, 1), measure, bands)
                probs = slow_probs(family, *here, n)
                total += math.log(float(probs[token]))
                greedy &= int(probs.argmax()) == token
                taken.append(n)
            expected[-1].append((total, greedy))
    assert {1, 3, N} == set(taken)
    for budget, reuse in ((Budget(4000), False), (Budget(30), True), (Budget(4000, 1), True)):
        adaptive = Adaptive(measure, bands)
        found, _, engine = answers(model, ensemble_of(model, adaptive), budget, reuse=reuse)
        assert_scores(found, expected)
        if reuse:
            again, _, _ = answers(model, ensemble_of(model, adaptive), engine=engine)
            assert_scores(again, expected)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("family", by_family(["olmoe", "gpt_oss", "qwen3_moe"]))
def test_generated_tokens_are_the_best_of_the_scored_ones(family, measure):
    """Scoring is compared with the slow reference above; decoding must mean the same."""
    model = small_model(family)
    adaptive = Adaptive(measure, bands_for(model, measure))
    generated = []
    for budget, reuse in ((Budget(4000), False), (Budget(60), True), (Budget(4000, 1), False)):
        _, tokens, engine = answers(model, ensemble_of(model, adaptive), budget, reuse=reuse)
        generated.append(tokens)
    assert generated[0] == generated[1] == generated[2]
    requests = [
        ScoringRequest(prompt, [tokens], document_key(prompt))
        for prompt, tokens in zip(prompts(), generated[0], strict=True)
    ]
    found = {}
    engine.score(requests, found.__setitem__)
    assert all(found[i][0][1] for i in range(len(requests)))
    assert min(adaptive.tokens) > 0


@pytest.mark.parametrize(
    "options", [{}, {"include_clean": False}, {"aggregate": "logits"}], ids=["mean", "noisy", "logits"]
)
def test_both_engines_agree(olmoe, options):
    """`RecurrentEngine` reads one sequence at a time, each sample on a copy of the whole cache."""
    bands = bands_for(olmoe, "margin")
    found = []
    for engine in (
        KVEngine(
            EnsembleForward(olmoe, ensemble_of(olmoe, Adaptive("margin", bands), **options)), Budget(4000)
        ),
        RecurrentEngine(RecurrentForward(olmoe, ensemble_of(olmoe, Adaptive("margin", bands), **options))),
    ):
        found.append(answers(olmoe, None, repeats=2, options={"do_sample": True}, engine=engine))
    (scores, tokens, engine), (other_scores, other_tokens, other) = found
    assert_scores(scores, other_scores)
    assert tokens == other_tokens
    assert any(tokens[i] != tokens[i + 1] for i in range(0, len(tokens), 2))
    counted = [each.forward.ensemble.adaptive.tokens for each in (engine, other)]
    assert counted[0] == counted[1] and min(counted[0]) > 0


@pytest.mark.parametrize(
    ("measure", "none", "all_tokens"), [("margin", 0.0, 2.0), ("entropy", 100.0, 0.0)], ids=MEASURES
)
def test_the_bounds_of_no_token_and_of_all(olmoe, measure, none, all_tokens):
    """They are the base model, bit for bit where passes have the same shapes, and full RoE."""
    full_scores, full_tokens, full = answers(olmoe, ensemble_of(olmoe))
    plain_scores, plain_tokens, _ = answers(olmoe, Ensemble())
    assert full_tokens != plain_tokens
    adaptive = Adaptive(measure, [(none, N)])
    scores, tokens, engine = answers(olmoe, ensemble_of(olmoe, adaptive))
    assert scores == plain_scores and tokens == plain_tokens
    assert adaptive.tokens[0] == 0 and engine.forward.ensemble.routing.decisions == (0, 0)
    adaptive = Adaptive(measure, [(all_tokens, N)])
    scores, tokens, engine = answers(olmoe, ensemble_of(olmoe, adaptive))
    assert_scores(scores, full_scores)
    assert tokens == full_tokens and adaptive.tokens[1] == 0
    assert engine.forward.ensemble.routing.decisions == full.forward.ensemble.routing.decisions
    assert engine.tokens_in == full.tokens_in


def test_another_ensemble_is_counted_on(olmoe):
    adaptive = Adaptive("margin", bands_for(olmoe, "margin"))
    _, _, engine = answers(olmoe, ensemble_of(olmoe, adaptive))
    before = engine.tokens_in
    engine.set_ensemble(ensemble_of(olmoe))
    assert engine.tokens_in == before > 0


def test_passes_after_a_noisy_one_that_failed_are_clean(olmoe, monkeypatch):
    """As after a batch that was too large for the memory."""
    adaptive = Adaptive("margin", bands_for(olmoe, "margin"))
    engine = KVEngine(EnsembleForward(olmoe, ensemble_of(olmoe, adaptive)), WIDE)
    prompt, scores = prompts()[0], []

    class Kept(Decoding):
        def extend(self, states, scores_AV):
            scores.append(scores_AV)
            super().extend(states, scores_AV)

    def generate():
        decoding = Kept(Sampler(olmoe, generation_config(olmoe, {}), SEED), lambda generated: False, STEPS)
        engine.generate([GenerationState(0, prompt, document_key(prompt), 0)], decoding, lambda state: None)

    generate()
    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(SuffixForward, "__call__", MagicMock(side_effect=MemoryError))
        generate()
    generate()
    assert len(scores) == 2 * STEPS and torch.equal(torch.cat(scores[:STEPS]), torch.cat(scores[STEPS:]))


@pytest.mark.slow
def test_recurrent_models(tokenizer):
    model = build("qwen3_next", attention_kinds.RECURRENT["qwen3_next"])
    adaptive = Adaptive("margin", [(0.0, 2)])
    plain = answers(model, None, engine=RecurrentEngine(RecurrentForward(model, Ensemble())))
    forward = RecurrentForward(model, ensemble_of(model, adaptive))
    assert answers(model, None, engine=RecurrentEngine(forward))[:2] == plain[:2]


def test_nan_of_a_router_is_named(tokenizer):
    model = make_model("olmoe")
    with torch.no_grad():
        model.model.layers[2].mlp.gate.weight[0, 0] = float("nan")
    roe = RoE(model, tokenizer, n=3, adaptive="margin", bands=[(0.1, 3)])
    with pytest.raises(RoutingError, match=r"model\.layers\.2\.mlp\.gate"):
        roe.generate("what is", max_new_tokens=2)
