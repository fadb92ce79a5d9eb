"""RoE's settings. Broken by: settings that mean something else for a model, impossible ones that are not refused before
weights load.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from moe_lab.engine.lm import Request
from moe_lab.errors import ConfigError
from moe_lab.methods.method import StudyStart
from moe_lab.methods.roe import RoE
from moe_lab.models.facts import ModelFacts
from tests.support.opened_methods import context, loaded, opened

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


def test_report():
    block = roe(n=4).report(FACTS, {"changed_decisions": 3, "noisy_decisions": 12}, {})["roe"]
    assert block == {
        "n": 4, "temperatures": [0, 0.1, 0.1, 0.1, 0], "cache": "clean", "prefill": "noisy",
        "weights": "clean", "changed_fraction": 0.25,
    }  # fmt: skip
    assert roe().report(FACTS, {}, {})["roe"]["changed_fraction"] is None
    # the log of a run leaves out counts of 0
    assert roe().report(FACTS, {"noisy_decisions": 12}, {})["roe"]["changed_fraction"] == 0


@pytest.mark.parametrize("reuse", [True, False])
def test_a_study_opens_with_its_own_ensemble(olmoe, tokenizer, reuse):
    """The trials of a study start in a fork layer of their own, and with given prefixes nothing may be reused."""
    method = roe(n=6, temperature=[0, 0, 0.2, 0])
    first = roe(n=3).ensemble([0.0, 0.0, 0.0, 0.0], 1, seed=4)
    study = StudyStart(first=first, reuse=reuse)
    with method.open(loaded(olmoe, tokenizer), context(study=study)) as lm:
        assert lm.ensemble is first and not lm.progress
        read = [_tokens_read(lm) for _ in range(2)]
    assert (read[1] < read[0]) is reuse


def _tokens_read(lm) -> int:
    before = lm.cost["tokens_in"]
    lm.generate_until([Request(("one two three four five", {"until": [], "max_gen_toks": 2}))])
    return lm.cost["tokens_in"] - before


def test_the_lm_has_the_ensemble_that_was_asked_for(olmoe, tokenizer):
    with opened(roe(n=6, temperature=[0, 0, 0.2, 0]), olmoe, tokenizer, seed=4) as lm:
        assert lm.ensemble.n == 6 and lm.ensemble.first_noisy == 2
        assert lm.ensemble.routing.seed == 4 and lm.ensemble.routing.temperatures == [0, 0, 0.2, 0]
    with opened(roe(cache="none", prefill="clean"), olmoe, tokenizer, seed=4) as lm:
        assert (lm.ensemble.cache, lm.ensemble.prefill) == ("none", "clean")
    with opened(roe(n=1), olmoe, tokenizer, seed=4) as lm:
        assert lm.ensemble.n == 1 and lm.ensemble.routing is None
    with opened(roe(noise="antithetic"), olmoe, tokenizer, seed=4) as lm:
        assert lm.ensemble.routing.antithetic


def test_the_footnotes_say_how_much_noise_there_was():
    def said(*temperatures):
        [line] = RoE.footnotes({"roe": {"n": 4, "temperatures": list(temperatures)}})
        return line

    assert said(0.0, 0.1, 0.0) == "roe: 4 routing samples, temperature 0.1 in 1 of 3 MoE layers."
    assert said(0.05, 0.5) == "roe: 4 routing samples, temperature 0.05 to 0.5 in all 2 MoE layers."
    assert said(0.0, 0.0).startswith("roe: temperature 0 in every MoE layer, so that")


@pytest.mark.parametrize(("family", "refused"), [("olmoe", False), ("gpt_oss", False), ("deepseek_v3", True)])
def test_weights_from_noisy_logits_need_a_router_that_chooses_by_logits(family, refused):
    method = roe(n=2, weights="perturbed")
    with pytest.raises(ConfigError, match=r"method\.weights=perturbed") if refused else nullcontext():
        method.check(replace(FACTS, family=family))
