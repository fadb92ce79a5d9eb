"""Two-phase scoring with cached activations changes no number, and saves the clean tokens of later
calls.

Broken by: chunks that hold a logit position twice or not at all, or a pass above the budget.
"""

import random
from types import SimpleNamespace

import pytest
import torch

from moe_lab.engine import engine, pass_size, two_phase
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.kv_cache import Store
from moe_lab.engine.forward.layers import decoder_layers
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.scoring import Budget
from moe_lab.engine.two_phase import CHUNK_SAMPLES, passes, together
from moe_lab.routing import GumbelTopK, find_routers
from tests.support import rounding
from tests.support.ensembles import answered, text
from tests.support.models import make_model

POSITIONS = (5, 2, 100)


def activations():
    """Stand-ins of three requests, the longest first."""
    return [
        SimpleNamespace(kv_cache=SimpleNamespace(length=10 - i), position_M=torch.zeros(count))
        for i, count in enumerate(POSITIONS)
    ]


@pytest.mark.parametrize("tokens", [1, 20, 4000])
@pytest.mark.parametrize("noisy", [3, 8])
def test_chunks_of_logit_positions(noisy, tokens):
    requests = activations()
    places_before = {}
    """The number of logit positions of all requests before one, by `id`."""
    for number, request in enumerate(requests):
        places_before[id(request)] = sum(POSITIONS[:number])
    places = []
    for chunks in passes(requests, noisy, Budget(tokens)):
        widest = max(len(chunk.at_C) for chunk in chunks)
        assert widest * noisy <= max(CHUNK_SAMPLES, noisy)
        is_least = len(chunks) == 1 and widest == 1
        assert is_least or len(chunks) * widest * noisy <= tokens
        for chunk in chunks:
            assert (chunk.place_C == places_before[id(chunk.request)] + chunk.at_C).all()
            places += chunk.place_C.tolist()
    assert places == list(range(sum(POSITIONS)))


def test_requests_of_one_pass():
    cached = dict(enumerate(activations()))
    assert list(together(cached, 2, Budget(14))) == [[0, 1], [2]]
    assert list(together(cached, 2, Budget(4000, 1))) == [[0], [1], [2]]


KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")


def requests_of(kind):
    """Some with a common beginning, some with several continuations, some that are the same."""
    rng = random.Random(0)
    if kind == "loglikelihood":
        contexts = ["one and the same beginning " * (i % 2) + text(rng, i + 1) for i in range(5)]
        requests = []
        for context in contexts:
            for words in (1, 2, 4):
                requests.append(Request((context, " " + text(rng, words))))
        return [*requests, Request(("", "a"))]
    if kind == "loglikelihood_rolling":
        return [Request((text(rng, words),)) for words in (1, 12, 25)]
    options = {"max_gen_toks": 6, "until": []}
    prompts = ["a", *(text(rng, words) for words in (2, 9, 5, 9))]
    return [Request((prompt, options)) for prompt in [*prompts, prompts[2]]]


def ensembles_for(model, n=5):
    """Two vectors of temperatures, and none at all, as tuning asks for them in turn."""
    layers = len(find_routers(model))
    vectors = ([0.0, 3.0] + [1.0] * (layers - 2), [0.0] * (layers - 1) + [2.0], [0.0] * layers)
    return [Ensemble(n, GumbelTopK(vector, seed=2), first_noisy=1) for vector in vectors]


def ask(lm, kind):
    return answered(lm, kind, requests_of(kind))


def direct(model, tokenizer, ensemble, **options):
    """An LM that scores in whole passes; test_histories.py tests it against the reference."""
    lm = EngineLM(model, tokenizer, ensemble=ensemble, **options)
    lm.engine.two_phase = None
    return lm


def assert_same(kind, answers, expected):
    for answer, expected_answer in zip(answers, expected, strict=True):
        if kind == "generate_until":
            assert answer == expected_answer
        elif kind == "loglikelihood":
            assert answer[0] == rounding.approx(expected_answer[0])
            assert answer[1] == expected_answer[1]
        else:
            assert answer == pytest.approx(expected_answer, abs=1e-4, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("family", "batch_size"), [("olmoe", "auto"), ("mixtral", 1), ("qwen2_moe", "auto")]
)
def test_same_answers_as_in_whole_passes_with_and_without_reuse(
    family, tokenizer, kind, batch_size
):
    model = make_model(family)
    options = dict(batch_size=batch_size, max_length=120, progress=False)
    ensembles = ensembles_for(model)
    lm = EngineLM(model, tokenizer, ensemble=ensembles[0], reuse=True, **options)
    all_answers = []
    for ensemble in [*ensembles, ensembles[0]]:
        lm.set_ensemble(ensemble)
        all_answers.append(ask(lm, kind))
    for number, ensemble in enumerate(ensembles_for(model)):
        expected = ask(direct(model, tokenizer, ensemble, max_length=120), kind)
        assert_same(kind, all_answers[number], expected)
        assert_same(
            kind, ask(EngineLM(model, tokenizer, ensemble=ensemble, **options), kind), expected
        )
    assert_same(kind, all_answers[3], all_answers[0])
    # The temperatures must matter for this test to mean anything.
    assert all_answers[0] != all_answers[1]
    assert all_answers[0] != all_answers[2]


