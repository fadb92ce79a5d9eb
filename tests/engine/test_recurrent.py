"""Models with recurrent layers, run with copies of their own cache: RoE equals its slow reference.

What would break these: a state that two samples or branches write to, a noisy sample's state kept as history, noise
at other places than the reference has it.
"""

from __future__ import annotations

import random

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.recurrent import RecurrentEngine, RecurrentForward
from moe_lab.engine.sampling import Decoding, GenerationState, Sampler, generation_config
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.routing import GumbelTopK, document_key, find_routers
from tests.support import attention_kinds, rounding
from tests.support import roe_reference as reference
from tests.support.ensembles import (
    HISTORIES,
    SEED,
    N,
    assert_scores,
    ensemble_for,
    plain,
    prompts_for,
    questions_for,
    temperatures_for,
)
from tests.support.models import build
from tests.support.tiers import by_family


@pytest.fixture(scope="module", params=by_family(attention_kinds.RECURRENT))
def model(request):
    return build(request.param, attention_kinds.RECURRENT[request.param])


@pytest.fixture(scope="module")
def double(model):
    return reference.in_float64(model)


def scores_of(model, questions, ensemble):
    engine = RecurrentEngine(RecurrentForward(model, ensemble))
    found = {}
    engine.score(questions, found.__setitem__)
    return found, engine


def answers_of(model, prompts, ensemble, steps, repeat=0):
    answers = [GenerationState(i, prompt, document_key(prompt), repeat) for i, prompt in enumerate(prompts)]
    ended = []
    sampler = Sampler(model, generation_config(model, {}), 0)
    RecurrentEngine(RecurrentForward(model, ensemble)).generate(
        answers, Decoding(sampler, lambda generated: False, steps), ended.append
    )
    assert list(map(id, ended)) == list(map(id, answers))
    return [answer.generated for answer in answers]


def test_models_here_do_not_run_on_a_kv_cache(model):
    assert not runs_on_kv_cache(model)


def test_one_row_equals_the_untouched_model(model):
    questions = questions_for(random.Random(0), 4)
    found, _ = scores_of(model, questions, Ensemble())
    for i, question in enumerate(questions):
        for (value, greedy), continuation in zip(found[i], question.continuations, strict=True):
            expected, expected_greedy = plain(model, question, continuation)
            assert value == rounding.approx(expected) and greedy == expected_greedy


@pytest.mark.parametrize("history", HISTORIES, ids="-".join)
def test_scores_equal_the_slow_reference(model, double, history):
    # Continuations with a common beginning: their states fork where they do.
    context = [3, 7, 9, 100, 20, 21, 22, 23, 24, 25, 26]
    questions = [
        ScoringRequest(context, [[5, 6, 7], [5, 8, 9], [4, 3, 2], [5, 6, 1], [11]], document_key(context)),
        ScoringRequest([4], [[1, 2]], document_key([4])),
    ]
    switches = dict(seed=SEED, cache=history[0], prefill=history[1])
    expected = [
        [
            reference.score(double, q.context, c, N, temperatures_for(model), **switches)
            for c in q.continuations
        ]
        for q in questions
    ]
    ensemble = ensemble_for(model, history)
    # a recurrent state carries the rounding of every token before: as for a sum over twice the three scored tokens
    assert_scores(scores_of(model, questions, ensemble)[0], expected, tokens=6)
    assert ensemble.routing.decisions[0] > 0


@pytest.mark.parametrize("history", HISTORIES, ids="-".join)
def test_tokens_equal_the_slow_reference(model, double, history):
    prompts = [[7], *prompts_for(random.Random(5), 2)]
    switches = dict(seed=SEED, cache=history[0], prefill=history[1], repeat=1)
    expected = [
        reference.generate(double, p, N, temperatures_for(model), steps=5, **switches) for p in prompts
    ]
    found = answers_of(model, prompts, ensemble_for(model, history), 5, repeat=1)
    for tokens, (expected_tokens, gap) in zip(found, expected, strict=True):
        # Below this gap between the best two probabilities, float32 may choose otherwise.
        assert tokens == expected_tokens or gap < 1e-5


def test_tokens_that_are_counted(model):
    # 3 context tokens, the last of them with 4 samples; nodes 5 and 6 with 4 samples each.
    question = ScoringRequest([1, 2, 3], [[5, 6, 7], [5, 6, 8]], 0)
    clean = scores_of(model, [question], ensemble_for(model, ("clean", "noisy")))
    assert clean[1].tokens_in == 2 + N + 2 * N
    standard = scores_of(model, [question], ensemble_for(model, ("standard", "noisy")))
    assert standard[1].tokens_in == 3 * N + 2 * N


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_the_lm_answers_from_any_batch_size_and_in_trials(tokenizer, kind):
    model = build("qwen3_next", attention_kinds.RECURRENT["qwen3_next"])
    requests = {
        "loglikelihood": [Request(("abcdefgh", " ab")), Request(("abcdefgh", " c")), Request(("b", "d"))],
        "loglikelihood_rolling": [Request(("abcdef",))],
        "generate_until": [Request((text, {"until": [], "max_gen_toks": 4})) for text in ("abcdefghij", "b")],
    }[kind]

    def ensemble(temperature):
        layers = len(find_routers(model))
        return Ensemble(3, GumbelTopK([temperature] * layers, SEED), first_noisy=1)

    def ask(lm):
        answers = {}
        lm.answer(kind, requests, answers.__setitem__)
        return [answers[i] for i in range(len(requests))]

    found = []
    for batch_size in ("auto", 1, 2):
        lm = EngineLM(model, tokenizer, ensemble=ensemble(0.7), batch_size=batch_size, progress=False)
        assert isinstance(lm.engine, RecurrentEngine)
        found.append(ask(lm))
        assert lm.cost["tokens_in"] > 0 and lm.cost["noisy_decisions"] > 0
    tuned = EngineLM(model, tokenizer, ensemble=ensemble(0.1), reuse=True, progress=False)
    ask(tuned)
    before = tuned.cost
    tuned.set_ensemble(ensemble(0.7))
    found.append(ask(tuned))
    assert found == [found[0]] * 4
    assert tuned.cost["tokens_in"] == 2 * before["tokens_in"]
    assert tuned.cost["noisy_decisions"] == 2 * before["noisy_decisions"]


def test_prompts_of_a_recurrent_base_model_are_not_padded(tokenizer):
    """MiniMax's lightning attention reads padding before a prompt."""
    model = build("minimax", attention_kinds.RECURRENT["minimax"])
    texts = ["abcdefghijklmnopqrstuvwxyz", "b", "abcdefgh"]
    lm = EngineLM(model, tokenizer, batch_size=4, progress=False)
    answers = {}
    requests = [Request((text, {"until": [], "max_gen_toks": 6})) for text in texts]
    lm.answer("generate_until", requests, answers.__setitem__)
    for i, text in enumerate(texts):
        ids = tokenizer.encode(text)
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert answers[i] == tokenizer.decode(ids[len(text) :])
    assert lm.cost["tokens_out"] == 6 * len(texts)
    assert lm.cost["tokens_in"] == sum(map(len, texts)) + 5 * len(texts)
