"""`method=steer` against rates, experts and full forward passes by hand, in float64.

Broken by: tokens of the prompt that are counted, a rate over other tokens, an expert of a smaller difference, more
experts in a layer than it can take, right answers among the wrong, scores or weights that are not the family's rule for
the steered logits, no steered expert that is not the base model bit for bit, an evaluated document among the choices,
impossible values that are not refused before weights load.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch

from moe_lab.config.compose import compose_cell
from moe_lab.methods.steer import Steer, Texts, read_texts, steered_experts
from moe_lab.routing import find_routers, record
from moe_lab.runs.config import to_config
from moe_lab.tasks.toy.questions import replies_to_harm, requests
from tests.support.command import run_command
from tests.support.ended import block_of
from tests.support.models import small_model
from tests.support.opened_methods import answered
from tests.support.opened_methods import opened as opened_method
from tests.support.roe_reference import in_float64
from tests.support.routed_by_hand import FACTS as SIX_EXPERTS
from tests.support.routed_by_hand import (
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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> Any:
    """Opens the method on a model in memory; the two sets are SETS."""

    monkeypatch.setattr(Steer, "_texts", lambda self, config, which: Texts([], SETS[which]))

    def opened(model: Any, **keys: int) -> Any:
        return opened_method(Steer(Steer.Config(**keys)), model, tokenizer)

    return opened


# By hand -------------------------------------------------------------------------------------------------------------


def rates(model64: Any, lm: Any, which: str) -> list[list[float]]:
    """The activation rate of each expert by layer: the share of the answers' tokens that select it."""
    experts = [router.module.weight.shape[0] for router in find_routers(model64)]
    counts, tokens = [[0] * count for count in experts], 0
    for pair in SETS[which]:
        prompt, answer = map(list, lm.encode_pair(*pair))
        with torch.no_grad(), record(model64) as routes:
            model64(torch.tensor([prompt + answer]), use_cache=False)
        tokens += len(answer)
        for layer, index_TK in enumerate(routes.indices):
            for expert in index_TK[len(prompt) :].flatten().tolist():
                counts[layer][expert] += 1
    return [[count / tokens for count in layer] for layer in counts]


def steered(model64: Any, lm: Any, activate: int, deactivate: int) -> dict[tuple[int, int], int]:
    """1 or -1 for each steered (layer, expert)."""
    positive, negative = rates(model64, lm, "positive"), rates(model64, lm, "negative")
    found: dict[tuple[int, int], int] = {}
    for sign, most in ((1, activate), (-1, deactivate)):
        order = sorted(
            (-sign * (p - n), layer, expert)
            for layer, (ps, ns) in enumerate(zip(positive, negative, strict=True))
            for expert, (p, n) in enumerate(zip(ps, ns, strict=True))
            if sign * (p - n) > 0
        )
        for _, layer, expert in order[:most]:
            there = sum(key[0] == layer and value == sign for key, value in found.items())
            if there < (2 if sign > 0 else len(positive[layer]) - 2):
                found[layer, expert] = sign
    return found


def choice_and_weights(kind: str, router: Any, logits: Any, signs: dict[int, int]) -> tuple[list, Any, Any]:
    """(experts, weights, steered logits) of one token."""

    def forced(values: Any) -> Any:
        new = values.clone()
        for expert, sign in signs.items():
            new[expert] = values.max() + 0.01 if sign > 0 else values.min() - 0.01
        return new

    moved = forced(logits)
    scores = forced(logits.sigmoid() + router.e_score_correction_bias) if kind == "deepseek_v3" else moved
    experts = open_experts(router, scores)[:2]
    return experts, weights_of(kind, router, moved, experts), moved


def log_probs(model64: Any, ids: list[int], found: dict[tuple[int, int], int]) -> Any:
    """float64 [S, V] of one steered pass."""

    def route(layer: int, router: Any, output: Any) -> Any:
        logits_TE, weights_TK, _ = output
        signs = {expert: sign for (number, expert), sign in found.items() if number == layer}
        if not signs:
            return None
        rows = [choice_and_weights(model64.config.model_type, router, logits, signs) for logits in logits_TE]
        index = torch.tensor([experts for experts, _, _ in rows])
        weights = torch.stack([weights for _, weights, _ in rows]).to(weights_TK.dtype)
        return torch.stack([moved for _, _, moved in rows]), weights, index

    return routed_pass(model64, ids, route).log_softmax(-1)


CASES = [*((family, 4, 3) for family in FAMILIES), ("olmoe", 3, 0), ("olmoe", 0, 9)]


