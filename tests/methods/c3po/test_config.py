"""Keys of `method=c3po`. Broken by: two runs of the same computation, or one of two; a ball that must be empty and is not
refused.
"""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from moe_lab.cli.main import compose_or_explain
from moe_lab.errors import ConfigError
from moe_lab.methods.c3po.method import C3PO
from moe_lab.methods.c3po.ngd import Descent
from moe_lab.models.facts import ModelFacts
from moe_lab.runs.config import to_config
from moe_lab.runs.experiments.places import coordinate

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


@pytest.mark.parametrize("optimizer", ["ngd", "kernel_regression"])
@pytest.mark.parametrize(("epsilon", "most_similar"), [(0.05, 0.95), (0.01, 0.95), (0.3, 0.7)])
def test_a_radius_at_which_nobody_is_left_is_refused(optimizer, epsilon, most_similar):
    with pytest.raises(ConfigError, match=rf"method.epsilon={epsilon} finds no neighbour.*cosine distance"):
        C3PO.Config(optimizer=optimizer, epsilon=epsilon, most_similar=most_similar)


@pytest.mark.parametrize(
    "keys",
    [
        {"epsilon": 0.06},
        {"epsilon": 0.05, "most_similar": 1.0},
        {"epsilon": 0.01, "optimizer": "mode_finding"},  # a ball of pathways, of which none are dropped
        {"epsilon": 0.01, "optimizer": "oracle"},
    ],
    ids=str,
)
def test_other_radii_are_taken(keys):
    assert C3PO.Config(**keys).epsilon == keys["epsilon"]


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ({"update": "gd"}, {"update": "gd", "k": "3", "epsilon": "-"}),
        ({"optimizer": "kernel_regression"}, {"update": "-", "k": "3"}),
        ({"epsilon": 0.5}, {"update": "adam", "k": "-", "epsilon": "0.5"}),
    ],
    ids=str,
)
def test_a_table_shows_a_dash_for_what_makes_no_difference(keys, shown):
    settings = C3PO.Config(**keys)
    cell = SimpleNamespace(choices={}, values={"method": asdict(settings)})
    prepared = SimpleNamespace(config=SimpleNamespace(method=settings), cell=cell)
    for key, value in shown.items():
        assert coordinate(prepared, f"method.{key}") == value


def test_the_default_learning_rate_is_the_papers_as_it_is_written():
    """Broken by: 10e-2 to 10e-5 read as 0.01 to 0.00001, at which nearly no expert changes."""
    (cell,) = compose_or_explain(["method=c3po"])
    assert to_config(cell).method.learning_rate == C3PO.Config().learning_rate == [10e-2, 10e-5]
    assert Descent().rates == (10e-2, 10e-5)
