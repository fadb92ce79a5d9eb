"""Rotary embeddings that depend on the length of a text: each number is that of transformers'
own pass over the text alone.

Broken by: texts of other lengths in a pass, a prefix that texts of two kinds share,
an embedding that remembers a longer text, a cache that `generate` drops where the embeddings
change and the engine keeps.
"""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from moe_lab import C3PO, RoE, record
from moe_lab.api.language_model import loaded_model
from moe_lab.engine.footprint import kept_in_training, meta_model
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import observed
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.pass_size import planned_memory
from moe_lab.methods.finetune_freeze.parameter_groups import empty_model
from moe_lab.methods.references.embeddings import hidden_states
from moe_lab.methods.virtual_tokens.training import VirtualTokensLM, refusal, with_adapter
from moe_lab.metrics.counts import SelectedExperts
from moe_lab.metrics.teacher_forcing import count_rows, right_tokens
from moe_lab.results.response_log import request_key
from moe_lab.routing import GumbelTopK, find_routers
from tests.support import roe_reference as reference
from tests.support import rounding
from tests.support.ensembles import HISTORIES, answered
from tests.support.families import COMMON, ZOO
from tests.support.models import build, make_tokenizer
from tests.support.tiers import first_fast

LIMIT = 24
"""Tokens of the longest text before the embeddings change."""
_FACTORS = {"short_factor": [1.0, 1.2, 1.4, 1.6], "long_factor": [2.0, 5.0, 8.0, 12.0]}
_HALF = {name: factors[:2] for name, factors in _FACTORS.items()}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "original_max_position_embeddings": LIMIT,
    "attention_factor": 1.1,
}
LONGROPE |= _FACTORS
PHI = LONGROPE | {"short_mscale": 1.1, "long_mscale": 1.4}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
EACH = {
    "dynamic": DYNAMIC,
    "longrope": LONGROPE,
    "linear": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": LIMIT},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    | {"original_max_position_embeddings": LIMIT},
    "proportional": {"partial_rotary_factor": 0.5},
}
"""The rope types of transformers."""
MODELS = {
    "phimoe, longrope": ("phimoe", PHI, 512),
    "olmoe, longrope": ("olmoe", LONGROPE, 512),
    "olmoe, dynamic": ("olmoe", DYNAMIC, LIMIT),
    "qwen3_next, longrope": ("qwen3_next", LONGROPE | _HALF, 512),
    "qwen3_next, dynamic": ("qwen3_next", DYNAMIC, LIMIT),
    "qwen3_vl_moe, dynamic": ("qwen3_vl_moe_text", DYNAMIC | {"mrope_section": [2, 1, 1]}, LIMIT),
}
"""Two models with a KV cache that keep their keys, Phi's, which reads a text again,
one with recurrent states, and one with positions of three axes."""
TEXTS = [
    "x" * 20,
    "b",
    "abcdefgh" * 4,
    "abcdefgh" * 4 + "i",
    "abcdefgh" * 2 + "abcdefgij",
    "x" * 23,
]
PAIRS = list(product(TEXTS, (" no", " it is longer", "!")))
PAIRS += [("x" * 20 + "y", " z"), ("x" * 19, " more of it and more")]


def rope_model(family, rope, longest):
    settings = {"rope_parameters": rope, "max_position_embeddings": longest}
    return build(family, COMMON | ZOO[family] | settings)


def model_of(name):
    """The model as it is loaded: no embedding has seen a text."""
    return rope_model(*MODELS[name])


@cache
def settled(name, length):
    """The model in float64 with the embeddings of texts of one length, whatever it reads."""
    family, rope, longest = MODELS[name]
    if rope["rope_type"] == "longrope":
        always = 1 if length > LIMIT else 10**6
        return reference.in_float64(
            rope_model(family, rope | {"original_max_position_embeddings": always}, longest)
        )
    # the formula of "Dynamic NTK"
    growth = rope["factor"] * max(length, longest) / longest - (rope["factor"] - 1)
    size = kept_size(name)
    theta = rope["rope_theta"] * growth ** (size / (size - 2))
    return reference.in_float64(
        rope_model(family, rope | {"rope_type": "default", "rope_theta": theta}, longest)
    )


def kept_size(name):
    """Numbers of a head that are rotated."""
    return 2 * model_of(name).get_decoder().rotary_emb.inv_freq.numel()


def lm_of(model, **options):
    return EngineLM(model, make_tokenizer(), progress=False, max_length=128, **options)


def encoded(text):
    return make_tokenizer().encode(text)


