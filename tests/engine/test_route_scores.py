"""The score of every route equals that of a float64 base model whose experts are set by hand.

Broken by: a route of another token, sample or text, a proposal that is taken for the router's own route or the other way
round, the best of fewer routes than were proposed, windows in another order, noise of another key than the answer's.
"""

from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
import torch

from moe_lab.engine import two_phase
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.route_scores import RouteScores, score_routes, text_routes
from moe_lab.engine.scoring import Budget, ScoringRequest
from moe_lab.errors import ConfigError, RoutingError
from moe_lab.routing import GumbelTopK, document_key, find_routers, noise
from tests.support import attention_kinds, rounding
from tests.support import roe_reference as reference
from tests.support.models import build, make_model

K = 2
LARGE = Budget(4000)


def some_requests(seed=0):
    """Continuations of several lengths after contexts of several lengths, two with a common prefix; one has two choices."""
    rng = random.Random(seed)
    shared = [rng.randrange(256) for _ in range(9)]
    requests = []
    for i, (before, after) in enumerate([(1, 6), (3, 1), (8, 4)]):
        context = (shared if i else []) + [rng.randrange(256) for _ in range(before)]
        continuation = [rng.randrange(256) for _ in range(after)]
        requests.append(ScoringRequest(context, [continuation], document_key(context)))
    requests[1].continuations.append([*requests[1].continuations[0], 7, 8])
    return requests


def routes_of(model, ensemble, requests, budget=LARGE) -> list[RouteScores]:
    found: dict[int, RouteScores] = {}
    score_routes(model, ensemble, requests, budget, found.__setitem__)
    assert sorted(found) == list(range(len(requests)))
    return [found[i] for i in range(len(requests))]


def one_layer(model, layer):
    return [float(i == layer) for i in range(len(find_routers(model)))]


def prefixes(request):
    """Each scored token with what is read before it."""
    return [
        ([*request.context, *continuation[:i]], token)
        for continuation in request.continuations
        for i, token in enumerate(continuation)
    ]


def by_subset(model64, layer, request):
    """For each scored token its log-probability under every set of K experts of one layer, and the router's own set."""
    router = reference.routers_of(model64)[layer]
    found = []
    for ids, token in prefixes(request):
        values, own = {}, []
        for subset in combinations(range(router.weight.shape[0]), K):
            own.clear()

            def take(module, args, output, subset=subset, own=own):
                logits, weights, index = output
                own.append(frozenset(index[-1].tolist()))
                probs = [math.exp(float(value)) for value in logits[-1]]
                weights, index = weights.clone(), index.clone()
                weights[-1] = torch.tensor([probs[e] / sum(probs) for e in subset])
                index[-1] = torch.tensor(subset)
                return logits, weights, index

            handle = router.register_forward_hook(take)
            with torch.no_grad():
                logits = model64(torch.tensor([ids]), use_cache=False).logits[0, -1]
            handle.remove()
            values[frozenset(subset)] = float(logits.log_softmax(-1)[token])
        found.append((values, own[0]))
    return found


@pytest.mark.parametrize("chunk", [two_phase.CHUNK_SAMPLES, 7])
def test_every_route_has_the_value_of_its_experts_in_an_untouched_model(monkeypatch, chunk):
    monkeypatch.setattr(two_phase, "CHUNK_SAMPLES", chunk)
    model = make_model("olmoe", num_experts=5, num_experts_per_tok=K, num_hidden_layers=3)
    subsets = [frozenset(one) for one in combinations(range(5), K)]

    def forced(seed, document, repeat, row, position, layer_L, n_experts, antithetic):
        noise = torch.tensor([[1e4 * (e in subset) for e in range(n_experts)] for subset in subsets])
        return noise[row - 1].expand(len(layer_L), -1, -1)

    monkeypatch.setattr(noise, "gumbel_for_tokens", forced)
    ensemble = Ensemble(1 + len(subsets), GumbelTopK(one_layer(model, 1), seed=0), first_noisy=1)
    model64, requests = reference.in_float64(model), some_requests()
    for request, routes in zip(requests, routes_of(model, ensemble, requests), strict=True):
        assert len(routes.log_probs_Tn) == len(prefixes(request))
        for t, (expected, own) in enumerate(by_subset(model64, 1, request)):
            found = routes.log_probs_Tn[t].tolist()
            assert found[0] == rounding.approx(expected[own])
            assert found[1:] == rounding.approx([expected[subset] for subset in subsets])
            assert max(found) == rounding.approx(max(expected.values()))
            assert routes.changed_Tn[t].tolist() == [False, *(subset != own for subset in subsets)]


def test_enough_noise_finds_the_best_of_all_sets_of_experts():
    # 64 draws leave out one of 6 sets with odds of 6 (5/6)^64 = 5e-5 per token, if all are as likely.
    model = make_model("olmoe", num_experts=4, num_experts_per_tok=K, num_hidden_layers=3)
    routing = GumbelTopK([1000 * value for value in one_layer(model, 2)], seed=3)
    ensemble = Ensemble(65, routing, first_noisy=2)
    model64, requests = reference.in_float64(model), some_requests()
    for request, routes in zip(requests, routes_of(model, ensemble, requests), strict=True):
        best = [max(values.values()) for values, _ in by_subset(model64, 2, request)]
        assert routes.log_probs_Tn[:, 1:].amax(dim=-1).tolist() == rounding.approx(best)


