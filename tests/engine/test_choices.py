"""The experts at one place, against hooks on the experts themselves, one sample at a time and without a cache.

Broken by the noise of another document, position, sample or layer, and by a pass that is counted twice.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from moe_lab.engine.choices import SHARE, WEIGHT, Place, place_of
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.routing import GumbelTopK, document_key, find_routers
from tests.support import roe_reference, rounding
from tests.support.models import make_model, make_tokenizer, small_model
from tests.support.tiers import by_family

PROMPT, SHARED = tuple(range(60, 71)), (9, 8, 7)
PLACE = Place("text", None, PROMPT, SHARED, (1, 2))


def taken(model):
    """Hooks on the experts: by MoE layer the (index, weights) of each token of the last pass."""
    seen = {}
    for layer, router in enumerate(find_routers(model)):
        router.block.experts.register_forward_pre_hook(
            lambda module, args, layer=layer: seen.update({layer: args[1:3]})
        )
    return seen


@pytest.mark.parametrize("family", by_family(("olmoe", "mixtral", "qwen3_moe")))
def test_the_plain_model(family):
    model = make_model(family)
    [found] = EngineLM(model, make_tokenizer(), progress=False).choices([PLACE])
    assert found.read == PROMPT + SHARED and found.numbers == WEIGHT
    seen = taken(model)
    with torch.no_grad():
        model(torch.tensor([PLACE.read]), use_cache=False)
    assert len(found.layers) == len(seen)
    for layer, (index_TK, weights_TK) in seen.items():
        expected = dict(zip(index_TK[-1].tolist(), weights_TK[-1].tolist(), strict=True))
        assert found.layers[layer] == rounding.approx(expected)
        assert list(found.layers[layer].values()) == sorted(expected.values(), reverse=True)


CACHES = [
    {"cache": "clean"},
    {"cache": "standard"},
    {"cache": "standard", "prefill": "clean"},
    {"cache": "none"},
]


@pytest.mark.parametrize("keys", CACHES, ids=str)
def test_the_share_of_samples_is_that_of_single_passes(keys):
    n, temperatures = 5, [0.0, 1.5, 0.0, 0.7]
    model = make_model("olmoe")
    ensemble = Ensemble(n=n, routing=GumbelTopK(temperatures, seed=3), first_noisy=1, **keys)
    lm = EngineLM(model, make_tokenizer(), ensemble=ensemble, progress=False)
    before = dict(lm.cost)
    [found] = lm.choices([PLACE])
    assert found.numbers == SHARE and lm.ensemble is ensemble and lm.engine.forward.ensemble is ensemble
    assert lm.cost["noisy_decisions"] == before["noisy_decisions"]
    double = roe_reference.in_float64(model)
    seen, counts = taken(double), [Counter() for _ in temperatures]
    positions = list(roe_reference.noisy_positions(PROMPT, PLACE.read, **keys))
    key = document_key(PROMPT)
    for row in range(n):
        roe_reference.row_probs(double, PLACE.read, positions, key, row, temperatures, 3, 0, False)
        for layer, (index_TK, _) in seen.items():
            counts[layer].update(index_TK[-1].tolist())
    shares = [{expert: count / n for expert, count in layer.items()} for layer in counts]
    assert found.layers == shares
    assert len(set(map(len, shares))) > 1, "the noise changes something"


def test_layers_that_remember_more_than_keys_and_values():
    model = small_model("qwen3_next")
    layers = len(find_routers(model))
    ensemble = Ensemble(n=3, routing=GumbelTopK([1.0] * layers, seed=1))
    [found] = EngineLM(model, make_tokenizer(), ensemble=ensemble, progress=False).choices([PLACE])
    k = model.config.num_experts_per_tok
    assert [sum(layer.values()) for layer in found.layers] == rounding.approx([float(k)] * layers)


@pytest.mark.parametrize(
    ("answers", "shared", "tokens"),
    [
        (((1, 2, 3), (1, 4)), (1,), (2, 4)),
        (((1, 2), (1, 2, 3)), (1, 2), (None, 3)),
        (((5,), ()), (), (5, None)),
    ],
)
def test_where_answers_part(answers, shared, tokens):
    found = place_of("text", " a", (7, 8), *answers)
    assert (found.shared, found.tokens, found.read) == (shared, tokens, (7, 8, *shared))


def test_equal_answers_part_nowhere():
    assert place_of("text", None, (7,), (1, 2), (1, 2)) is None


def test_a_prompt_is_encoded_as_it_is_read():
    """A prompt that is too long loses as much as when it is answered."""
    lm = EngineLM(make_model("olmoe"), make_tokenizer(), max_length=20, progress=False)
    seen = []
    lm.engine.generate = lambda states, decoding, on_done: seen.extend(states)
    requests = [Request((text, {"max_gen_toks": 5, "until": []})) for text in ("short", "x" * 18 + "end")]
    lm.answer("generate_until", requests, lambda index, text: None)
    assert [tuple(state.prompt) for state in seen] == [lm.encode_request(each) for each in requests]
    assert len(seen[1].prompt) == 15
