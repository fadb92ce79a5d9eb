"""Models with recurrent layers, run with copies of their own cache: what is counted, batches, trials.

That RoE equals its slow reference is tested in tests/engine/forward/test_histories.py. Broken by: a state that two samples
or branches write to, a noisy sample's state kept as history, padding that a state reads.
"""

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent import RecurrentEngine
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.routing import GumbelTopK, find_routers
from tests.support.ensembles import SEED, N, answered, ensemble_for, scores_of
from tests.support.models import small_model


def test_tokens_that_are_counted():
    """3 context tokens, the last of them with 4 samples; nodes 5 and 6 with 4 samples each."""
    model, question = small_model("qwen3_next"), ScoringRequest([1, 2, 3], [[5, 6, 7], [5, 6, 8]], 0)
    for history, tokens in ((("clean", "noisy"), 2 + 3 * N), (("standard", "noisy"), 5 * N)):
        assert scores_of(model, [question], None, ensemble_for(model, history))[1].tokens_in == tokens


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_the_lm_answers_from_any_batch_size_and_in_trials(tokenizer, kind):
    model = small_model("qwen3_next")
    requests = {
        "loglikelihood": [("abcdefgh", " ab"), ("abcdefgh", " c"), ("b", "d")],
        "loglikelihood_rolling": [("abcdef",)],
        "generate_until": [(text, {"until": [], "max_gen_toks": 4}) for text in ("abcdefghij", "b")],
    }[kind]

    def ensemble(temperature):
        layers = len(find_routers(model))
        return Ensemble(3, GumbelTopK([temperature] * layers, SEED), first_noisy=1)

    found = []
    for batch_size in ("auto", 1, 2):
        lm = EngineLM(model, tokenizer, ensemble=ensemble(0.7), batch_size=batch_size, progress=False)
        assert isinstance(lm.engine, RecurrentEngine)
        found.append(answered(lm, kind, requests))
        assert lm.cost["tokens_in"] > 0 and lm.cost["noisy_decisions"] > 0
    tuned = EngineLM(model, tokenizer, ensemble=ensemble(0.1), reuse=True, progress=False)
    answered(tuned, kind, requests)
    before = tuned.cost
    tuned.set_ensemble(ensemble(0.7))
    found.append(answered(tuned, kind, requests))
    assert found == [found[0]] * 4
    assert tuned.cost["tokens_in"] == 2 * before["tokens_in"]
    assert tuned.cost["noisy_decisions"] == 2 * before["noisy_decisions"]


def test_prompts_of_a_recurrent_base_model_are_not_padded(tokenizer):
    """MiniMax's lightning attention reads padding before a prompt."""
    model = small_model("minimax")
    texts = ["abcdefghijklmnopqrstuvwxyz", "b", "abcdefgh"]
    lm = EngineLM(model, tokenizer, batch_size=4, progress=False)
    answers = answered(lm, "generate_until", [(text, {"until": [], "max_gen_toks": 6}) for text in texts])
    for text, answer in zip(texts, answers, strict=True):
        ids = tokenizer.encode(text)
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert answer == tokenizer.decode(ids[len(text) :])
    assert lm.cost["tokens_out"] == 6 * len(texts)
    assert lm.cost["tokens_in"] == sum(map(len, texts)) + 5 * len(texts)