@pytest.mark.parametrize("budget", [LARGE, Budget(4000, 1), Budget(7)], ids=str)
def test_routes_are_the_samples_of_the_ensemble(moe_model, budget):
    n, seed = 4, 5
    temperatures = [0.0] + [1.5] * (len(find_routers(moe_model)) - 1)
    ensemble = Ensemble(n, GumbelTopK(temperatures, seed), first_noisy=1)
    model64, requests = reference.in_float64(moe_model), some_requests()
    changed = 0
    for request, routes in zip(requests, routes_of(moe_model, ensemble, requests, budget), strict=True):
        for t, (ids, token) in enumerate(prefixes(request)):
            rows = torch.stack(
                [
                    reference.row_probs(
                        model64, ids, [len(ids) - 1], request.noise_key, row, temperatures, seed, 0, False
                    )
                    for row in range(n)
                ]
            )
            assert routes.log_probs_Tn[t].tolist() == rounding.approx(rows[:, token].log().tolist())
            assert float(routes.ensemble_T[t]) == rounding.approx(math.log(float(rows[:, token].mean())))
            assert float(routes.confidence_T[t]) == pytest.approx(float(rows[0].max()), rel=1e-5)
        changed += int(routes.changed_Tn.sum())
    assert changed  # else the noise shows nothing


def test_without_noise_every_route_is_the_routers_own(olmoe):
    routing = GumbelTopK([0.0] * 4, seed=0)
    for routes in routes_of(olmoe, Ensemble(5, routing, first_noisy=1), some_requests()):
        assert not routes.changed_Tn.any()
        assert (routes.log_probs_Tn == routes.log_probs_Tn[:, :1]).all()
        assert (routes.ensemble_T == routes.log_probs_Tn[:, 0]).all()


def test_numbers_that_do_not_exist_are_refused(olmoe):
    broken = make_model("olmoe")
    with torch.no_grad():
        broken.lm_head.weight.fill_(float("nan"))
    with pytest.raises(RoutingError, match="NaN"):
        routes_of(broken, Ensemble(3, GumbelTopK([0, 1, 1, 0], seed=0), first_noisy=1), some_requests())


N = 4
TEXTS = ["a", "", "the cat sat on a mat and ran far away " * 3, "big dogs in new york", "b" * 41]
PAIRS = [("the cat sat", " on a mat"), ("the cat sat", " far"), ("", "big dogs"), ("x " * 40, "in new york")]


def lm_of(model, tokenizer, **keys):
    ensemble = Ensemble(N, GumbelTopK([0, 2.0, 2.0, 0], seed=1), first_noisy=1)
    return EngineLM(model, tokenizer, ensemble=ensemble, max_length=40, progress=False, **keys)


def both_kinds():
    rolling = [("loglikelihood_rolling", Request((text,))) for text in TEXTS]
    requests = [*rolling, *(("loglikelihood", Request(pair)) for pair in PAIRS)]
    random.Random(0).shuffle(requests)
    return requests


@pytest.mark.parametrize("batch_size", ["auto", 1])
def test_the_ensembles_scores_add_up_to_the_answers(olmoe, tokenizer, batch_size):
    lm, requests = lm_of(olmoe, tokenizer, batch_size=batch_size), both_kinds()
    routes = text_routes(lm, requests)
    for (kind, request), own in zip(requests, routes, strict=True):
        answers = []
        lm.answer(kind, [request], lambda index, answer, answers=answers: answers.append(answer))
        value = answers[0][0] if kind == "loglikelihood" else answers[0]
        assert len(own.ensemble_T) == lm.count_tokens(kind, request)
        assert float(own.ensemble_T.double().sum()) == pytest.approx(value, abs=1e-4, rel=1e-6)
        mean_T = own.log_probs_Tn.logsumexp(dim=-1) - torch.tensor(N).log()
        assert own.ensemble_T.tolist() == pytest.approx(mean_T.tolist(), abs=1e-4)


def test_the_tokens_of_a_text_stand_in_its_order(olmoe, tokenizer):
    plain = EngineLM(olmoe, tokenizer, max_length=40, progress=False)
    [own] = text_routes(lm_of(olmoe, tokenizer), [("loglikelihood_rolling", Request((TEXTS[2],)))])
    expected = []
    for context, continuation in plain._encoder.windows(TEXTS[2]):
        with torch.no_grad():
            log_probs = olmoe(torch.tensor([[*context, *continuation]])).logits[0].log_softmax(dim=-1)
        expected += [float(log_probs[len(context) - 1 + i, token]) for i, token in enumerate(continuation)]
    assert own.log_probs_Tn[:, 0].tolist() == pytest.approx(expected, abs=1e-4)


def test_a_recurrent_model_is_refused(tokenizer):
    model = build("qwen3_next", attention_kinds.RECURRENT["qwen3_next"])
    with pytest.raises(ConfigError, match="metrics=counterfactual.*Leave"):
        text_routes(lm_of(model, tokenizer), both_kinds())
