"""Broken by a wrong exponent or by the ratio turned upside down."""

from __future__ import annotations

import pytest

from moe_lab.runs.experiments.figures import ALPHA_N, size_ratio


def test_the_ratio_is_that_of_two_sizes() -> None:
    sizes = [8.8e13 * loss ** (-1 / ALPHA_N) for loss in (2.0, 2.5)]  # equation 1.1, solved for N
    assert size_ratio(2.0, 2.5) == pytest.approx(sizes[0] / sizes[1])
    assert size_ratio(2.5, 2.5) == 1.0
    assert size_ratio(2.6, 2.5) < 1 < size_ratio(2.4, 2.5), "a lower loss is a larger model"


def test_a_tenfold_model_has_the_loss_that_the_law_gives_it() -> None:
    # 10 ** -0.076 = 0.8395: Kaplan et al. (2020), section 1.2, as a power law in N
    assert size_ratio(0.8394600, 1.0) == pytest.approx(10, rel=1e-4)


def test_the_papers_example_is_a_loss_three_per_cent_lower() -> None:
    # OLMoE-7B as good as a 10.5B model (section 3.4)
    assert size_ratio(0.97, 1.0) == pytest.approx(10.5 / 7, rel=0.01)