@pytest.mark.parametrize(("family", "activate", "deactivate"), CASES)
def test_it_equals_steering_by_hand(family, activate, deactivate, opened, tokenizer):
    model = small_model(family)
    double = in_float64(model)
    with opened(model, activate=activate, deactivate=deactivate) as lm:
        found = steered(double, lm, activate, deactivate)
        signs = {which: [key for key, sign in found.items() if sign == which] for which in (1, -1)}
        assert sorted(signs[1]) == [tuple(key) for key in lm.session_info["forced_in"]]
        assert sorted(signs[-1]) == [tuple(key) for key in lm.session_info["forced_out"]] and found
        check_answers(lm, lambda ids: log_probs(double, ids, found), model.config.eos_token_id)
        scored = answered(lm, "loglikelihood", PAIRS)
        changed, decided = lm.cost["constrained_decisions"], lm.cost["routing_decisions"]
        assert 0 < changed < decided
    assert scored != base_answers(model, tokenizer)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_steered_expert_is_the_base_model_bit_for_bit(family, opened, tokenizer):
    model = small_model(family)
    expected = base_answers(model, tokenizer)
    with opened(model, activate=0, deactivate=0) as lm:
        assert both_answers(lm) == expected
        assert lm.cost["constrained_decisions"] == 0


def test_the_right_choices_are_the_answers_of_documents_that_are_not_evaluated(tmp_path):
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(9))
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", choices(6, start=7))  # q7 and q8 are test documents
    config = to_config(compose_cell(["model=tiny", "task=arc_easy", "limit=1", f"data_dir={tmp_path}"], []))

    def pairs(kind: str) -> set[tuple[str, str]]:
        texts = read_texts(config, "method.positive", f"arc_easy:{kind}", None)
        assert len(set(texts.pairs)) == len(texts.pairs)
        return {(prompt.split("number ")[1].split("?")[0], choice.strip()) for prompt, choice in texts.pairs}

    colours = ("red", "green", "blue")
    asked = {(str(number), colour) for number in range(9, 13) for colour in colours}
    right = {(str(number), colours[number % 3]) for number in range(9, 13)}
    assert pairs("right") == right and pairs("wrong") == asked - right


# What follows from it ------------------------------------------------------------------------------------------------

FACTS = replace(SIX_EXPERTS, experts=8)


def test_a_layer_takes_no_more_experts_than_it_can():
    difference = torch.tensor([[0.9, 0.8, 0.7, -0.1, 0.0], [0.5, -0.9, -0.8, -0.7, -0.6]])
    found = steered_experts(difference, [5, 5], 2, activate=3, deactivate=9)
    assert found.tolist() == [[1, 1, 0, -1, 0], [0, -1, -1, -1, 0]]  # the third is skipped, not replaced
    assert steered_experts(difference, [5, 5], 2, 0, 0).sum() == 0


def test_the_grid_begins_with_the_base_model():
    own = Steer(Steer.Config())
    grid = own.grid(FACTS)
    assert grid[0] == {"activate": 0, "deactivate": 0} and len(grid) == 10
    assert {(4, 0), (0, 4), (4, 4)} <= {(point["activate"], point["deactivate"]) for point in grid}
    for point in grid:
        Steer(own.at(point)).check(FACTS)


def test_safe_and_unsafe_replies_are_to_the_same_requests_none_of_them_tested():
    safe, unsafe = (replies_to_harm("train", 60, safe=kind) for kind in (True, False))
    asked = [row["messages"][0]["content"] for row in safe]
    assert asked == [row["messages"][0]["content"] for row in unsafe] and len(set(asked)) == 60
    replies = [{row["messages"][1]["content"] for row in rows} for rows in (safe, unsafe)]
    assert not replies[0] & replies[1]
    assert not set(asked) & {row["instruction"] for row in requests("test", 120)}


TYPED = ["method=steer", "model=tiny"]


@pytest.mark.slow
def test_choices_steer_in_both_directions(tmp_path, capsys):
    keys = [*TYPED, "task=toy_choice", "limit=6", "method.dataset_size=20", f"output_dir={tmp_path}"]
    right, wrong = "toy_choice:right", "toy_choice:wrong"
    one = block_of(run_command(capsys, *keys, f"method.positive={right}", f"method.negative={wrong}"))
    other = block_of(run_command(capsys, *keys, f"method.positive={wrong}", f"method.negative={right}"))
    assert other["run_id"] != one["run_id"]
    assert other["steer"]["forced_in"] != one["steer"]["forced_in"] and one["untuned"]
    free = [f"method.positive={right}", f"method.negative={wrong}", "method.activate=0"]
    none = block_of(run_command(capsys, *keys, *free))
    assert none["steer"]["changed_fraction"] == 0
    assert none["paired"]["toy_choice"]["acc,none"]["difference"] == 0
