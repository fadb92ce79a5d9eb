"""The logit scale and the contrast against float64 by hand.

Broken by: a scale of each sample in place of the mean's, a normalizer that is not scaled, a token
that a sweep counts twice or not at all, a contrast of the wrong sign, a token that is not plausible
and decoded, or that is plausible and not, -inf as the score of a given token.
"""

import math
from dataclasses import replace

import pytest
import torch

from moe_lab.engine.forward.ensemble import SCALES, Contrast, Ensemble, ScaleSweep, at_bound
from moe_lab.engine.hf import Request
from moe_lab.engine.lm import EngineLM
from moe_lab.routing import GumbelTopK
from tests.support.ensembles import answered

TEXTS = [("2 + 2 =", " 4"), ("2 + 2 =", " 5 and"), ("A longer prompt: one", " two three")]


@pytest.fixture
def logits_MnV():
    return torch.randn(5, 3, 11, generator=torch.Generator().manual_seed(0)) * 4


def by_hand(logits_nV: torch.Tensor, scale: float, aggregate: str) -> torch.Tensor:
    """Log-probabilities [V] of one position, in float64."""
    logits_nV = logits_nV.double()
    if aggregate == "logits":
        scores_V = logits_nV.mean(dim=0)
    else:
        scores_V = logits_nV.softmax(dim=-1).mean(dim=0).log()
    powers = [math.exp(scale * float(score)) for score in scores_V]
    return torch.tensor([math.log(power / sum(powers)) for power in powers])


@pytest.mark.parametrize("aggregate", ["probabilities", "logits"])
@pytest.mark.parametrize(("n", "clean"), [(1, True), (3, True), (3, False)])
@pytest.mark.parametrize("scale", [0.4, 1.0, 2.5])
def test_the_averaged_distribution_is_scaled(logits_MnV, n, clean, aggregate, scale):
    logits_MnV = logits_MnV[:, :n]
    ensemble = Ensemble(n=n, aggregate=aggregate, logit_scale=scale, include_clean=clean)
    averaged = logits_MnV if clean else logits_MnV[:, 1:]
    expected = torch.stack([by_hand(logits_nV, scale, aggregate) for logits_nV in averaged])
    at = torch.tensor([4, 0, 2, 2])
    target = torch.tensor([10, 3, 0, 7])
    assert torch.allclose(
        ensemble.score(logits_MnV, at, target), expected[at, target].float(), atol=1e-5
    )
    assert torch.allclose(
        ensemble.next_scores(logits_MnV).softmax(-1), expected.exp().float(), atol=1e-6
    )
    assert ensemble.greedy(logits_MnV).equal(expected.argmax(dim=-1))


def scored(model, tokenizer, ensemble: Ensemble, reuse: bool = False) -> list[float]:
    lm = EngineLM(model, tokenizer, ensemble=ensemble, progress=False, reuse=reuse)
    return [value for value, _ in answered(lm, "loglikelihood", TEXTS)]


@pytest.mark.parametrize(
    ("n", "noise", "reuse", "cache"),
    [
        (1, 0.0, True, "clean"),
        (4, 0.5, False, "clean"),
        (4, 0.5, False, "standard"),
        (4, 0.0, True, "standard"),
    ],
)
def test_a_sweep_has_the_sums_that_scoring_gives_at_each_scale(
    olmoe, tokenizer, n, noise, reuse, cache
):
    routing = GumbelTopK([0.0, noise, noise, 0.0], seed=1) if n > 1 else None
    ensemble = Ensemble(n=n, routing=routing, first_noisy=1, cache=cache)
    sweep = ScaleSweep()
    swept = scored(olmoe, tokenizer, replace(ensemble, sweep=sweep), reuse)
    assert swept == pytest.approx(scored(olmoe, tokenizer, ensemble), abs=1e-4)
    lm = EngineLM(olmoe, tokenizer, progress=False)
    assert sweep.tokens == sum(lm.count_tokens("loglikelihood", Request(pair)) for pair in TEXTS)
    totals = {}
    for place in (0, 50, 100, 140):
        scale = float(SCALES[place])
        totals[place] = sum(scored(olmoe, tokenizer, replace(ensemble, logit_scale=scale), reuse))
        assert float(sweep.totals_S[place]) == pytest.approx(totals[place], abs=1e-3)
    scale, loss = sweep.best()
    assert -loss * sweep.tokens >= max(totals.values()) - 1e-3


def test_a_scale_at_either_end_is_at_the_bound():
    assert at_bound(float(SCALES[0]))
    assert at_bound(float(SCALES[-1]))
    assert not at_bound(1.0)
    assert SCALES[0] == pytest.approx(0.25, abs=1e-3)
    assert SCALES[-1] == pytest.approx(4, abs=1e-2)


def test_a_contrast_is_that_of_a_loop_in_float64():
    logits = 3 * torch.randn(5, 3, 30, generator=torch.Generator().manual_seed(2))
    ensemble = Ensemble(n=3, contrast=Contrast(beta=0.5, alpha=0.1))
    scores = ensemble.next_scores(logits)
    greedy = ensemble.greedy(logits)
    place = torch.arange(5)
    for at, logits_nV in enumerate(logits.double()):
        strong = logits_nV[0]
        weak = (logits_nV[1] + logits_nV[2]) / 2
        contrast = 1.5 * strong - 0.5 * weak
        log_probs = contrast.log_softmax(-1)
        contrast_scores = ensemble.score(logits, place[at : at + 1].repeat(30), torch.arange(30))
        assert contrast_scores.tolist() == pytest.approx(log_probs.tolist(), abs=1e-5)
        probs = strong.softmax(-1)
        for token in range(30):
            if probs[token] < 0.1 * probs.max():
                assert scores[at, token] == -torch.inf
            else:
                assert float(scores[at, token]) == pytest.approx(float(log_probs[token]), abs=1e-5)
        plausible = [token for token in range(30) if probs[token] >= 0.1 * probs.max()]
        assert int(greedy[at]) == max(plausible, key=lambda token: float(contrast[token]))
    assert (scores > -torch.inf).sum() > 5, "alpha leaves single tokens: the test says nothing"


def test_a_contrast_of_strength_0_is_the_first_sample_and_its_scale_is_one_of_logits():
    logits = 3 * torch.randn(4, 2, 30, generator=torch.Generator().manual_seed(3))
    at = torch.arange(4)
    target = torch.tensor([1, 2, 3, 4])
    base = Ensemble()
    for none in (Ensemble(n=2, contrast=Contrast(0, 0)), Ensemble(contrast=Contrast(0.7, 0))):
        first_samples = logits[:, : none.n]
        assert torch.equal(
            none.score(first_samples, at, target), base.score(logits[:, :1], at, target)
        )
        assert torch.equal(none.greedy(first_samples), base.greedy(logits[:, :1]))
    scaled = Ensemble(n=2, contrast=Contrast(0.5, 0), logit_scale=2.0)
    expected = (2 * (1.5 * logits[:, 0] - 0.5 * logits[:, 1])).log_softmax(-1)[at, target]
    torch.testing.assert_close(scaled.score(logits, at, target), expected)
    assert not Ensemble(contrast=Contrast(0, 0.1)).plain
