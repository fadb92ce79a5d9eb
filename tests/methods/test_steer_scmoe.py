"""`method=steer` against rates, experts and full passes by hand; `method=scmoe` against two full passes for every token.
Both in float64 and without a cache.

Broken by, in steer: tokens of the prompt that are counted, a rate over other tokens, an expert of a smaller difference,
more experts in a layer than it can take, right answers among the wrong, scores or weights that are not the family's rule
for the steered logits, no steered expert that is not the base model bit for bit, an evaluated document among the choices.
In scmoe: a weak sample with other experts or weights, at other tokens or in other layers, that reads another history; a
contrast of other logits; a token that is decoded though it is not plausible; -inf for a token that is scored; a strength
of 0 that is not the base model bit for bit; a prompt that is read twice.
"""

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import yaml

from moe_lab.config.compose import compose_cell
from moe_lab.engine.lm import EngineLM
from moe_lab.methods import get_method
from moe_lab.methods.scmoe import SelfContrast
from moe_lab.methods.steer import Steer, Texts, read_texts
from moe_lab.routing import find_routers, record
from moe_lab.runs.config import to_config
from moe_lab.tasks.toy.harm import replies_to_harm, requests
from tests.support import rounding
from tests.support.command import run_command
from tests.support.ended import block_of
from tests.support.models import small_model
from tests.support.opened_methods import answered, opened
from tests.support.requests import generating
from tests.support.roe_reference import in_float64
from tests.support.routed_by_hand import (
    FACTS,
    FAMILIES,
    PAIRS,
    PROMPTS,
    STEPS,
    base_answers,
    both_answers,
    check_answers,
    open_experts,
    routed_pass,
    weights_of,
)
from tests.support.runs import choices, write_jsonl
from tests.support.tiers import by_family

SETS = {
    "positive": [("one pen and", " two"), ("a red pen", " and so on")],
    "negative": [("one pen and", " 777"), ("six", " 9, 9, 9")],
}


