"""cache=clean, standard and none, with clean and noisy prompts: each equals its slow reference.

Broken by: noise keyed by anything but the sample and the position, a sample that reads another's
keys, values or state, a prompt read with (or without) noise where it should not be, or scoring
that differs from decoding.
"""

import random
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.layers import runs_on_kv_cache
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
    never,
    prompts_for,
    questions_for,
    scores_of,
    temperatures_for,
)
from tests.support.families import ON_KV_CACHE, WINDOW
from tests.support.models import kv_cache_model, make_model, small_model
from tests.support.tiers import first_fast

History = tuple[str, str]
"""(cache, prefill)"""

RECURRENT = ("qwen3_next", "minimax", "granitemoehybrid", "jamba", "llama4_text")
"""Llama 4 scales its queries by their positions, or not (`KV_CACHE_VARIANTS`)."""
EVERY_HISTORY = ("olmoe", "gpt_oss", "llama4_text", "qwen3_next, recurrent")
"""Full attention, windows, chunks, a recurrent state. The other models have other layers:
one history of samples that share keys and values, one of samples that have their own."""
FAST = {
    "olmoe": HISTORIES[:3],
    "gpt_oss": HISTORIES[:1],
    "qwen3_next, recurrent": HISTORIES[:1],
}
"""The histories of the fast tier, by model."""
BUDGETS = [Budget(4000), Budget(4000, 1), Budget(45), Budget(9)]


# Against the slow reference


class Model(NamedTuple):
    model: Any
    exact: Any
    """The same in float64, which keeps its passes."""
    budgets: list[Budget]
    """Those that matter to it."""
    on_kv_cache: bool


@cache
def model_of(name: str) -> Model:
    family, _, recurrent = name.partition(", ")
    if recurrent:
        model = small_model(family)
        assert not runs_on_kv_cache(model)
        return Model(model, reference.in_float64(model), BUDGETS[:1], False)
    model = kv_cache_model(family)
    assert runs_on_kv_cache(model)
    return Model(model, reference.in_float64(model), BUDGETS, True)


def switches_of(history: History, perturbed: bool = False) -> dict[str, Any]:
    """The arguments of the reference for an ensemble of `ensemble_for`."""
    cache_kind, prefill = history
    return {"seed": SEED, "cache": cache_kind, "prefill": prefill, "perturbed": perturbed}


def case(name: str, history: History, perturbed: bool = False) -> Any:
    marks = [pytest.mark.slow]
    if history in FAST.get(name, []):
        marks = []
    case_id = f"{name}-{'-'.join(history)}"
    if perturbed:
        case_id += "-perturbed"
    return pytest.param(name, history, perturbed, marks=marks, id=case_id)


def cases() -> list[Any]:
    names = [*ON_KV_CACHE]
    for family in RECURRENT:
        names.append(f"{family}, recurrent")
    all_cases = []
    for name in names:
        histories = HISTORIES if name in EVERY_HISTORY else HISTORIES[:2]
        for history in histories:
            all_cases.append(case(name, history))
    # the weights of the chosen experts do not depend on where keys and values come from
    all_cases.append(case("olmoe", HISTORIES[0], perturbed=True))
    all_cases.append(case("mixtral", HISTORIES[1], perturbed=True))
    return all_cases


CASES = pytest.mark.parametrize(("name", "history", "perturbed"), cases())


@CASES
def test_scores_equal_the_slow_reference(name, history, perturbed):
    """In whole passes and in two phases.

    Contexts are shorter and longer than windows and chunks.
    """
    model, exact, budgets, on_kv_cache = model_of(name)
    questions = questions_for(random.Random(1), 2, choices=1, longest=6)
    lengths = [len(question.context) for question in questions]
    assert min(lengths) < WINDOW
    assert 3 * WINDOW < max(lengths)
    temperatures = temperatures_for(model)
    switches = switches_of(history, perturbed)
    expected = []
    for question in questions:
        scores = []
        for continuation in question.continuations:
            scores.append(
                reference.score(exact, question.context, continuation, N, temperatures, **switches)
            )
        expected.append(scores)

    # a recurrent state carries the rounding of every token before: as for a sum over more tokens
    tokens = 1 if on_kv_cache else 6
    for budget in budgets:
        ensemble = ensemble_for(model, history, perturbed)
        scores, _ = scores_of(model, questions, budget, ensemble)
        assert_scores(scores, expected, tokens)
        assert ensemble.routing.counts()["changed_decisions"] > 0
        if on_kv_cache and history[0] == "clean":
            scores, _ = scores_of(model, questions, budget, ensemble, two_phase=True)
            assert_scores(scores, expected)


