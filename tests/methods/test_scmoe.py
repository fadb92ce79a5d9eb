"""`method=scmoe` against two full passes for every token, in float64 and without a cache.

Broken by: a weak sample with other experts or weights, at other tokens or in other layers,
that reads another history; a contrast of other logits; a token that is decoded though it is not
plausible; -inf for a token that is scored; a strength of 0 that is not the base model bit for bit;
a prompt that is read twice.
"""

import csv
import math
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from moe_lab.engine.lm import EngineLM
from moe_lab.methods import get_method
from moe_lab.methods.scmoe import SelfContrast
from tests.support.command import run_command
from tests.support.ended import block_of
from tests.support.ensembles import assert_log_likelihoods
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

SEED = 5
BETA = 0.6
ALPHA = 0.15


def scmoe(**keys: Any) -> SelfContrast:
    settings = {"beta": BETA, "alpha": ALPHA} | keys
    return SelfContrast(SelfContrast.Config(**settings))


# The method by hand


class SlowContrast(NamedTuple):
    """The method, by two full passes for each token."""

    model64: Any
    rank: int
    cache: str

    def logits_after(self, ids: list[int], weak_positions: range) -> Any:
        """float64 [V] of one pass. Tokens at `weak_positions` are routed weakly in all layers."""

        def route(layer: int, router: Any, output: Any) -> Any:
            logits_TE, weights_TK, index_TK = output
            weights_TK = weights_TK.clone()
            index_TK = index_TK.clone()
            for token in weak_positions:
                weak, other_experts = self.weak_and_others(router, logits_TE[token])
                [weight] = weights_of(
                    self.model64.config.model_type, router, logits_TE[token], [weak]
                )
                # the other experts have no weight
                index_TK[token] = torch.tensor([weak, *other_experts[: index_TK.shape[-1] - 1]])
                weights_TK[token] = 0
                weights_TK[token, 0] = weight
            return logits_TE, weights_TK, index_TK

        return routed_pass(self.model64, ids, route)[-1]

    def weak_and_others(self, router: Any, logits_E: Any) -> tuple[int, list[int]]:
        """The expert of the rank, and the other ones by falling scores."""
        scores_E = logits_E
        if hasattr(router, "num_group"):
            scores_E = logits_E.sigmoid() + router.e_score_correction_bias
        experts = scores_E.argsort(descending=True).tolist()
        weak = experts.pop(self.rank - 1)
        return weak, experts

    def contrast_after(self, ids: list[int]) -> tuple[Any, Any]:
        """(contrast float64 [V], plausible bool [V])

        With cache=standard, a weak sample's own history is read weakly from the first token on.
        """
        weak_positions = range(len(ids))
        if self.cache == "clean":
            weak_positions = range(len(ids) - 1, len(ids))
        strong_V = self.logits_after(ids, range(0))
        weak_V = self.logits_after(ids, weak_positions)
        probs_V = strong_V.softmax(-1)
        return (1 + BETA) * strong_V - BETA * weak_V, probs_V >= ALPHA * probs_V.max()

    def score(self, context: list[int], answer: list[int]) -> tuple[float, bool]:
        log_likelihood = 0.0
        is_greedy = True
        for position, token in enumerate(answer):
            ids = [*context, *answer[:position]]
            contrast_V, plausible_V = self.contrast_after(ids)
            log_likelihood += float(contrast_V.log_softmax(-1)[token])
            if best_token(contrast_V, plausible_V) != token:
                is_greedy = False
        return log_likelihood, is_greedy

    def text(self, prompt: list[int]) -> list[int]:
        """New tokens."""
        tokens: list[int] = []
        for _ in range(STEPS):
            tokens.append(best_token(*self.contrast_after([*prompt, *tokens])))
            if tokens[-1] == self.model64.config.eos_token_id:
                break
        return tokens


def best_token(contrast_V: Any, plausible_V: Any) -> int:
    return int(contrast_V.masked_fill(~plausible_V, -math.inf).argmax())


@pytest.mark.parametrize(
    ("family", "rank", "cache"),
    [
        *[(family, 3, "clean") for family in FAMILIES],
        ("mixtral", 2, "standard"),
        # with recurrent layers
        pytest.param("qwen3_next", 2, "clean", marks=pytest.mark.slow),
        pytest.param("qwen3_next", 2, "standard", marks=pytest.mark.slow),
    ],
)
def test_it_equals_two_full_passes(family, rank, cache, tokenizer):
    model = small_model(family)
    slow = SlowContrast(in_float64(model), rank, cache)
    with opened(scmoe(rank=rank, cache=cache), model, tokenizer, SEED) as lm:
        expected = []
        for pair in PAIRS:
            context, answer = lm.encode_pair(*pair)
            expected.append(slow.score(list(context), list(answer)))
        assert_log_likelihoods(answered(lm, "loglikelihood", PAIRS), expected, tokens=12)

        texts = answered(lm, "generate_until", PROMPTS)
        for text, (prompt, _) in zip(texts, PROMPTS, strict=True):
            assert text == lm.tok_decode(slow.text(list(lm.tok_encode(prompt))))