@pytest.mark.slow
def test_pieces_of_one_question_and_small_budgets(olmoe, tokenizer, monkeypatch):
    ensembles = ensembles_for(olmoe)
    expected = ask(direct(olmoe, tokenizer, ensembles[0]), "loglikelihood_rolling")
    for samples, tokens in ((8, 20), (2, 3), (256, 7)):
        monkeypatch.setattr(two_phase, "CHUNK_SAMPLES", samples)
        monkeypatch.setattr(pass_size, "CPU_TOKENS", tokens)
        lm = EngineLM(olmoe, tokenizer, ensemble=ensembles[0], reuse=True)
        for _ in range(2):
            assert_same("loglikelihood_rolling", ask(lm, "loglikelihood_rolling"), expected)


def test_later_calls_put_noisy_samples_through_the_model_and_nothing_else(olmoe, tokenizer):
    """A token is a character. The first ensemble has noise in 3 layers, the second one in 1."""
    noisy, other_ensemble, without_noise = ensembles_for(olmoe)
    lm = EngineLM(olmoe, tokenizer, ensemble=noisy, reuse=True)
    context = "a context of some length, " * 4 + "then"
    request = Request((context, " answer"))
    answer_tokens = lm.count_tokens("loglikelihood", request)
    costs = []
    for ensemble in (noisy, other_ensemble, without_noise):
        lm.set_ensemble(ensemble)
        lm.answer("loglikelihood", [request], lambda i, answer: None)
        costs.append(lm.cost["tokens_in"])
    clean_tokens = len(context) + answer_tokens - 1
    noisy_samples = answer_tokens * 4
    assert costs[0] == clean_tokens + noisy_samples
    assert costs[1] - costs[0] == noisy_samples
    assert costs[2] == costs[1]
    assert lm.cost["noisy_decisions"] == noisy_samples * 3 + noisy_samples * 1


def test_later_prompts_are_read_from_their_last_token_on(olmoe, tokenizer):
    """Each call reads 4 noisy samples. The second one reads the prompt's last token, too."""
    noisy, other_ensemble, _ = ensembles_for(olmoe)
    lm = EngineLM(olmoe, tokenizer, ensemble=noisy, reuse=True)
    request = Request(("a prompt of some length", {"max_gen_toks": 1, "until": []}))
    lm.answer("generate_until", [request], lambda i, answer: None)
    first = lm.cost["tokens_in"]
    lm.set_ensemble(other_ensemble)
    lm.answer("generate_until", [request], lambda i, answer: None)
    assert first == len(request.args[0]) + 4
    assert lm.cost["tokens_in"] - first == 1 + 4


def test_what_does_not_fit_is_computed_anew(olmoe, tokenizer, monkeypatch):
    ensembles = ensembles_for(olmoe)
    expected = [ask(EngineLM(olmoe, tokenizer, ensemble=ensembles[0]), kind) for kind in KINDS]
    monkeypatch.setattr(engine, "store_on", lambda device: Store(0))
    lm = EngineLM(olmoe, tokenizer, ensemble=ensembles[0], reuse=True)
    for _ in range(2):
        for kind, answers in zip(KINDS, expected, strict=True):
            assert_same(kind, ask(lm, kind), answers)


def test_a_call_that_was_left_early_harms_no_later_one(olmoe, tokenizer):
    ensemble = ensembles_for(olmoe)[0]
    expected = ask(EngineLM(olmoe, tokenizer, ensemble=ensemble), "loglikelihood")
    lm = EngineLM(olmoe, tokenizer, ensemble=ensemble, reuse=True, batch_size=1)

    def leave(index, answer):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lm.answer("loglikelihood", requests_of("loglikelihood"), leave)
    assert lm.cost["tokens_in"] > 0
    assert len(decoder_layers(olmoe)) == 4
    assert_same("loglikelihood", ask(lm, "loglikelihood"), expected)


def test_an_ensemble_that_forks_before_the_cached_activations_is_refused(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, ensemble=ensembles_for(olmoe)[0], reuse=True)
    with pytest.raises(ValueError, match="first_noisy=0"):
        lm.set_ensemble(Ensemble(5, GumbelTopK([0.5] * 4, 0)))


def test_tokens_that_requests_are_scored_on(olmoe, tokenizer):
    lm = EngineLM(olmoe, tokenizer, max_length=10)
    assert lm.count_tokens("loglikelihood", Request(("abc", " de"))) == 3
    assert lm.count_tokens("loglikelihood_rolling", Request(("a" * 25,))) == 25
    with pytest.raises(ValueError, match="generate_until"):
        lm.count_tokens("generate_until", Request(("abc", {})))


def test_samples_without_noise_are_computed_unless_activations_are_cached(olmoe, tokenizer):
    """Broken by a run at temperature 0 that costs nothing: overhead would not be measured."""

    def tokens_in(reuse: bool) -> int:
        ensemble = Ensemble(n=4, routing=GumbelTopK([0.0] * 4, seed=0), first_noisy=1)
        lm = EngineLM(olmoe, tokenizer, ensemble=ensemble, reuse=reuse, progress=False)
        lm.answer("loglikelihood", [Request(("abc", "de"))], lambda index, answer: None)
        return lm.cost["tokens_in"]

    assert tokens_in(reuse=False) == 4 + 3 * 2
    assert tokens_in(reuse=True) == 4
