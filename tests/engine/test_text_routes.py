"""The routes of texts belong to the answers of the LM: same tokens, same windows, same noise.

Broken by: pieces of two texts that are mixed up, windows in another order, noise of another key than the answer's.
"""

from __future__ import annotations

import random

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.engine.text_routes import text_routes
from moe_lab.errors import ConfigError
from moe_lab.routing import GumbelTopK
from tests.support import attention_kinds
from tests.support.models import build

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
    with pytest.raises(ConfigError, match="cannot be scored apart"):
        text_routes(lm_of(model, tokenizer), both_kinds())