@pytest.mark.parametrize("family", by_family(["olmoe", "gpt_oss", "deepseek_v3"]))
def test_a_strength_of_0_is_the_base_model_bit_for_bit(family, tokenizer):
    model = small_model(family)
    texts = [("three pens",)]
    with opened(scmoe(beta=0), model, tokenizer, SEED) as lm:
        assert both_answers(lm) == base_answers(model, tokenizer)
        rolling = answered(lm, "loglikelihood_rolling", texts)
    base = EngineLM(model, tokenizer, progress=False)
    assert rolling == answered(base, "loglikelihood_rolling", texts)


def test_it_reads_what_roe_with_two_samples_reads(tokenizer):
    model = small_model("deepseek_v3")  # its first layer is dense
    roe = get_method("roe")(get_method("roe").Config(n=2, skip_layers=0))
    tokens_read = []
    for method in (scmoe(), roe):
        with opened(method, model, tokenizer, SEED) as lm:
            both_answers(lm)
            tokens_read.append(lm.cost["tokens_in"])
            assert lm.engine.two_phase.noisy.fork == 1
            assert lm.engine.two_phase.clean.fork == 1
    scmoe_tokens, roe_tokens = tokens_read
    assert scmoe_tokens == roe_tokens


def test_a_token_that_is_not_plausible_is_scored_and_not_decoded(tokenizer):
    """alpha=1 leaves the strong sample's best token, which is the base model's."""
    model = small_model("olmoe")
    _, base_texts = base_answers(model, tokenizer)
    with opened(scmoe(alpha=1.0, beta=5.0), model, tokenizer, SEED) as lm:
        scores, texts = both_answers(lm)
    with opened(scmoe(alpha=0.0, beta=5.0), model, tokenizer, SEED) as lm:
        texts_of_all_tokens = answered(lm, "generate_until", PROMPTS)

    for log_likelihood, _ in scores:
        assert math.isfinite(log_likelihood)
    assert texts == base_texts
    assert texts != texts_of_all_tokens


# Identity, report, cost and grid


def test_the_identity_has_what_matters():
    identity = scmoe().identity(FACTS)
    assert identity["beta"] == BETA
    assert identity["rank"] == 2
    assert identity["study"] is None
    assert "profile" not in identity


def test_a_strength_of_0_has_one_identity():
    identity = scmoe(beta=0).identity(FACTS)
    assert identity == scmoe(beta=0, rank=5, cache="standard").identity(FACTS)


def test_the_report():
    settings = {"beta": BETA, "alpha": ALPHA, "rank": 3, "cache": "clean"}
    blocks = scmoe(rank=3).report(FACTS, {}, {})
    assert blocks == {"untuned": True, "scmoe": settings}


@pytest.mark.parametrize(
    ("keys", "tokens"),
    [
        pytest.param({}, 100 + 2 * 10 - 1, id="two samples of each new token but the first"),
        pytest.param({"cache": "standard"}, 2 * (100 + 9), id="two samples of all tokens"),
        pytest.param({"beta": 0}, 100 + 9, id="the base model"),
    ],
)
def test_the_cost_of_a_prompt_of_100_tokens_and_10_new_ones(keys, tokens):
    workload = generating(1, prompt=100, new=10)
    assert scmoe(**keys).forward_tokens(workload, None, FACTS) == tokens


def test_the_grid_is_the_papers_with_the_base_model_before_it():
    """Section 3.2: beta is 0.1, 0.3, 0.5, 0.7 or 0.9, and the weak expert any of the layer's."""
    base_point, *points = scmoe().grid(FACTS)
    assert base_point["beta"] == 0
    expected = list(product(range(1, 7), (0.1, 0.3, 0.5, 0.7, 0.9)))
    assert sorted((point["rank"], point["beta"]) for point in points) == expected


def test_the_grid_has_at_most_8_ranks():
    grid = scmoe().grid(replace(FACTS, experts=60))
    assert {point["rank"] for point in grid} == set(range(1, 9))


@pytest.mark.slow
def test_a_study_finds_settings_that_another_run_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("moe_lab.methods.scmoe.BETAS", (0.1, 2.0))
    monkeypatch.setattr("moe_lab.methods.scmoe.RANKS", 2)
    command = ["method=scmoe", "model=tiny", "task=toy_text", "limit=4", f"output_dir={tmp_path}"]
    ended = run_command(capsys, *command, "tuning=grid", "tuning.num_samples=3")
    assert ended.code == 0, ended.err
    assert " calibration " in ended.out

    [profile_file] = (tmp_path / "studies").glob("*/best.yaml")
    profile = yaml.safe_load(profile_file.read_text())
    trials = list(csv.DictReader((profile_file.parent / "trials.csv").open()))
    values = [float(trial["value"]) for trial in trials]
    assert len(trials) == 5
    assert len(set(values)) == 5
    assert float(trials[0]["params_beta"]) == 0
    assert profile["score"] == min(values)
    assert profile["untuned_score"] == values[0]
    assert profile["calibrated_scale"] is not None

    best_trial = trials[profile["trial"]]
    beta = float(best_trial["params_beta"])
    rank = float(best_trial["params_rank"])
    assert profile["settings"] == {"beta": beta, "rank": rank, "alpha": 0.1, "cache": "clean"}
    result = block_of(ended)
    assert result["scmoe"]["beta"] == beta

    second_block = block_of(
        run_command(capsys, *command, f"method.profile={profile_file}", "baseline=false")
    )
    assert second_block["run_id"] == result["run_id"]
    assert "untuned" not in second_block
