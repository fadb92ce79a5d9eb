"""Kernels have their formulas, up to a factor per question."""

from __future__ import annotations

import math

import pytest
import torch

from moe_lab.errors import ConfigError
from moe_lab.methods.c3po.kernels import KERNELS, SCALED, kernel

DISTANCES = [0.3, 0.7, 1.2]
FORMULAS = {
    "linear": lambda d, h: 1 - d * d / 2,
    "polynomial": lambda d, h: (1 + (1 - d * d / 2)) ** 2,
    "matern": lambda d, h: (1 + math.sqrt(3) * d / h) * math.exp(-math.sqrt(3) * d / h),
    "gaussian": lambda d, h: math.exp(-d * d / (2 * h * h)),
}


@pytest.mark.parametrize(
    ("name", "bandwidth"), [*((name, None) for name in KERNELS), *((name, 0.4) for name in SCALED)]
)
def test_formulas_with_the_median_where_no_bandwidth_is_given(name, bandwidth):
    values = [FORMULAS[name](d, bandwidth or 0.7) for d in DISTANCES]
    expected = torch.tensor([value / max(values) for value in values])
    torch.testing.assert_close(kernel(name, torch.tensor([DISTANCES]), bandwidth)[0], expected)


@pytest.mark.parametrize("name", KERNELS)
def test_missing_neighbours_weigh_nothing_and_do_not_move_the_median(name):
    inf = math.inf
    found = kernel(name, torch.tensor([[*DISTANCES, inf, inf], [inf] * 5]))
    torch.testing.assert_close(found[0, :3], kernel(name, torch.tensor([DISTANCES]))[0])
    assert found[0, 3:].tolist() == [0, 0] and found[1].tolist() == [0] * 5
    assert kernel(name, torch.empty(2, 0)).shape == (2, 0)


@pytest.mark.parametrize("name", SCALED)
def test_small_and_large_bandwidths_take_the_nearest_and_all_alike(name):
    distance = torch.tensor([DISTANCES])
    assert kernel(name, distance, 1e-3)[0].tolist() == [1, 0, 0]
    torch.testing.assert_close(kernel(name, distance, 1e5)[0], torch.ones(3))


@pytest.mark.parametrize("name", KERNELS)
def test_a_neighbour_in_the_same_place_is_no_trouble(name):
    found = kernel(name, torch.tensor([[0.0, 0.0, 1.0]]))
    assert found.isfinite().all() and found[0, 0] == 1 and found[0, 2] < 1


def test_opposite_directions_weigh_nothing_under_the_linear_kernel():
    assert kernel("linear", torch.tensor([[1.5, 1.9]])).tolist() == [[0, 0]]


@pytest.mark.parametrize("name", sorted(set(KERNELS) - set(SCALED)))
def test_a_bandwidth_of_a_kernel_without_one_is_refused(name):
    with pytest.raises(ConfigError, match="no bandwidth"):
        kernel(name, torch.tensor([DISTANCES]), 0.5)
