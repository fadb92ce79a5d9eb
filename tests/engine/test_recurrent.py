"""Models with recurrent layers, run with copies of their own cache: what is counted, batches,
trials.

That RoE equals its slow reference is tested in tests/engine/forward/test_histories.py.
Broken by: a state that two samples or branches write to, a noisy sample's state kept as history,
padding that a state reads.

`method=base` on a design is one whole pass over each sequence, whatever the batch.

Broken by: scores that read padding or neighbours, a cached decision of another word.
"""

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.layers import reads_the_batch, runs_on_kv_cache
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.recurrent import RecurrentEngine
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.models.designs.units import unit_tables
from moe_lab.routing import GumbelTopK, find_routers
from tests.support import rounding
from tests.support.designs import design
from tests.support.ensembles import SEED, N, answered, ensemble_for, scores_of
from tests.support.models import make_tokenizer, small_model


def test_tokens_that_are_counted():
    """3 context tokens, the last of them with 4 samples; nodes 5 and 6 with 4 samples each."""
    model = small_model("qwen3_next")
    question = ScoringRequest([1, 2, 3], [[5, 6, 7], [5, 6, 8]], 0)
    for history, tokens in ((("clean", "noisy"), 2 + 3 * N), (("standard", "noisy"), 5 * N)):
        assert (
            scores_of(model, [question], None, ensemble_for(model, history))[1].tokens_in == tokens
        )


@pytest.mark.parametrize("kind", ["loglikelihood", "loglikelihood_rolling", "generate_until"])
def test_the_lm_answers_from_any_batch_size_and_in_trials(tokenizer, kind):
    model = small_model("qwen3_next")
    generation = {"until": [], "max_gen_toks": 4}
    requests_by_kind = {
        "loglikelihood": [("abcdefgh", " ab"), ("abcdefgh", " c"), ("b", "d")],
        "loglikelihood_rolling": [("abcdef",)],
        "generate_until": [("abcdefghij", generation), ("b", generation)],
    }
    requests = requests_by_kind[kind]

    def ensemble(temperature):
        layers = len(find_routers(model))
        return Ensemble(3, GumbelTopK([temperature] * layers, SEED), first_noisy=1)

    all_answers = []
    for batch_size in ("auto", 1, 2):
        lm = EngineLM(
            model, tokenizer, ensemble=ensemble(0.7), batch_size=batch_size, progress=False
        )
        assert isinstance(lm.engine, RecurrentEngine)
        all_answers.append(answered(lm, kind, requests))
        assert lm.cost["tokens_in"] > 0
        assert lm.cost["noisy_decisions"] > 0
    tuned = EngineLM(model, tokenizer, ensemble=ensemble(0.1), reuse=True, progress=False)
    answered(tuned, kind, requests)
    before = tuned.cost
    tuned.set_ensemble(ensemble(0.7))
    all_answers.append(answered(tuned, kind, requests))
    assert all_answers == [all_answers[0]] * 4
    assert tuned.cost["tokens_in"] == 2 * before["tokens_in"]
    assert tuned.cost["noisy_decisions"] == 2 * before["noisy_decisions"]


def test_prompts_of_a_recurrent_base_model_are_not_padded(tokenizer):
    """MiniMax's lightning attention reads padding before a prompt."""
    model = small_model("minimax")
    texts = ["abcdefghijklmnopqrstuvwxyz", "b", "abcdefgh"]
    lm = EngineLM(model, tokenizer, batch_size=4, progress=False)
    answers = answered(
        lm, "generate_until", [(text, {"until": [], "max_gen_toks": 6}) for text in texts]
    )
    for text, answer in zip(texts, answers, strict=True):
        ids = tokenizer.encode(text)
        for _ in range(6):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert answer == tokenizer.decode(ids[len(text) :])
    assert lm.cost["tokens_out"] == 6 * len(texts)
    assert lm.cost["tokens_in"] == sum(map(len, texts)) + 5 * len(texts)


ROUTERS = ("token", "word", "sentence", "word-hash", "expert")
PAIRS = [
    ("How many? Ten. Then", " it was one."),
    ("How many? Ten. Then", " it"),
    ("a", "bc d"),
    ("", "No. Yes! So."),
    ("x" * 30, " y"),
]


def model_of(router):
    """Generation ends with the most tokens alone: the model has no token for the end."""
    units = (
        unit_tables(make_tokenizer(), router)
        if router in ("word", "sentence", "word-hash")
        else None
    )
    model = design(router, units=units, n_shared_experts=1)
    with torch.no_grad():
        model.lm_head.weight[256:].zero_()
    return model


def whole_pass(model, context, continuation):
    """The log-likelihood and whether it is greedy."""
    ids = make_tokenizer().encode(context) or [256]
    target = make_tokenizer().encode(continuation)
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *target[:-1]]])).logits[0, len(ids) - 1 :]
    scores = logits.log_softmax(dim=-1)
    return scores[range(len(target)), target].sum().item(), scores.argmax(dim=-1).tolist() == target


def test_only_token_choice_runs_on_a_shared_cache():
    assert [runs_on_kv_cache(model_of(router)) for router in ROUTERS] == [
        True,
        False,
        False,
        False,
        False,
    ]
    assert [reads_the_batch(model_of(router)) for router in ROUTERS] == [
        False,
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("router", "batch_size"), [*((router, 3) for router in ROUTERS), ("word", "auto")]
)
def test_log_likelihoods_are_those_of_whole_passes(router, batch_size):
    model = model_of(router)
    lm = EngineLM(model, make_tokenizer(), batch_size=batch_size)
    scores = answered(lm, "loglikelihood", PAIRS)
    for (value, greedy), (context, continuation) in zip(scores, PAIRS, strict=True):
        expected = whole_pass(model, context, continuation)
        assert value == rounding.approx(expected[0], len(continuation))
        assert greedy == expected[1]
    texts = [(continuation,) for _, continuation in PAIRS]
    rolled = answered(lm, "loglikelihood_rolling", texts)
    for value, (text,) in zip(rolled, texts, strict=True):
        assert value == rounding.approx(whole_pass(model, "", text)[0], len(text))


@pytest.mark.parametrize("router", ROUTERS)
def test_generation_is_that_of_whole_passes(router):
    model = model_of(router)
    tokenizer = make_tokenizer()
    lm = EngineLM(model, tokenizer, batch_size=2)
    prompts = ["How many? Ten. Then", "b c", "x" * 20]
    options = {"until": [], "max_gen_toks": 8}
    texts = answered(lm, "generate_until", [(prompt, options) for prompt in prompts])
    for prompt, text in zip(prompts, texts, strict=True):
        ids = tokenizer.encode(prompt)
        for _ in range(8):
            with torch.no_grad():
                ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
        assert text == tokenizer.decode(ids[-8:])
