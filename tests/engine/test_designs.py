"""`method=base` on a design is one whole pass over each sequence, whatever the batch.

Broken by: scores that read padding or neighbours, a cached decision of another word.
"""

import pytest
import torch

from moe_lab.engine.forward.layers import reads_the_batch, runs_on_kv_cache
from moe_lab.engine.lm import EngineLM
from moe_lab.models.designs.units import unit_tables
from tests.support import rounding
from tests.support.designs import design
from tests.support.ensembles import answered
from tests.support.models import make_tokenizer

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
    units = unit_tables(make_tokenizer(), router) if router in ("word", "sentence", "word-hash") else None
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
    assert [runs_on_kv_cache(model_of(router)) for router in ROUTERS] == [True, False, False, False, False]
    assert [reads_the_batch(model_of(router)) for router in ROUTERS] == [False, False, False, False, True]


@pytest.mark.parametrize(("router", "batch_size"), [*((router, 3) for router in ROUTERS), ("word", "auto")])
def test_log_likelihoods_are_those_of_whole_passes(router, batch_size):
    model = model_of(router)
    lm = EngineLM(model, make_tokenizer(), batch_size=batch_size)
    found = answered(lm, "loglikelihood", PAIRS)
    for (value, greedy), (context, continuation) in zip(found, PAIRS, strict=True):
        expected = whole_pass(model, context, continuation)
        assert value == rounding.approx(expected[0], len(continuation)) and greedy == expected[1]
    texts = [(continuation,) for _, continuation in PAIRS]
    rolled = answered(lm, "loglikelihood_rolling", texts)
    for value, (text,) in zip(rolled, texts, strict=True):
        assert value == rounding.approx(whole_pass(model, "", text)[0], len(text))


@pytest.mark.parametrize("router", ROUTERS)
def test_generation_is_that_of_whole_passes(router):
    model, tokenizer = model_of(router), make_tokenizer()
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
