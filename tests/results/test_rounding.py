"""Breaks if rounding is taken for a difference, or a difference for rounding."""

import math

import pytest

from moe_lab.results.rounding import Rounding, bound
from moe_lab.results.samples import Sample

ROUNDING = 16 * 2.0**-23


def test_the_bound_grows_with_the_number_and_with_the_words():
    assert bound(1.0, vocabulary=300) == pytest.approx(ROUNDING * math.log(300))
    assert bound(50.0, vocabulary=300) == pytest.approx(ROUNDING * 50)
    assert bound(50.0, tokens=100, vocabulary=300) == pytest.approx(ROUNDING * 100 * math.log(300))


def test_float32_values_are_equal_within_the_bound():
    """Of perplexities both the log-likelihood and the number of words count; texts have to be the same."""
    equal = Rounding("float32").equal
    near, far = 0.9 * bound(50.0, 9), 1.1 * bound(50.0, 9)
    assert equal(-50.0, -50.0 + near, 9) and not equal(-50.0, -50.0 + far, 9)
    assert equal((-50.0, 80), (-50.0 + near, 80), 9) and not equal((-50.0, 80), (-50.0, 81), 9)
    assert not equal((-50.0, 80), (-50.0, 80, 1), 9)
    assert equal("a", "a", 9) and not equal("a", "b", 9)


def test_values_of_generated_texts_are_equal_or_not():
    assert Rounding("float32").equal(0.5, 0.5, 0) and not Rounding("float32").equal(0.5, 0.5 + 1e-9, 0)


def test_half_precision_has_the_measured_bound_alone():
    """Broken by the bound of float32 in another dtype."""
    for dtype in ("bfloat16", "float16", None):
        assert Rounding(dtype, 0.3).equal(-50.0, -50.3 + 1e-6, 9)
        assert not Rounding(dtype, 0.3).equal(-50, -50.4, 9)
        assert not Rounding(dtype).equal(-50.0, -50.0 + 1e-9, 9) and Rounding(dtype).equal(-50.0, -50.0, 9)


def test_each_example_has_its_words():
    apart = 0.9 * bound(1.0, 50)
    assert Rounding("float32").equals([0.0, 0.0], [apart, apart], [50, 1]) == [True, False]


def test_scored_words_are_those_of_the_scored_text():
    def words(*requests) -> int:
        return Sample(document=0, filter="none", values={}, requests=requests).scored_words

    assert words(("a text of five words",)) == 5
    assert words(("a long question", " yes"), ("a long question", " no it is")) == 3
    assert words(("a prompt", {"until": []})) == 0
    assert words(("", "")) == 1 and words() == 0
