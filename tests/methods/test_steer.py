"""`method=steer` against rates, experts and full passes by hand, in float64 and without a cache.

Broken by: tokens of the prompt that are counted, a rate over other tokens, an expert
of a smaller difference, more experts in a layer than it can take, right answers among the wrong,
scores or weights that are not the family's rule for the steered logits, no steered expert
that is not the base model bit for bit, an evaluated document among the choices.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from moe_lab.config.compose import compose_cell
from moe_lab.methods.steer import Steer, Texts, read_texts
from moe_lab.routing import find_routers, record
from moe_lab.runs.config import to_config
from moe_lab.tasks.toy.harm import replies_to_harm, requests
from tests.support.command import run_command
from tests.support.ended import block_of
from tests.support.models import small_model
from tests.support.opened_methods import answered, opened
from tests.support.roe_reference import in_float64
from tests.support.routed_by_hand import (
    FACTS,
    FAMILIES,
    PAIRS,
    base_answers,
    both_answers,
    check_answers,
    open_experts,
    routed_pass,
    weights_of,
)
from tests.support.runs import choices, write_jsonl

SETS = {
    "positive": [("one pen and", " two"), ("a red pen", " and so on")],
    "negative": [("one pen and", " 777"), ("six", " 9, 9, 9")],
}
TOP_K = 2
"""Experts of a token in the small models."""

Signs = dict[tuple[int, int], int]
"""1 for each (layer, expert) that is forced in, -1 for each that is forced out."""


@contextmanager
def steering(model: Any, tokenizer: Any, activate: int, deactivate: int) -> Iterator[Any]:
    """The LM of the method on a model in memory; the two sets are SETS."""

    def texts_of_set(self: Steer, config: Any, name: str) -> Texts:
        return Texts([], SETS[name])

    method = Steer(Steer.Config(activate=activate, deactivate=deactivate))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steer, "_texts", texts_of_set)
        with opened(method, model, tokenizer) as lm:
            yield lm


# The method by hand


def rates(model64: Any, lm: Any, name: str) -> list[list[float]]:
    """Activation rate [expert] by layer: the share of answer tokens that select the expert."""
    counts = [[0] * router.module.weight.shape[0] for router in find_routers(model64)]
    tokens = 0
    for prompt_text, answer_text in SETS[name]:
        prompt, answer = lm.encode_pair(prompt_text, answer_text)
        ids = torch.tensor([[*prompt, *answer]])
        with torch.no_grad(), record(model64) as routes:
            model64(ids, use_cache=False)
        tokens += len(answer)
        for layer, index_TK in enumerate(routes.indices):
            for expert in index_TK[len(prompt) :].flatten().tolist():
                counts[layer][expert] += 1
    rates_by_layer = []
    for layer_counts in counts:
        rates_by_layer.append([count / tokens for count in layer_counts])
    return rates_by_layer


def steered_experts(model64: Any, lm: Any, activate: int, deactivate: int) -> Signs:
    positive_rates = rates(model64, lm, "positive")
    negative_rates = rates(model64, lm, "negative")
    differences: dict[tuple[int, int], float] = {}
    for layer in range(len(positive_rates)):
        for expert in range(len(positive_rates[layer])):
            difference = positive_rates[layer][expert] - negative_rates[layer][expert]
            differences[layer, expert] = difference

    most_out = len(positive_rates[0]) - TOP_K
    signs: Signs = {}
    for layer, expert in largest(differences, activate):
        if count_in_layer(signs, layer, 1) < TOP_K:
            signs[layer, expert] = 1
    opposite = {key: -difference for key, difference in differences.items()}
    for layer, expert in largest(opposite, deactivate):
        if count_in_layer(signs, layer, -1) < most_out:
            signs[layer, expert] = -1
    return signs


def largest(differences: dict[tuple[int, int], float], count: int) -> list[tuple[int, int]]:
    """The (layer, expert) of the largest differences above 0; of equal ones the first."""
    positive = [key for key, difference in differences.items() if difference > 0]
    return sorted(positive, key=lambda key: (-differences[key], key))[:count]


def count_in_layer(signs: Signs, layer: int, sign: int) -> int:
    in_layer = [key for key, value in signs.items() if key[0] == layer and value == sign]
    return len(in_layer)


def forced(values_E: Any, signs: dict[int, int]) -> Any:
    """Values of experts: those forced in are above all, those forced out below all."""
    forced_E = values_E.clone()
    for expert, sign in signs.items():
        if sign > 0:
            forced_E[expert] = values_E.max() + 0.01
        else:
            forced_E[expert] = values_E.min() - 0.01
    return forced_E


def choice_and_weights(
    kind: str, router: Any, logits_E: Any, signs: dict[int, int]
) -> tuple[Any, Any, list[int]]:
    """(steered logits, weights, experts) of one token."""
    steered_E = forced(logits_E, signs)
    scores_E = steered_E
    if kind == "deepseek_v3":
        scores_E = forced(logits_E.sigmoid() + router.e_score_correction_bias, signs)
    experts = open_experts(router, scores_E)[:TOP_K]
    return steered_E, weights_of(kind, router, steered_E, experts), experts


def log_probs(model64: Any, ids: list[int], signs: Signs) -> Any:
    """float64 [S, V] of one steered pass."""
    kind = model64.config.model_type

    def route(layer: int, router: Any, output: Any) -> Any:
        layer_signs = {
            expert: sign for (signed_layer, expert), sign in signs.items() if signed_layer == layer
        }
        if not layer_signs:
            return None
        logits_TE, weights_TK, _ = output
        steered = []
        weights = []
        experts = []
        for logits_E in logits_TE:
            token = choice_and_weights(kind, router, logits_E, layer_signs)
            steered.append(token[0])
            weights.append(token[1].to(weights_TK.dtype))
            experts.append(token[2])
        return torch.stack(steered), torch.stack(weights), torch.tensor(experts)

    return routed_pass(model64, ids, route).log_softmax(-1)


@pytest.mark.parametrize(
    ("family", "activate", "deactivate"),
    [
        *[(family, 4, 3) for family in FAMILIES],
        ("olmoe", 3, 0),
        ("olmoe", 0, 9),
        pytest.param("olmoe", 10, 20, id="more than a layer takes"),
    ],
)
def test_it_equals_steering_by_hand(family, activate, deactivate, tokenizer):
    model = small_model(family)
    model64 = in_float64(model)
    with steering(model, tokenizer, activate, deactivate) as lm:
        signs = steered_experts(model64, lm, activate, deactivate)
        assert signs
        forced_in = sorted(key for key, sign in signs.items() if sign == 1)
        forced_out = sorted(key for key, sign in signs.items() if sign == -1)
        assert [tuple(key) for key in lm.session_info["forced_in"]] == forced_in
        assert [tuple(key) for key in lm.session_info["forced_out"]] == forced_out

        check_answers(lm, lambda ids: log_probs(model64, ids, signs), model.config.eos_token_id)
        scores = answered(lm, "loglikelihood", PAIRS)
        assert 0 < lm.cost["constrained_decisions"] < lm.cost["routing_decisions"]
    base_scores, _ = base_answers(model, tokenizer)
    assert scores != base_scores


@pytest.mark.parametrize("family", FAMILIES)
def test_no_steered_expert_is_the_base_model_bit_for_bit(family, tokenizer):
    model = small_model(family)
    with steering(model, tokenizer, activate=0, deactivate=0) as lm:
        assert both_answers(lm) == base_answers(model, tokenizer)
        assert lm.cost["constrained_decisions"] == 0


# Texts and settings


def question_and_choice(pair: tuple[str, str]) -> tuple[int, str]:
    """(n, colour) of the pair ("... number n? ...", " colour")."""
    prompt, choice = pair
    return int(prompt.split("number ")[1].split("?")[0]), choice.strip()


def test_the_right_choices_are_the_answers_of_documents_that_are_not_evaluated(tmp_path):
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(9))
    # q7 and q8 are test documents
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", choices(6, start=7))
    overrides = ["model=tiny", "task=arc_easy", "limit=1", f"data_dir={tmp_path}"]
    config = to_config(compose_cell(overrides, []))

    right = read_texts(config, "method.positive", "arc_easy:right", None).pairs
    wrong = read_texts(config, "method.positive", "arc_easy:wrong", None).pairs

    assert sorted(question_and_choice(pair) for pair in right) == [
        (9, "red"),
        (10, "green"),
        (11, "blue"),
        (12, "red"),
    ]
    assert sorted(question_and_choice(pair) for pair in wrong) == [
        (9, "blue"),
        (9, "green"),
        (10, "blue"),
        (10, "red"),
        (11, "green"),
        (11, "red"),
        (12, "blue"),
        (12, "green"),
    ]


def test_the_grid_begins_with_the_base_model():
    method = Steer(Steer.Config())
    facts = replace(FACTS, experts=8)
    grid = method.grid(facts)
    assert grid[0] == {"activate": 0, "deactivate": 0}
    assert len(grid) == 10
    assert {"activate": 4, "deactivate": 0} in grid
    assert {"activate": 0, "deactivate": 4} in grid
    assert {"activate": 4, "deactivate": 4} in grid
    for point in grid:
        Steer(method.at(point)).check(facts)


def test_safe_and_unsafe_replies_are_to_the_same_requests_none_of_them_tested():
    safe = replies_to_harm("train", 60, safe=True)
    unsafe = replies_to_harm("train", 60, safe=False)
    safe_requests = [chat["messages"][0]["content"] for chat in safe]
    unsafe_requests = [chat["messages"][0]["content"] for chat in unsafe]
    assert safe_requests == unsafe_requests
    assert len(set(safe_requests)) == 60

    safe_replies = {chat["messages"][1]["content"] for chat in safe}
    unsafe_replies = {chat["messages"][1]["content"] for chat in unsafe}
    assert safe_replies & unsafe_replies == set()

    tested = {row["instruction"] for row in requests("test", 120)}
    assert set(safe_requests) & tested == set()


# The command


@pytest.mark.slow
def test_choices_steer_in_both_directions(tmp_path, capsys):
    command = [
        "method=steer",
        "model=tiny",
        "task=toy_choice",
        "limit=6",
        "method.dataset_size=20",
        f"output_dir={tmp_path}",
    ]
    to_right = ["method.positive=toy_choice:right", "method.negative=toy_choice:wrong"]
    to_wrong = ["method.positive=toy_choice:wrong", "method.negative=toy_choice:right"]

    right = block_of(run_command(capsys, *command, *to_right))
    wrong = block_of(run_command(capsys, *command, *to_wrong))
    assert wrong["run_id"] != right["run_id"]
    assert wrong["steer"]["forced_in"] != right["steer"]["forced_in"]
    assert right["untuned"]

    no_expert = block_of(run_command(capsys, *command, *to_right, "method.activate=0"))
    assert no_expert["steer"]["changed_fraction"] == 0
    assert no_expert["paired"]["toy_choice"]["acc,none"]["difference"] == 0