@CASES
def test_tokens_equal_the_slow_reference(name, history, perturbed):
    model, exact, budgets, _ = model_of(name)
    prompts = [[7], *prompts_for(random.Random(5), 2)]
    temperatures = temperatures_for(model)
    switches = switches_of(history, perturbed)
    expected = []
    for prompt in prompts:
        expected.append(reference.generate(exact, prompt, N, temperatures, 4, **switches))

    for budget in budgets:
        ensemble = ensemble_for(model, history, perturbed)
        answers = answers_of(model, prompts, budget, 4, ensemble)
        for tokens, (expected_tokens, gap) in zip(answers, expected, strict=True):
            # below this gap between the best two probabilities, float32 may choose otherwise
            if gap >= 1e-5:
                assert tokens == expected_tokens


PROMPT = [3, 1, 4, 1, 5]
NEW_TOKENS = [9, 2, 6]


def probs_of_repeats(model: Any, ensemble: Ensemble) -> list[list[torch.Tensor]]:
    """The distributions of two repeats of PROMPT in one batch: [V] by repeat
    and by token of NEW_TOKENS."""
    probs: list[list[torch.Tensor]] = [[], []]

    def choose(scores_AV: torch.Tensor, states: list[GenerationState]) -> list[int]:
        tokens = []
        for probs_V, state in zip(scores_AV.softmax(-1), states, strict=True):
            probs[state.sample_index].append(probs_V)
            tokens.append(NEW_TOKENS[len(state.generated)])
        return tokens

    key = document_key(PROMPT)
    states = [GenerationState(0, PROMPT, key, 0), GenerationState(1, PROMPT, key, 1)]
    decoding = Decoding(choose, never, len(NEW_TOKENS))
    engine_of(model, ensemble).generate(states, decoding, lambda state: None)
    return probs


@pytest.mark.parametrize(
    ("name", "history"),
    [*[("olmoe", history) for history in HISTORIES], ("qwen3_next, recurrent", HISTORIES[0])],
)
def test_repeats_of_a_prompt_have_noise_of_their_own(name, history):
    """The distributions after the same tokens are those of the slow reference for each repeat.

    Both repeats are in one batch.
    """
    model, exact, _, _ = model_of(name)

    probs = probs_of_repeats(model, ensemble_for(model, history))

    temperatures = temperatures_for(model)
    switches = switches_of(history)
    for repeat in (0, 1):
        for step, probs_V in enumerate(probs[repeat]):
            ids = [*PROMPT, *NEW_TOKENS[:step]]
            expected_V = reference.next_token_probs(
                exact, PROMPT, ids, N, temperatures, repeat=repeat, **switches
            )
            torch.testing.assert_close(probs_V.double(), expected_V, atol=1e-6, rtol=1e-4)
    for first_V, second_V in zip(*probs, strict=True):
        assert not torch.allclose(first_V, second_V, atol=1e-5)


# What changes nothing


@pytest.mark.parametrize("history", first_fast(HISTORIES, 2), ids="-".join)
def test_batch_and_order_do_not_change_scores(olmoe, history):
    questions = questions_for(random.Random(6), 5)
    ensemble = ensemble_for(olmoe, history)
    scores, _ = scores_of(olmoe, questions, Budget(10_000), ensemble)
    ensemble = ensemble_for(olmoe, history)
    of_reversed, _ = scores_of(olmoe, questions[::-1], Budget(150), ensemble)
    expected = [scores[number] for number in range(5)]
    assert_scores([of_reversed[4 - number] for number in range(5)], expected)


