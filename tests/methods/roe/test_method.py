"""RoE's settings: what they mean for a model, and which are refused before weights load."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods import get_method, method_names
from moe_lab.methods.method import Context
from moe_lab.methods.roe.method import RoE
from moe_lab.models.facts import ModelFacts

FACTS = ModelFacts(
    name="x", path=None, revision=None, commit=None, family="olmoe", dtype="float32", moe_layers=5, experts=8, top_k=2,
    max_length=512,
)  # fmt: skip


def roe(**keys):
    return RoE(RoE.Config(**keys))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [0, 0.1, 0.1, 0.1, 0]),
        ({"temperature": 0.5, "skip_layers": 2}, [0, 0, 0.5, 0, 0]),
        ({"temperature": 1, "skip_layers": 0}, [1] * 5),
        ({"temperature": [0.3, 0, 0.1, 0, 0.2]}, [0.3, 0, 0.1, 0, 0.2]),
        ({"temperature": [0, 0.4, 0.1, 0, 0], "skip_layers": 1}, [0, 0.4, 0.1, 0, 0]),
    ],
)
def test_temperature_per_layer(keys, expected):
    assert roe(**keys).temperatures(5) == expected


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"n": 0}, "method.n=0"),
        ({"temperature": -0.1}, "method.temperature=-0.1"),
        ({"temperature": "warm"}, "method.temperature=warm"),
        ({"temperature": [0.1, -1, 0, 0, 0]}, "at least 0"),
        ({"temperature": True}, "method.temperature=True"),
        ({"skip_layers": -1}, "at least 0"),
        ({"cache": "cleen"}, "Choices: clean, standard, none. Did you mean 'clean'"),
        ({"prefill": "none", "cache": "standard"}, "Choices: noisy, clean"),
        ({"prefill": "clean"}, "cache=standard"),
        ({"weights": "noisy"}, "clean, perturbed"),
        ({"noise": "antithetik"}, "Did you mean 'antithetic'"),
        ({"noise_scale": "margins"}, "Choices: constant, margin"),
        ({"n": 1, "include_clean": False}, "leaves nothing"),
    ],
)
def test_impossible_values_are_refused(keys, says):
    with pytest.raises(ConfigError, match=says):
        roe(**keys)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"skip_layers": 3}, "none would be left"),
        ({"temperature": [0.1] * 4}, "4 entries, but the model has 5"),
        ({"temperature": [0.1] * 5, "skip_layers": 1}, "contradicts"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(keys, says):
    with pytest.raises(ConfigError, match=says):
        roe(**keys).check(FACTS)


def test_runs_without_bands_keep_their_identity():
    assert {"adaptive", "bands"}.isdisjoint(roe().identity(FACTS))
    assert roe(adaptive="margin", bands=[[0.5, 4]]).identity(FACTS)["bands"] == [(0.5, 4)]


def test_the_ensemble_has_the_bands():
    adaptive = roe(adaptive="entropy", bands=[[2, 8], [0.5, 4]]).ensemble([0.1] * 5, 0, seed=0).adaptive
    assert (adaptive.measure, adaptive.bands) == ("entropy", [(2.0, 8), (0.5, 4)])
    assert roe().ensemble([0.1] * 5, 0, seed=0).adaptive is None


def test_report():
    block = roe(n=4).report(FACTS, {"changed_decisions": 3, "noisy_decisions": 12}, {})["roe"]
    assert block == {
        "n": 4, "temperatures": [0, 0.1, 0.1, 0.1, 0], "cache": "clean", "prefill": "noisy",
        "weights": "clean", "changed_fraction": 0.25,
    }  # fmt: skip
    assert roe().report(FACTS, {}, {})["roe"]["changed_fraction"] is None


def test_noise_that_changes_no_decision_is_a_fraction_of_zero():
    """The log of a run leaves out counts of 0."""
    assert roe().report(FACTS, {"noisy_decisions": 12}, {})["roe"]["changed_fraction"] == 0


def test_the_lm_has_the_ensemble_that_was_asked_for(olmoe, tokenizer):
    config = SimpleNamespace(
        seed=4,
        batch_size="auto",
        max_batch_size=None,
        max_length=None,
        model=SimpleNamespace(add_bos_token=None),
    )
    loaded = SimpleNamespace(model=olmoe, tokenizer=tokenizer, facts=SimpleNamespace(moe_layers=4))
    with roe(n=6, temperature=[0, 0, 0.2, 0]).open(loaded, Context(config=config)) as lm:
        assert lm.ensemble.n == 6 and lm.ensemble.first_noisy == 2
        assert lm.ensemble.routing.seed == 4 and lm.ensemble.routing.temperatures == [0, 0, 0.2, 0]
    with roe(cache="none", prefill="clean").open(loaded, Context(config=config)) as lm:
        assert (lm.ensemble.cache, lm.ensemble.prefill) == ("none", "clean")
    with roe(n=1).open(loaded, Context(config=config)) as lm:
        assert lm.ensemble.n == 1 and lm.ensemble.routing is None
    with roe(noise="antithetic", noise_scale="margin").open(loaded, Context(config=config)) as lm:
        assert lm.ensemble.routing.antithetic and lm.ensemble.routing.margin_scaled


def test_keys_that_came_later_are_part_of_the_identity_at_other_values_only():
    assert not {"noise", "noise_scale"} & roe().identity(FACTS).keys()
    changed = roe(noise="antithetic", noise_scale="margin").identity(FACTS)
    assert (changed["noise"], changed["noise_scale"]) == ("antithetic", "margin")


def test_registry():
    assert {"base", "roe"} <= set(method_names())
    assert get_method("roe") is RoE
    with pytest.raises(ConfigError, match="base"):
        get_method("reo")
