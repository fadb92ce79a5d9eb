"""The test over seeds and examples together. Broken by: a variance that is left out or counted twice, other degrees of
freedom, a test that rejects a true hypothesis more often than it says.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from moe_lab.results.significance import crossed_mean


def test_by_hand():
    """The two-way table of a textbook's kind, computed step by step."""
    values_SN = np.array([[1.0, 2, 4], [2, 2, 5], [0, 1, 4], [1, 4, 6], [3, 3, 5]])
    found = crossed_mean(values_SN)
    assert found is not None and found.mean == pytest.approx(values_SN.mean())
    seeds, examples = values_SN.shape
    mean = sum(map(sum, values_SN)) / 15
    rows, columns = [sum(row) / 3 for row in values_SN], [sum(column) / 5 for column in values_SN.T]
    of_seeds = 3 * sum((row - mean) ** 2 for row in rows) / 4
    of_examples = 5 * sum((column - mean) ** 2 for column in columns) / 2
    rest = (
        sum(
            (values_SN[s, n] - rows[s] - columns[n] + mean) ** 2
            for s in range(seeds)
            for n in range(examples)
        )
        / 8
    )
    total = of_seeds + of_examples - rest
    degrees = total**2 / (of_seeds**2 / 4 + of_examples**2 / 2 + rest**2 / 8)
    assert found.degrees == pytest.approx(degrees)
    low, high = found.interval
    assert high - mean == pytest.approx(mean - low)
    assert (mean / (total / 15) ** 0.5) == pytest.approx(abs(_quantile(found.p, degrees)))


def _quantile(p: float, degrees: float) -> float:
    from scipy.stats import t

    return float(t.ppf(p / 2, degrees))


def test_seeds_that_agree_leave_the_test_over_examples():
    examples_N = np.random.default_rng(0).normal(0.1, 1, 300)
    found = crossed_mean(np.tile(examples_N, (6, 1)))
    assert found is not None and found.p == pytest.approx(ttest_1samp(examples_N, 0).pvalue, rel=1e-6)


def test_too_few_seeds_or_examples_have_no_such_test():
    assert crossed_mean(np.ones((4, 100))) is None and crossed_mean(np.ones((5, 1))) is None
    equal = crossed_mean(np.zeros((5, 10)))
    assert equal is not None and equal.p == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "examples"), [(5, 200), (10, 200)])
@pytest.mark.parametrize("of_seeds", [0.02, 0.05])
def test_a_true_hypothesis_is_rejected_in_about_5_percent(seeds, examples, of_seeds):
    """4,000 experiments: the standard error of 5% is 0.34%, and the bounds are 3 of them about 4% to 6.5%.

    The larger p of a test over seeds and one over examples rejects up to 11% of them.
    """
    random = np.random.default_rng(1)
    p_values = []
    for _ in range(4000):
        values_SN = (
            random.normal(0, of_seeds, (seeds, 1))
            + random.normal(0, 0.3, (1, examples))
            + random.normal(0, 0.5, (seeds, examples))
        )
        found = crossed_mean(values_SN)
        assert found is not None
        p_values.append(found.p)
    assert 0.03 < np.mean(np.array(p_values) < 0.05) < 0.075
