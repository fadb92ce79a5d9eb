"""Breaks if a name of layers means others than the paper's Table 8 has."""

from __future__ import annotations

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods.c3po.layers import named_layers


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("last5", [11, 12, 13, 14, 15]),
        ("first2+last3", [0, 1, 13, 14, 15]),
        ("middle4", [6, 7, 8, 9]),
        ("middle5", [5, 6, 7, 8, 9]),
        ("all", list(range(16))),
        ([3, 1], [1, 3]),
    ],
)
def test_names_mean_the_papers_layers(name, layers):
    assert named_layers(name, 16) == layers


@pytest.mark.parametrize(
    "name", ["last17", "last0", "end5", "first9+last9", [16], [], "last", "last5+", [1, 1]]
)
def test_layers_that_there_are_not_are_refused(name):
    with pytest.raises(ConfigError, match=r"method\.layers="):
        named_layers(name, 16)