@contextmanager
def steering(model: Any, tokenizer: Any, **keys: int) -> Iterator[Any]:
    """The LM of the method on a model in memory; the two sets are SETS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Steer, "_texts", lambda self, config, which: Texts([], SETS[which]))
        with opened(Steer(Steer.Config(**keys)), model, tokenizer) as lm:
            yield lm


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


def choice_and_weights(
    kind: str, router: Any, logits: Any, signs: dict[int, int]
) -> tuple[list, Any, Any]:
    """(experts, weights, steered logits) of one token."""

    def forced(values: Any) -> Any:
        new = values.clone()
        for expert, sign in signs.items():
            new[expert] = values.max() + 0.01 if sign > 0 else values.min() - 0.01
        return new

    moved = forced(logits)
    scores = (
        forced(logits.sigmoid() + router.e_score_correction_bias)
        if kind == "deepseek_v3"
        else moved
    )
    experts = open_experts(router, scores)[:2]
    return experts, weights_of(kind, router, moved, experts), moved


def log_probs(model64: Any, ids: list[int], found: dict[tuple[int, int], int]) -> Any:
    """float64 [S, V] of one steered pass."""

    def route(layer: int, router: Any, output: Any) -> Any:
        logits_TE, weights_TK, _ = output
        signs = {expert: sign for (number, expert), sign in found.items() if number == layer}
        if not signs:
            return None
        rows = [
            choice_and_weights(model64.config.model_type, router, logits, signs)
            for logits in logits_TE
        ]
        index = torch.tensor([experts for experts, _, _ in rows])
        weights = torch.stack([weights for _, weights, _ in rows]).to(weights_TK.dtype)
        return torch.stack([moved for _, _, moved in rows]), weights, index

    return routed_pass(model64, ids, route).log_softmax(-1)


CASES = [
    *((family, 4, 3) for family in FAMILIES),
    ("olmoe", 3, 0),
    ("olmoe", 0, 9),
    ("olmoe", 10, 20),
]
"""(family, activate, deactivate); a layer takes fewer experts than the last case asks for."""


@pytest.mark.parametrize(("family", "activate", "deactivate"), CASES)
def test_it_equals_steering_by_hand(family, activate, deactivate, tokenizer):
    model = small_model(family)
    double = in_float64(model)
    with steering(model, tokenizer, activate=activate, deactivate=deactivate) as lm:
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
def test_no_steered_expert_is_the_base_model_bit_for_bit(family, tokenizer):
    model = small_model(family)
    with steering(model, tokenizer, activate=0, deactivate=0) as lm:
        assert both_answers(lm) == base_answers(model, tokenizer)
        assert lm.cost["constrained_decisions"] == 0


def test_the_right_choices_are_the_answers_of_documents_that_are_not_evaluated(tmp_path):
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", choices(9))
    # q7 and q8 are test documents
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", choices(6, start=7))
    config = to_config(
        compose_cell(["model=tiny", "task=arc_easy", "limit=1", f"data_dir={tmp_path}"], [])
    )

    def pairs(kind: str) -> set[tuple[str, str]]:
        texts = read_texts(config, "method.positive", f"arc_easy:{kind}", None)
        assert len(set(texts.pairs)) == len(texts.pairs)
        return {
            (prompt.split("number ")[1].split("?")[0], choice.strip())
            for prompt, choice in texts.pairs
        }

    colours = ("red", "green", "blue")
    asked = {(str(number), colour) for number in range(9, 13) for colour in colours}
    right = {(str(number), colours[number % 3]) for number in range(9, 13)}
    assert pairs("right") == right and pairs("wrong") == asked - right


def test_the_grid_begins_with_the_base_model():
    steer = Steer(Steer.Config())
    facts = replace(FACTS, experts=8)
    grid = steer.grid(facts)
    assert grid[0] == {"activate": 0, "deactivate": 0}
    assert len(grid) == 10
    assert {(4, 0), (0, 4), (4, 4)} <= {(point["activate"], point["deactivate"]) for point in grid}
    for point in grid:
        Steer(steer.at(point)).check(facts)


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
    keys = [
        *TYPED,
        "task=toy_choice",
        "limit=6",
        "method.dataset_size=20",
        f"output_dir={tmp_path}",
    ]
    right, wrong = "toy_choice:right", "toy_choice:wrong"
    one = block_of(
        run_command(capsys, *keys, f"method.positive={right}", f"method.negative={wrong}")
    )
    other = block_of(
        run_command(capsys, *keys, f"method.positive={wrong}", f"method.negative={right}")
    )
    assert other["run_id"] != one["run_id"]
    assert other["steer"]["forced_in"] != one["steer"]["forced_in"] and one["untuned"]
    free = [f"method.positive={right}", f"method.negative={wrong}", "method.activate=0"]
    none = block_of(run_command(capsys, *keys, *free))
    assert none["steer"]["changed_fraction"] == 0
    assert none["paired"]["toy_choice"]["acc,none"]["difference"] == 0


SEED, BETA, ALPHA = 5, 0.6, 0.15


def scmoe(**keys: Any) -> SelfContrast:
    return SelfContrast(SelfContrast.Config(**{"beta": BETA, "alpha": ALPHA, **keys}))


def logits_after(model64: Any, ids: list[int], positions: Any, rank: int) -> Any:
    """float64 [V] of one pass in which the tokens at `positions` are routed weakly in all MoE layers."""

    def route(layer: int, router: Any, output: Any) -> Any:
        logits_TE, weights_TK, index_TK = output
        weights_TK, index_TK = weights_TK.clone(), index_TK.clone()
        for token in positions:
            scores = logits_TE[token]
            if hasattr(router, "num_group"):
                scores = scores.sigmoid() + router.e_score_correction_bias
            order = scores.argsort(descending=True).tolist()
            weak = order.pop(rank - 1)
            # the other experts have no weight
            index_TK[token] = torch.tensor([weak, *order[: index_TK.shape[-1] - 1]])
            weights_TK[token] = 0
            weights_TK[token, 0] = weights_of(
                model64.config.model_type, router, logits_TE[token], [weak]
            )[0]
        return logits_TE, weights_TK, index_TK

    return routed_pass(model64, ids, route)[-1]


def contrast_after(model64: Any, ids: list[int], rank: int, cache: str) -> Any:
    """(contrast float64 [V], plausible bool [V])"""
    last = len(ids) - 1
    strong = logits_after(model64, ids, (), rank)
    positions = range(last, last + 1) if cache == "clean" else range(len(ids))
    weaker = logits_after(model64, ids, positions, rank)
    probs = strong.softmax(-1)
    return (1 + BETA) * strong - BETA * weaker, probs >= ALPHA * probs.max()


def slow_score(
    model64: Any, context: list[int], answer: list[int], *how: Any
) -> tuple[float, bool]:
    total, greedy = 0.0, True
    for i, token in enumerate(answer):
        contrast, plausible = contrast_after(model64, [*context, *answer[:i]], *how)
        total += float(contrast.log_softmax(-1)[token])
        greedy &= int(contrast.masked_fill(~plausible, -math.inf).argmax()) == token
    return total, greedy


def slow_text(model64: Any, prompt: list[int], *how: Any) -> list[int]:
    ids = list(prompt)
    for _ in range(STEPS):
        contrast, plausible = contrast_after(model64, ids, *how)
        ids.append(int(contrast.masked_fill(~plausible, -math.inf).argmax()))
        if ids[-1] == model64.config.eos_token_id:
            break
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    ("family", "rank", "cache"),
    [
        *((family, 3, "clean") for family in FAMILIES),
        ("mixtral", 2, "standard"),
        # with recurrent layers
        *(
            pytest.param("qwen3_next", 2, cache, marks=pytest.mark.slow)
            for cache in ("clean", "standard")
        ),
    ],
)
def test_it_equals_two_full_passes(family, rank, cache, tokenizer):
    """With cache=standard, a weak sample's own history is read weakly from the first token on."""
    model = small_model(family)
    double, how = in_float64(model), (rank, cache)
    with opened(scmoe(rank=rank, cache=cache), model, tokenizer, SEED) as lm:
        pairs = [lm.encode_pair(*pair) for pair in PAIRS]
        expected = [
            slow_score(double, list(context), list(answer), *how) for context, answer in pairs
        ]
        found = answered(lm, "loglikelihood", PAIRS)
        assert [value for value, _ in found] == rounding.approx(
            [value for value, _ in expected], 12
        )
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        for text, (prompt, _) in zip(answered(lm, "generate_until", PROMPTS), PROMPTS, strict=True):
            assert text == lm.tok_decode(slow_text(double, lm.tok_encode(prompt), *how))


