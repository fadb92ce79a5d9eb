"""The samples that a token takes by the measure of its clean distribution.

Broken by: a bound that is compared the wrong way, a measure that is NaN where a probability is 0.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.forward.adaptive import MEASURES, Adaptive, unsureness
from tests.support.unsure import slow_measure


def test_measures_are_those_of_a_loop():
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(0)) * 3
    logits[2] = -torch.inf
    logits[2, 4] = 1.0
    found = unsureness(logits)
    for measure in MEASURES:
        for logits_V, value in zip(logits.double(), found[measure], strict=True):
            assert float(value) == pytest.approx(slow_measure(logits_V.softmax(-1), measure), abs=1e-6)


@pytest.mark.parametrize(
    ("measure", "bands", "expected"),
    [
        ("margin", [(0.2, 8), (0.6, 4)], [8, 4, 4, 1, 1]),
        ("margin", [(0.2, 1), (0.5, 8)], [1, 8, 8, 1, 1]),
        ("margin", [(0.0, 8)], [1] * 5),
        ("margin", [(2.0, 8)], [8] * 5),
        ("entropy", [(0.6, 8), (0.2, 4)], [1, 4, 4, 8, 8]),
        ("entropy", [(0.0, 8)], [8] * 5),
    ],
)
def test_samples_of_a_token(measure, bands, expected):
    adaptive = Adaptive(measure, bands)
    assert adaptive.samples_of({measure: torch.tensor([0.0, 0.2, 0.3, 0.6, 1.0])}).tolist() == expected
    adaptive.samples_of({measure: torch.tensor([0.1, 0.7])})
    assert sum(adaptive.tokens) == 7
    assert adaptive.uncounted().tokens == [0] * len(adaptive.tokens)


def test_tokens_are_counted_by_band():
    """Also where two bands have the same samples, or one has those of no band."""
    adaptive = Adaptive("margin", [(0.1, 1), (0.3, 4), (0.5, 4)])
    for _ in range(2):
        adaptive.samples_of({"margin": torch.tensor([0.05, 0.2, 0.2, 0.4, 0.9, 0.9])})
    assert adaptive.tokens == [2, 4, 2, 4]