def alone(name, context, continuation):
    """The log-likelihood by a model that has seen nothing else."""
    ids = encoded(context) or [256]
    target = encoded(continuation)
    with torch.no_grad():
        logits = model_of(name)(torch.tensor([[*ids, *target[:-1]]])).logits[0, len(ids) - 1 :]
    return logits.log_softmax(dim=-1)[range(len(target)), target].sum().item()


def generated_alone(name, prompt, steps, **options):
    ids = torch.tensor([encoded(prompt)])
    settings = {"max_new_tokens": steps, "do_sample": False, "eos_token_id": None} | options
    return model_of(name).generate(ids, **settings)[0, ids.shape[1] :].tolist()


def assert_alone(name, answers, pairs):
    for value, pair in zip(answers, pairs, strict=True):
        assert value == rounding.approx(alone(name, *pair), len(pair[1])), pair


def temperatures_of(model):
    return [0.0] + [0.7] * (len(find_routers(model)) - 1)


def ensemble_of(model, history=("clean", "noisy"), temperatures=None):
    routing = GumbelTopK(temperatures or temperatures_of(model), 0)
    return Ensemble(3, routing, first_noisy=1, cache=history[0], prefill=history[1])


@pytest.mark.parametrize(("rope_type", "settings"), EACH.items())
def test_kinds_of_texts_for_every_rope_type(rope_type, settings):
    assert set(EACH) == set(ROPE_INIT_FUNCTIONS)
    model = rope_model("olmoe", {"rope_type": rope_type, "rope_theta": 100.0} | settings, LIMIT)
    rotary = RotaryHooks(model)
    kinds = [rotary.kind(length) for length in (1, 2, LIMIT, LIMIT + 1, LIMIT + 2, 10 * LIMIT)]
    expected = {"longrope": [0, 0, 0, 1, 1, 1], "dynamic": [0, 0, 0, 1, 2, 3]}.get(
        rope_type, [0] * 6
    )
    assert [list(dict.fromkeys(kinds)).index(kind) for kind in kinds] == expected
    assert rotary.depends == (rope_type in ("longrope", "dynamic"))
    if not rotary.depends:
        assert set(kinds) == {0}


@pytest.mark.parametrize("name", first_fast(MODELS, 3))
@pytest.mark.parametrize("batch_size", ["auto", 3])
def test_log_likelihoods_are_those_of_each_text_alone(name, batch_size):
    lm = lm_of(model_of(name), batch_size=batch_size)
    values = [value for value, _ in answered(lm, "loglikelihood", PAIRS)]
    assert_alone(name, values, PAIRS)

    texts = [text for text, _ in PAIRS[::3]]
    rolling_values = answered(lm, "loglikelihood_rolling", [(text,) for text in texts])
    assert_alone(name, rolling_values, [("", text) for text in texts])


@pytest.mark.parametrize("name", first_fast(MODELS, 3))
def test_generation_is_that_of_each_prompt_alone(name):
    """Prompts below the limit that cross it, at it, and beyond it."""
    steps = 10
    tokenizer = make_tokenizer()
    lm = lm_of(model_of(name), batch_size=4)
    answers = answered(
        lm, "generate_until", [(text, {"until": [], "max_gen_toks": steps}) for text in TEXTS]
    )
    for text, answer in zip(TEXTS, answers, strict=True):
        ids = generated_alone(name, text, steps)
        before_end = ids[: ids.index(256)] if 256 in ids else ids
        assert answer == tokenizer.decode(before_end), text


@pytest.mark.parametrize("name", first_fast(MODELS, 3))
def test_roe_generates_what_the_model_generates_alone(name):
    """One sample, and samples without noise, from a model that has read longer texts."""
    steps = 10
    tokenizer = make_tokenizer()
    model = model_of(name)
    with torch.no_grad():
        model(torch.zeros(1, 100, dtype=torch.long))
    for settings in (
        {"n": 1},
        {"n": 2, "temperature": 0.0},
        {"n": 2, "temperature": 0.0, "cache": "standard"},
    ):
        roe = RoE(model, tokenizer, **settings)
        texts = roe.generate(TEXTS, max_new_tokens=steps, do_sample=False, eos_token_id=None)
        for text, answer in zip(TEXTS, texts, strict=True):
            expected = tokenizer.decode(
                generated_alone(name, text, steps), skip_special_tokens=True
            )
            assert answer == expected, (text, settings)


