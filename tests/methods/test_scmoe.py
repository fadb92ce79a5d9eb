"""`method=scmoe` against two full forward passes for every token, in float64 and without a cache.

Broken by: a weak sample with other experts or weights, at other tokens or in other layers, that reads another history;
a contrast of other logits; a token that is decoded though it is not plausible; -inf for a token that is scored; a
strength of 0 that is not the base model bit for bit; a prompt that is read twice; impossible values that are not refused
before weights load.
"""

import csv
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import yaml

from moe_lab.engine.lm import EngineLM
from moe_lab.methods import get_method
from moe_lab.methods.scmoe import SelfContrast
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
    routed_pass,
    weights_of,
)
from tests.support.tiers import by_family

SEED, BETA, ALPHA = 5, 0.6, 0.15


def scmoe(**keys: Any) -> SelfContrast:
    return SelfContrast(SelfContrast.Config(**{"beta": BETA, "alpha": ALPHA, **keys}))


# The two passes, by hand ---------------------------------------------------------------------------------------------


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
            weights_TK[token, 0] = weights_of(model64.config.model_type, router, logits_TE[token], [weak])[0]
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


def slow_score(model64: Any, context: list[int], answer: list[int], *how: Any) -> tuple[float, bool]:
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
        *(pytest.param("qwen3_next", 2, cache, marks=pytest.mark.slow) for cache in ("clean", "standard")),
    ],
)
def test_it_equals_two_full_passes(family, rank, cache, tokenizer):
    """With cache=standard, a weak sample's own history is read weakly from the first token on."""
    model = small_model(family)
    double, how = in_float64(model), (rank, cache)
    with opened(scmoe(rank=rank, cache=cache), model, tokenizer, SEED) as lm:
        pairs = [lm.encode_pair(*pair) for pair in PAIRS]
        expected = [slow_score(double, list(context), list(answer), *how) for context, answer in pairs]
        found = answered(lm, "loglikelihood", PAIRS)
        assert [value for value, _ in found] == rounding.approx([value for value, _ in expected], 12)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
        for text, (prompt, _) in zip(answered(lm, "generate_until", PROMPTS), PROMPTS, strict=True):
            assert text == lm.tok_decode(slow_text(double, lm.tok_encode(prompt), *how))


# What follows from it ------------------------------------------------------------------------------------------------


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
    assert texts == base_answers(model, tokenizer)[1], "alpha=1 leaves the strong sample's best token"
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
    assert [scmoe(**keys).forward_tokens(workload, None, FACTS) for keys in ({}, {"cache": "standard"}, {"beta": 0})] == [
        100 + 2 * 10 - 1, 2 * (100 + 9), 100 + 9,
    ]  # fmt: skip


def test_the_grid_is_the_papers_with_the_base_model_before_it():
    """Section 3.2: beta is 0.1, 0.3, 0.5, 0.7 or 0.9, and the weak expert any of the layer's."""
    betas = (0.1, 0.3, 0.5, 0.7, 0.9)
    first, *others = scmoe().grid(FACTS)
    assert first["beta"] == 0
    assert sorted((point["rank"], point["beta"]) for point in others) == [
        (rank, beta) for rank in range(1, 7) for beta in betas
    ]
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
