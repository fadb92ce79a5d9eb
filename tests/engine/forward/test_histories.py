"""cache=clean, standard and none, with clean and noisy prompts: each equals its slow reference.

Broken by: noise keyed by anything but the sample and the position, a sample that reads another's keys, values or state, a
window that counts padding, other branches or samples as tokens, a prompt read with (or without) noise where it should not
be, or scoring that differs from decoding.
"""

import random
from functools import cache, partial
from itertools import product

import pytest
import torch

from moe_lab.engine.forward.layers import (
    FULL,
    AttentionWindow,
    attention_windows,
    decoder_layers,
    runs_on_kv_cache,
)
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import Budget
from moe_lab.routing import document_key, find_routers
from tests.support import roe_reference as reference
from tests.support.ensembles import (
    HISTORIES,
    SEED,
    N,
    answered,
    answers_of,
    assert_scores,
    engine_of,
    ensemble_for,
    prompts_for,
    questions_for,
    scores_of,
    temperatures_for,
)
from tests.support.families import WINDOW
from tests.support.models import kv_cache_model, make_model, small_model
from tests.support.tiers import by_family, first_fast

BUDGETS = [Budget(4000), Budget(4000, 1), Budget(45), Budget(9)]
KV_CACHE = "olmoe gpt_oss mixtral qwen2_moe deepseek_v3 granitemoe llama4_text gemma4_text".split()
RECURRENT = ("qwen3_next", "minimax", "granitemoehybrid", "jamba", "llama4_text")
"""Llama 4 scales its queries by their positions, or not (`ON_A_KV_CACHE`)."""
EVERY_HISTORY = ("olmoe", "gpt_oss", "llama4_text", "qwen3_next, recurrent")
"""Full attention, windows, chunks, a recurrent state. The other models have other layers: one history of samples that
share keys and values, one of samples that have their own."""
MODELS = dict.fromkeys(KV_CACHE, kv_cache_model) | {
    f"{name}, recurrent": small_model for name in RECURRENT
}
FAST = {
    *product(["olmoe"], HISTORIES[:3]),
    *product(["gpt_oss", "qwen3_next, recurrent"], HISTORIES[:1]),
}
GIVEN = [
    (name, history, False)
    for name in MODELS
    for history in (HISTORIES if name in EVERY_HISTORY else HISTORIES[:2])
]
# the weights of the chosen experts do not depend on where keys and values come from
GIVEN += [("olmoe", HISTORIES[0], True), ("mixtral", HISTORIES[1], True)]
CASES = pytest.mark.parametrize(
    ("name", "history", "perturbed"),
    [
        pytest.param(
            *given,
            marks=[] if given[:2] in FAST else [pytest.mark.slow],
            id="-".join(map(str, given)),
        )
        for given in GIVEN
    ],
)


@cache
def models(name):
    """(a model, its reference, which keeps its passes, the budgets that matter to it)"""
    model = MODELS[name](name.partition(",")[0])
    assert runs_on_kv_cache(model) == (name in KV_CACHE)
    return model, reference.in_float64(model), BUDGETS if name in KV_CACHE else BUDGETS[:1]


@CASES
def test_scores_equal_the_slow_reference(name, history, perturbed):
    """In whole passes and in two phases. Contexts are shorter and longer than windows and chunks."""
    model, double, budgets = models(name)
    switches = dict(seed=SEED, cache=history[0], prefill=history[1], perturbed=perturbed)
    questions = questions_for(random.Random(1), 2, choices=1, longest=6)
    lengths = [len(q.context) for q in questions]
    assert min(lengths) < WINDOW < 3 * WINDOW < max(lengths)
    given = N, temperatures_for(model)
    expected = [
        [reference.score(double, q.context, c, *given, **switches) for c in q.continuations]
        for q in questions
    ]
    # a recurrent state carries the rounding of every token before: as for a sum over twice the scored tokens
    tokens = 1 if name in KV_CACHE else 6
    for budget in budgets:
        ensemble = ensemble_for(model, history, perturbed)
        assert_scores(scores_of(model, questions, budget, ensemble)[0], expected, tokens)
        assert ensemble.routing.counts()["changed_decisions"] > 0
        if name in KV_CACHE and history[0] == "clean":
            assert_scores(
                scores_of(model, questions, budget, ensemble, two_phase=True)[0], expected
            )