@pytest.mark.parametrize("name", first_fast(MODELS, 3))
@pytest.mark.parametrize("history", HISTORIES[:2])
def test_samples_are_scored_with_the_embeddings_of_their_text(name, history):
    model = model_of(name)
    pairs = PAIRS[::4]
    lm = lm_of(model, ensemble=ensemble_of(model, history))
    scores = [value for value, _ in answered(lm, "loglikelihood", pairs)]
    for value, (context, continuation) in zip(scores, pairs, strict=True):
        ids = encoded(context)
        target = encoded(continuation)
        settled_model = settled(name, len(ids) + len(target) - 1)
        switches = {"cache": history[0], "prefill": history[1]}
        expected = reference.score(
            settled_model, ids, target, 3, temperatures_of(model), **switches
        )
        assert value == rounding.approx(expected[0], len(target)), (context, continuation)


@pytest.mark.parametrize("history", HISTORIES[:2])
def test_phi_reads_its_samples_again_where_the_embeddings_change(history):
    name = "phimoe, longrope"
    prompts = ["x" * 20, "abcdefgh", "abcdefgh" * 2 + "abcde"]
    steps = 8
    switches = {"cache": history[0], "prefill": history[1]}
    model = model_of(name)
    lm = lm_of(model, ensemble=ensemble_of(model, history))
    requests = [(prompt, {"until": [], "max_gen_toks": steps}) for prompt in prompts]
    answers = answered(lm, "generate_until", requests)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = encoded(prompt)
        for _ in range(steps):
            probs = reference.next_token_probs(
                settled(name, len(ids)),
                encoded(prompt),
                ids,
                3,
                temperatures_of(model),
                **switches,
            )
            ids.append(int(probs.argmax()))
        expected = make_tokenizer().decode(ids[len(prompt) :], skip_special_tokens=True)
        assert answer == expected, prompt


@pytest.mark.parametrize("name", first_fast(MODELS, 3))
@pytest.mark.parametrize("history", HISTORIES[:3])
def test_what_an_ensemble_generates_depends_on_no_other_prompt(name, history):
    model = model_of(name)
    requests = [(text, {"until": [], "max_gen_toks": 8}) for text in TEXTS]
    together = answered(
        lm_of(model, ensemble=ensemble_of(model, history)), "generate_until", requests
    )
    for request, answer in zip(requests, together, strict=True):
        lm = lm_of(model_of(name), ensemble=ensemble_of(model, history))
        assert answered(lm, "generate_until", [request]) == [answer], request


REFERENCES = [("x" * 21, " abcdef"), ("abcdefgh" * 3, "ij"), ("b", "cde"), ("abcdefgh", " x" * 10)]
C3PO_KEYS = {"layers": "last2", "k": 2, "steps": 2, "core_experts": 2, "learning_rate": [0.5, 0.1]}
ON_A_CACHE = ["phimoe, longrope", "olmoe, dynamic"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["phimoe, longrope", "olmoe, longrope"])
def test_pathways_are_those_of_each_question_alone(name):
    pairs = PAIRS[:6] + PAIRS[-2:]

    def found(c3po, pairs):
        contexts, continuations = zip(*pairs, strict=True)
        return c3po.loglikelihood(list(contexts), list(continuations))

    unchanged = C3PO(model_of(name), make_tokenizer(), REFERENCES, **C3PO_KEYS | {"steps": 0})
    assert_alone(name, found(unchanged, pairs), pairs)
    together = found(C3PO(model_of(name), make_tokenizer(), REFERENCES, **C3PO_KEYS), pairs)
    for pair, value in zip(pairs, together, strict=True):
        single = C3PO(model_of(name), make_tokenizer(), REFERENCES, **C3PO_KEYS)
        assert found(single, [pair]) == rounding.approx([value], len(pair[1]))


@pytest.mark.parametrize("name", ON_A_CACHE)
def test_a_trial_of_tuning_is_a_run_of_its_own(name):
    """Activations of the base model are kept between temperatures."""
    model = model_of(name)
    kinds = {
        "loglikelihood": PAIRS,
        "generate_until": [(text, {"until": [], "max_gen_toks": 6}) for text in TEXTS],
    }
    lm = lm_of(model, ensemble=ensemble_of(model), reuse=True)
    for kind, requests in kinds.items():
        answered(lm, kind, requests)
    warmer = [0.0] + [1.5] * (len(find_routers(model)) - 1)
    lm.set_ensemble(ensemble_of(model, temperatures=warmer))
    for kind, requests in kinds.items():
        run = answered(
            lm_of(model_of(name), ensemble=ensemble_of(model, temperatures=warmer)), kind, requests
        )
        trial = answered(lm, kind, requests)
        if kind == "loglikelihood":
            values = [value for value, _ in run]
            assert [value for value, _ in trial] == rounding.approx(values, 19)
        else:
            assert trial == run


