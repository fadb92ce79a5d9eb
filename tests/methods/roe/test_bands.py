"""Adaptive RoE's keys: which are refused, and what is reported of the rows that were computed."""

from __future__ import annotations

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods.roe.bands import adaptive_block, adaptive_footnotes, bands_of
from moe_lab.methods.roe.method import RoE


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"adaptive": "margin"}, "needs method.bands"),
        ({"bands": [[0.2, 8]]}, "needs method.adaptive"),
        ({"adaptive": "margn", "bands": [[0.2, 8]]}, "Did you mean 'margin'"),
        ({"adaptive": "margin", "bands": [[0.2, 8]], "cache": "standard"}, "needs method.cache=clean"),
        ({"adaptive": "margin", "bands": []}, "list of .bound, samples."),
        ({"adaptive": "margin", "bands": [[0.2]]}, "list of .bound, samples."),
        ({"adaptive": "margin", "bands": [[-0.2, 8]]}, "at least 0"),
        ({"adaptive": "margin", "bands": [[float("inf"), 8]]}, "at least 0"),
        ({"adaptive": "margin", "bands": [[0.2, 33]]}, "to method.n=32"),
        ({"adaptive": "margin", "bands": [[0.2, 0]]}, "from 1"),
        ({"adaptive": "margin", "bands": [[0.2, 8.5]]}, "from 1"),
        ({"adaptive": "margin", "bands": [[0.6, 8], [0.2, 4]]}, "bounds rise"),
        ({"adaptive": "entropy", "bands": [[0.2, 8], [0.6, 4]]}, "bounds fall"),
        ({"adaptive": "entropy", "bands": [[0.2, 8], [0.2, 4]]}, "bounds fall"),
    ],
)
def test_impossible_values_are_refused(keys, says):
    with pytest.raises(ConfigError, match=says):
        RoE.Config(**keys)


def test_the_rows_that_were_computed():
    config = RoE.Config(n=16, adaptive="margin", bands=[[0.2, 16.0], [1, 4]])
    assert bands_of(config) == [(0.2, 16), (1.0, 4)]
    block = adaptive_block(config, {"band_0": 10, "band_1": 5, "band_2": 100, "tokens_in": 7})["adaptive"]
    assert block == {
        "measure": "margin", "bands": [[0.2, 16], [1.0, 4]], "tokens": [10, 5, 100],
        "rows_used": 10 * 16 + 5 * 4 + 100, "rows_full": 115 * 16, "share_of_rows": 280 / 1840,
    }  # fmt: skip
    [line] = adaptive_footnotes({"n": 16, "adaptive": block})
    assert "15.2% of the rows of n=16" in line and "280 of 1,840" in line


def test_nothing_is_said_without_bands_or_without_tokens():
    assert adaptive_block(RoE.Config(), {}) == {} and adaptive_footnotes({"n": 4}) == []
    block = adaptive_block(RoE.Config(adaptive="margin", bands=[[0.2, 16]]), {})
    assert block["adaptive"]["share_of_rows"] is None and adaptive_footnotes({"n": 32} | block) == []
