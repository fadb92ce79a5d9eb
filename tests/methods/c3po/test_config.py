"""Keys of `method=c3po`. Broken by: two runs of the same computation, or one of two."""

from __future__ import annotations

import pytest

from moe_lab.methods.c3po.method import C3PO
from moe_lab.models.facts import ModelFacts

FACTS = ModelFacts(
    name="x",
    path=None,
    revision=None,
    commit=None,
    family="olmoe",
    dtype="float32",
    moe_layers=8,
    experts=16,
    top_k=4,
    max_length=64,
)


def identity(**keys):
    return C3PO(C3PO.Config(**keys)).identity(FACTS)


@pytest.mark.parametrize(
    ("settings", "unread"),
    [
        ({}, {"alpha": 0.2, "shifts": 3, "temperature": 0.9}),
        ({"optimizer": "kernel_regression"}, {"steps": 3, "update": "gd", "relax": "topk", "shifts": 4}),
        ({"optimizer": "mode_finding"}, {"steps": 3, "schedule": "fixed", "learning_rate": [0.1, 0.1]}),
        ({"optimizer": "oracle"}, {"k": 7, "reference": "arc_easy", "abstain": 0.5, "kernel": "matern"}),
        ({"epsilon": 0.4}, {"k": 9}),
    ],
)
def test_keys_that_make_no_difference_make_no_other_run(settings, unread):
    for key, value in unread.items():
        assert identity(**settings) == identity(**{**settings, key: value}), key


@pytest.mark.parametrize(
    ("settings", "read"),
    [
        ({}, {"k": 7, "steps": 3, "kernel": "matern", "abstain": 0.5, "negative": 1.0, "loss": "l2", "n": 2}),
        ({"n": 2}, {"temperature": 0.9}),
        ({"optimizer": "kernel_regression"}, {"alpha": 0.5, "k": 4, "bandwidth": 0.3}),
        ({"optimizer": "mode_finding"}, {"alpha": 0.7, "shifts": 2, "epsilon": 0.3}),
        ({"optimizer": "mode_finding", "epsilon": 0.3}, {"k": 9}),
        ({"optimizer": "oracle"}, {"steps": 3, "layers": "all", "core_experts": 6, "tokens": "last3"}),
    ],
)
def test_keys_that_make_a_difference_make_another_run(settings, read):
    for key, value in read.items():
        assert identity(**settings) != identity(**{**settings, key: value}), key