@pytest.mark.parametrize("family", by_family(["olmoe", "gpt_oss", "deepseek_v3"]))
def test_a_strength_of_0_is_the_base_model_bit_for_bit(family, tokenizer):
    model = small_model(family)
    with opened(scmoe(beta=0), model, tokenizer, SEED) as lm:
        assert both_answers(lm) == base_answers(model, tokenizer)
        rolling = answered(lm, "loglikelihood_rolling", [("three pens",)])
    base = EngineLM(model, tokenizer, progress=False)
    assert rolling == answered(base, "loglikelihood_rolling", [("three pens",)])


def test_it_reads_what_roe_with_two_samples_reads(tokenizer):
    model = small_model("deepseek_v3")  # its first layer is dense
    roe = get_method("roe")(get_method("roe").Config(n=2, skip_layers=0))
    counted = []
    for method in (scmoe(), roe):
        with opened(method, model, tokenizer, SEED) as lm:
            both_answers(lm)
            counted.append(lm.cost["tokens_in"])
            assert lm.engine.two_phase.noisy.fork == lm.engine.two_phase.clean.fork == 1
    assert counted[0] == counted[1]


def test_a_token_that_is_not_plausible_is_scored_and_not_decoded(tokenizer):
    model = small_model("olmoe")
    with opened(scmoe(alpha=1.0, beta=5.0), model, tokenizer, SEED) as lm:
        found, texts = both_answers(lm)
    assert all(math.isfinite(value) for value, _ in found)
    assert texts == base_answers(model, tokenizer)[1], (
        "alpha=1 leaves the strong sample's best token"
    )
    with opened(scmoe(alpha=0.0, beta=5.0), model, tokenizer, SEED) as lm:
        assert texts != answered(lm, "generate_until", PROMPTS)