def selections(model, ids):
    """int64 [L, T, K]: the experts of each token of a text that is read alone."""
    with record(model) as routes, torch.no_grad():
        model(torch.tensor([ids]))
    return torch.stack(routes.indices)


@pytest.mark.parametrize("name", ON_A_CACHE)
def test_expert_metrics_count_the_experts_of_each_text_alone(name):
    lm = lm_of(model_of(name))
    routes = SelectedExperts()
    requests = [Request(pair) for pair in PAIRS]
    with observed(lm, routes):
        lm.answer("loglikelihood", requests, lambda index, answer: None)
    for pair, request in zip(PAIRS, requests, strict=True):
        ids = [*encoded(pair[0]), *encoded(pair[1])[:-1]]
        [read] = routes.reads[request_key("loglikelihood", request.args, 0)]
        expected = selections(model_of(name), ids)
        for layer, index_TK in enumerate(
            routes.table().of(np.concatenate([read.prompt, read.answer]))
        ):
            assert (np.sort(index_TK) == np.sort(expected[layer].numpy())).all(), pair


@pytest.mark.parametrize("name", ON_A_CACHE)
def test_rows_of_expert_metrics_are_those_of_each_text_alone(name):
    texts = ["abcdefgh" * 2, "abcdefgh" * 4, "b", "abcdefgh" * 5]
    rows = [{"input_ids": encoded(text), "labels": encoded(text)} for text in texts]
    routes = SelectedExperts()
    right_N = right_tokens(model_of(name), rows, routes)
    pairs_GPLEE = count_rows(routes, rows).pairs_GPLEE
    longest_first = sorted(range(len(rows)), key=lambda n: -len(rows[n]["input_ids"]))
    for group, n in enumerate(longest_first):
        ids = rows[n]["input_ids"]
        model = model_of(name)
        with torch.no_grad():
            predicted = model(torch.tensor([ids])).logits[0, :-1].argmax(dim=-1)
        assert right_N[n] == int((predicted == torch.tensor(ids[1:])).sum())
        for layer, index_TK in enumerate(selections(model_of(name), ids)):
            counts = np.bincount(index_TK.flatten().numpy(), minlength=pairs_GPLEE.shape[-1])
            assert (np.diagonal(pairs_GPLEE[group, 0, layer]) == counts).all()


@pytest.mark.parametrize("name", ON_A_CACHE)
def test_embeddings_are_those_of_each_text_alone(name):
    loaded = loaded_model(model_of(name), make_tokenizer())
    together = hidden_states(TEXTS, loaded)
    for text, vector in zip(TEXTS, together, strict=True):
        [single] = hidden_states([text], loaded_model(model_of(name), make_tokenizer()))
        rounding.assert_close(vector, single)


@pytest.mark.parametrize("kind", ["soft-prompt", "prefix-tuning"])
def test_virtual_tokens_are_scored_before_each_text_alone(kind):
    """lm-eval's own code runs the adapter."""
    name = "phimoe, longrope"
    count = 4
    with with_adapter(model_of(name), kind, count, 0) as wrapped:
        lm = VirtualTokensLM(
            wrapped, make_tokenizer(), batch_size=4, progress=False, max_length=128
        )
        together = [value for value, _ in answered(lm, "loglikelihood", PAIRS)]
        for (context, continuation), value in zip(PAIRS, together, strict=True):
            ids = encoded(context)
            target = encoded(continuation)
            with torch.no_grad():
                logits = wrapped(input_ids=torch.tensor([[*ids, *target[:-1]]])).logits[
                    0, -len(target) :
                ]
            expected = logits.log_softmax(dim=-1)[range(len(target)), target].sum().item()
            assert value == rounding.approx(expected, len(target)), (context, continuation)


@pytest.mark.parametrize("name", ["phimoe, longrope", "olmoe, longrope", "olmoe, dynamic"])
def test_plans_compare_no_position_with_a_limit(name):
    """A model without weights has no values.

    Its sizes are those of the same model with the default embeddings.
    """
    family, _, longest = MODELS[name]
    default = rope_model(family, {"rope_type": "default", "rope_theta": 100.0}, longest).config
    sizes = []
    for config in (model_of(name).config, default):
        model = meta_model(config, torch.float32)
        sizes.append((planned_memory(model, 100, 4), kept_in_training(empty_model(config), 40)))
        assert refusal(config, "soft-prompt") is None
    assert sizes[0] == sizes[1]
    assert min(sizes[0]) > 0
    assert model_of(name).config.rope_parameters["rope_type"] != "default"