@CASES
def test_tokens_equal_the_slow_reference(name, history, perturbed):
    model, double, budgets = models(name)
    switches = dict(seed=SEED, cache=history[0], prefill=history[1], perturbed=perturbed)
    prompts = [[7], *prompts_for(random.Random(5), 2)]
    noise = temperatures_for(model)
    expected = [reference.generate(double, prompt, N, noise, 4, **switches) for prompt in prompts]
    for budget in budgets:
        found = answers_of(model, prompts, budget, 4, ensemble_for(model, history, perturbed))
        for tokens, (expected_tokens, gap) in zip(found, expected, strict=True):
            # Below this gap between the best two probabilities, float32 may choose otherwise.
            assert tokens == expected_tokens or gap < 1e-5


PROMPT, FORCED = [3, 1, 4, 1, 5], [9, 2, 6]


@pytest.mark.parametrize(
    "name, history",
    [*(("olmoe", history) for history in HISTORIES), ("qwen3_next, recurrent", HISTORIES[0])],
)
def test_repeats_of_a_prompt_have_noise_of_their_own(name, history):
    """The distributions after the same tokens are the slow reference's of each repeat, in one batch."""
    (model, double, _), found = models(name), {0: [], 1: []}

    def forced(scores_AV, answers):
        for row_V, answer in zip(scores_AV.softmax(-1), answers, strict=True):
            found[answer.sample_index].append(row_V)
        return [FORCED[len(answer.generated)] for answer in answers]

    answers = [GenerationState(repeat, PROMPT, document_key(PROMPT), repeat) for repeat in found]
    decoding = Decoding(forced, lambda generated: False, 3)
    engine_of(model, ensemble_for(model, history)).generate(answers, decoding, lambda answer: None)
    temperatures = temperatures_for(model)
    switches = dict(seed=SEED, cache=history[0], prefill=history[1])
    for repeat, rows in found.items():
        for step, row_V in enumerate(rows):
            given = (double, PROMPT, [*PROMPT, *FORCED[:step]], N, temperatures)
            expected_V = reference.next_token_probs(*given, repeat=repeat, **switches)
            torch.testing.assert_close(row_V.double(), expected_V, atol=1e-6, rtol=1e-4)
    assert not any(torch.allclose(*rows, atol=1e-5) for rows in zip(*found.values(), strict=True))


@pytest.mark.parametrize("history", first_fast(HISTORIES, 2), ids="-".join)
def test_batch_and_order_change_nothing(olmoe, history):
    questions = questions_for(random.Random(6), 5)
    expected, _ = scores_of(olmoe, questions, Budget(10_000), ensemble_for(olmoe, history))
    backwards, _ = scores_of(olmoe, questions[::-1], Budget(150), ensemble_for(olmoe, history))
    assert_scores([backwards[4 - i] for i in range(5)], [expected[i] for i in range(5)])
    prompts = prompts_for(random.Random(6), 5)
    how = ensemble_for(olmoe, history), {"do_sample": True, "temperature": 1.2}
    together = answers_of(olmoe, prompts, Budget(4000), 5, *how, repeats=2)
    alone = answers_of(olmoe, prompts[::-1], Budget(4000, 1), 5, *how, repeats=2)
    assert together == [tokens for i in range(5) for tokens in alone[2 * (4 - i) : 2 * (4 - i) + 2]]


@pytest.mark.parametrize(
    ("n", "temperatures", "history"),
    [*((N, [0.0] * 4, history) for history in HISTORIES), (1, [0.5] * 4, HISTORIES[1])],
)
def test_without_noise_it_is_the_plain_model(olmoe, history, n, temperatures):
    questions, prompts = questions_for(random.Random(5), 4), prompts_for(random.Random(5), 4)
    ensemble = ensemble_for(olmoe, history, temperatures=temperatures, n=n)
    expected, _ = scores_of(olmoe, questions, Budget(4000))
    assert_scores(scores_of(olmoe, questions, Budget(4000), ensemble)[0], expected)
    plain = answers_of(olmoe, prompts, Budget(4000), 5)
    assert answers_of(olmoe, prompts, Budget(4000), 5, ensemble) == plain


