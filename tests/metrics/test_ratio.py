"""A ratio of totals and its interval against what is known: equal documents, and a slow loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from moe_lab.metrics.ratio import ratio


def test_documents_of_one_size_have_the_interval_of_a_mean() -> None:
    values = np.array([0.5, 1.5, -1.0, 3.0, 0.25])
    found = ratio(values * 7, np.full(5, 7))
    expected = ttest_1samp(values, 0).confidence_interval()
    assert found["value"] == pytest.approx(values.mean())
    assert found["ci95"] == pytest.approx([expected.low, expected.high])


def test_long_documents_count_by_their_tokens() -> None:
    sums, tokens = [3.0, -1.0, 2.0, 8.0], [1, 5, 4, 10]
    found = ratio(np.array(sums), np.array(tokens))
    value = sum(sums) / sum(tokens)
    squares = sum((one - value * count) ** 2 for one, count in zip(sums, tokens, strict=True))
    half = t.ppf(0.975, 3) * (4 * squares / 3) ** 0.5 / sum(tokens)
    assert found["value"] == pytest.approx(value)
    assert found["ci95"] == pytest.approx([value - half, value + half])


def test_what_does_not_exist_is_null() -> None:
    assert ratio(np.zeros(0), np.zeros(0)) == {"value": None, "ci95": None}
    assert ratio(np.array([2.0]), np.array([4])) == {"value": 0.5, "ci95": None}