@pytest.mark.parametrize("history", first_fast(HISTORIES, 2), ids="-".join)
def test_batch_and_order_do_not_change_drawn_tokens(olmoe, history):
    prompts = prompts_for(random.Random(6), 5)
    ensemble = ensemble_for(olmoe, history)
    options = {"do_sample": True, "temperature": 1.2}
    together = answers_of(olmoe, prompts, Budget(4000), 5, ensemble, options, repeats=2)
    one_by_one = answers_of(olmoe, prompts[::-1], Budget(4000, 1), 5, ensemble, options, repeats=2)
    for number in range(5):
        place_in_reversed = 4 - number
        repeats = together[2 * number : 2 * number + 2]
        assert repeats == one_by_one[2 * place_in_reversed : 2 * place_in_reversed + 2]


@pytest.mark.parametrize(
    ("n", "temperatures", "history"),
    [*[(N, [0.0] * 4, history) for history in HISTORIES], (1, [0.5] * 4, HISTORIES[1])],
)
def test_without_noise_it_is_the_base_model(olmoe, history, n, temperatures):
    questions = questions_for(random.Random(5), 4)
    prompts = prompts_for(random.Random(5), 4)
    ensemble = ensemble_for(olmoe, history, temperatures=temperatures, n=n)

    scores, _ = scores_of(olmoe, questions, Budget(4000), ensemble)
    answers = answers_of(olmoe, prompts, Budget(4000), 5, ensemble)

    base_scores, _ = scores_of(olmoe, questions, Budget(4000))
    assert_scores(scores, base_scores)
    assert answers == answers_of(olmoe, prompts, Budget(4000), 5)


@pytest.mark.parametrize(
    ("family", "history"),
    [
        ("olmoe", HISTORIES[0]),
        ("olmoe", HISTORIES[1]),
        *[pytest.param("olmoe", history, marks=pytest.mark.slow) for history in HISTORIES[2:]],
        # its second layer is dense
        pytest.param("qwen2_moe", HISTORIES[1], marks=pytest.mark.slow),
    ],
)
def test_sharing_the_first_layers_changes_nothing(family, history):
    model = make_model(family)
    questions = questions_for(random.Random(9), 4)
    prompts = prompts_for(random.Random(9), 4)
    temperatures = [0.0, 0.0] + [0.6] * (len(find_routers(model)) - 2)
    scores_by_first = []
    answers_by_first = []
    for first_noisy in (0, 1, 2):
        ensemble = ensemble_for(model, history, temperatures=temperatures, first_noisy=first_noisy)
        scores, _ = scores_of(model, questions, Budget(4000), ensemble)
        scores_by_first.append(scores)
        answers_by_first.append(answers_of(model, prompts, Budget(4000), 5, ensemble))

    for first_noisy in (1, 2):
        assert_scores(scores_by_first[first_noisy], scores_by_first[0])
        assert answers_by_first[first_noisy] == answers_by_first[0]


OPTIONS = {"max_gen_toks": 5, "until": []}


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("loglikelihood", [("some context", " more")]),
        (
            "generate_until",
            [("abc", OPTIONS), ("a", OPTIONS), ("some longer prompt", OPTIONS)],
        ),
    ],
)
@pytest.mark.parametrize("history", first_fast(HISTORIES[1:], 2), ids="-".join)
def test_reuse_changes_nothing_where_samples_have_their_own_history(
    olmoe, tokenizer, history, kind, requests
):
    lm = EngineLM(olmoe, tokenizer, ensemble=ensemble_for(olmoe, history), reuse=False)
    expected = answered(lm, kind, requests)
    assert answered(lm, kind, requests) == expected
    for _ in range(2):
        lm = EngineLM(olmoe, tokenizer, ensemble=ensemble_for(olmoe, history), reuse=True)
        assert answered(lm, kind, requests) == expected
        assert answered(lm, kind, requests) == expected, "from what is kept"


@pytest.mark.parametrize("history", HISTORIES[:2])
def test_padding_makes_no_noisy_decisions(olmoe, history):
    """Broken by noise for padding: the share of changed decisions would depend on the batch."""
    questions = questions_for(random.Random(4), 5)
    in_one_batch = ensemble_for(olmoe, history)
    one_by_one = ensemble_for(olmoe, history)
    scores_of(olmoe, questions, Budget(4000), in_one_batch)
    scores_of(olmoe, questions, Budget(4000, 1), one_by_one)
    assert in_one_batch.routing.counts() == one_by_one.routing.counts()