def test_the_identity_has_what_matters():
    own = scmoe().identity(FACTS)
    assert (own["beta"], own["rank"], own["study"]) == (BETA, 2, None) and "profile" not in own
    assert scmoe(beta=0).identity(FACTS) == scmoe(beta=0, rank=5, cache="standard").identity(FACTS)


def test_the_report_and_the_cost():
    blocks = scmoe(rank=3).report(FACTS, {}, {})
    expected = {"beta": BETA, "alpha": ALPHA, "rank": 3, "cache": "clean"}
    assert blocks == {"untuned": True, "scmoe": expected}
    workload = generating(1, prompt=100, new=10)
    for keys, tokens in (
        ({}, 100 + 2 * 10 - 1),
        ({"cache": "standard"}, 2 * (100 + 9)),
        ({"beta": 0}, 100 + 9),
    ):
        assert scmoe(**keys).forward_tokens(workload, None, FACTS) == tokens


def test_the_grid_is_the_papers_with_the_base_model_before_it():
    """Section 3.2: beta is 0.1, 0.3, 0.5, 0.7 or 0.9, and the weak expert any of the layer's."""
    first, *others = scmoe().grid(FACTS)
    assert first["beta"] == 0
    expected = list(product(range(1, 7), (0.1, 0.3, 0.5, 0.7, 0.9)))
    assert sorted((point["rank"], point["beta"]) for point in others) == expected
    assert {point["rank"] for point in scmoe().grid(replace(FACTS, experts=60))} == set(range(1, 9))


@pytest.mark.slow
def test_a_study_finds_settings_that_another_run_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("moe_lab.methods.scmoe.BETAS", (0.1, 2.0))
    monkeypatch.setattr("moe_lab.methods.scmoe.RANKS", 2)
    command = ["method=scmoe", "model=tiny", "task=toy_text", "limit=4", f"output_dir={tmp_path}"]
    ended = run_command(capsys, *command, "tuning=grid", "tuning.num_samples=3")
    assert ended.code == 0, ended.err
    [best] = (tmp_path / "studies").glob("*/best.yaml")
    profile = yaml.safe_load(best.read_text())
    trials = list(csv.DictReader((best.parent / "trials.csv").open()))
    assert len(trials) == 5 and float(trials[0]["params_beta"]) == 0
    values = [float(trial["value"]) for trial in trials]
    assert profile["score"] == min(values) and profile["untuned_score"] == values[0]
    assert len(set(values)) == 5 and profile["calibrated_scale"] is not None
    found = trials[profile["trial"]]
    settings = {key: float(found[f"params_{key}"]) for key in ("beta", "rank")}
    assert profile["settings"] == settings | {"alpha": 0.1, "cache": "clean"}
    result = block_of(ended)
    assert result["scmoe"]["beta"] == settings["beta"] and " calibration " in ended.out
    again = block_of(run_command(capsys, *command, f"method.profile={best}", "baseline=false"))
    assert again["run_id"] == result["run_id"] and "untuned" not in again