@pytest.mark.parametrize(
    ("family", "history"),
    [*(("olmoe", history) for history in HISTORIES[:2])]
    + [pytest.param("olmoe", history, marks=pytest.mark.slow) for history in HISTORIES[2:]]
    + [
        pytest.param("qwen2_moe", HISTORIES[1], marks=pytest.mark.slow)
    ],  # its second layer is dense
)
def test_sharing_the_first_layers_changes_nothing(family, history):
    moe_model = make_model(family)
    questions, prompts = questions_for(random.Random(9), 4), prompts_for(random.Random(9), 4)
    layers = len(find_routers(moe_model))
    temperatures = [0.0, 0.0] + [0.6] * (layers - 2)
    found = []
    for first_noisy in (0, 1, 2):
        ensemble = ensemble_for(
            moe_model, history, temperatures=temperatures, first_noisy=first_noisy
        )
        scores, forward = scores_of(moe_model, questions, Budget(4000), ensemble)
        found.append((scores, answers_of(moe_model, prompts, Budget(4000), 5, ensemble)))
    for scores, tokens in found[1:]:
        assert_scores(scores, found[0][0])
        assert tokens == found[0][1]


@pytest.mark.parametrize("history", first_fast(HISTORIES[1:], 2), ids="-".join)
def test_reuse_changes_nothing_where_samples_have_their_own_history(olmoe, tokenizer, history):
    options = {"max_gen_toks": 5, "until": []}
    requests = {
        "loglikelihood": [("some context", " more")],
        "generate_until": [(prompt, options) for prompt in ("abc", "a", "some longer prompt")],
    }
    for kind, asked in requests.items():
        found = []
        for reuse in (False, True, True):
            lm = EngineLM(olmoe, tokenizer, ensemble=ensemble_for(olmoe, history), reuse=reuse)
            found += [answered(lm, kind, asked) for _ in range(2)]
        assert found == [found[0]] * 6


@pytest.mark.parametrize("history", HISTORIES[:2])
def test_padding_makes_no_noisy_decisions(olmoe, history):
    """Broken by noise for padding: the share of changed decisions would depend on the batch."""
    questions = questions_for(random.Random(4), 5)

    def decided(budget):
        ensemble = ensemble_for(olmoe, history)
        scores_of(olmoe, questions, budget, ensemble)
        return ensemble.routing.counts()

    assert decided(Budget(4000)) == decided(Budget(4000, 1))


# Windows and chunks


@pytest.mark.parametrize("family", by_family(KV_CACHE))
def test_each_layer_has_the_mask_that_the_model_gives_it(family):
    """Broken by a family whose configuration names windows that its layers do not have, or the other way round."""
    model = kv_cache_model(family)
    given_masks = {}

    def keep_mask(number, layer, args, kwargs):
        given_masks[number] = kwargs["attention_mask"]

    for number, layer in enumerate(decoder_layers(model)):
        layer.register_forward_pre_hook(partial(keep_mask, number), with_kwargs=True)
    length = 3 * WINDOW
    ids = torch.zeros(2, length, dtype=torch.long)
    padding = torch.ones(2, length, dtype=torch.long)
    padding[0, :3] = 0  # sdpa makes no mask where it can do without
    with torch.no_grad():
        model(ids, attention_mask=padding)

    causal = torch.ones(length, length, dtype=torch.bool).tril()
    for number, window in enumerate(attention_windows(model)):
        mask = given_masks[number][1, 0]
        if mask.dtype != torch.bool:
            mask = mask == 0
        assert mask.equal(window.limit(causal[None])[0]), number
    for layer in decoder_layers(model):
        layer._forward_pre_hooks.clear()


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (AttentionWindow(window=2), [0, 0, 0, 0, 0, 1, 1]),
        (AttentionWindow(chunk=3), [0, 0, 0, 0, 0, 1, 1]),
        (AttentionWindow(chunk=2), [0, 0, 0, 0, 0, 0, 1]),
        (AttentionWindow(window=9), [1, 0, 1, 1, 0, 1, 1]),
        (FULL, [1, 0, 1, 1, 0, 1, 1]),
    ],
)
def test_attention_windows(window, expected):
    # positions 0, -, 1, 2, -, 3, 4
    visible = torch.tensor([[[1, 0, 1, 1, 0, 1, 1]]], dtype=torch.bool)
    assert window.limit(visible).int().tolist() == [[expected]]
