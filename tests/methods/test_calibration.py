"""method=calibration. Broken by: a scale that changes greedy answers, a profile whose documents are tested, an id that
does not depend on the scale, a model without routers that is refused.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from moe_lab.engine.hf import Request
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from tests.support.opened_methods import opened
from tests.support.profiles import PROFILE


def calibration(**keys):
    cls = get_method("calibration")
    return cls(cls.Config(**keys))


def answers(model, tokenizer, kind, requests, **keys):
    found = {}
    with opened(calibration(**keys), model, tokenizer) as lm:
        lm.progress = False
        lm.answer(kind, requests, found.__setitem__)
    return [found[index] for index in range(len(requests))]


@pytest.mark.parametrize("scale", [0, -1.0, "nowhere.yaml"])
def test_an_impossible_scale_is_refused(scale):
    with pytest.raises(ConfigError, match=r"method\.logit_scale"):
        calibration(logit_scale=scale)


def test_greedy_answers_are_those_of_the_base_model(olmoe, tokenizer):
    requests = [Request(("2 + 2 =", {"max_gen_toks": 6, "do_sample": False, "until": []}))]
    texts = [answers(olmoe, tokenizer, "generate_until", requests, logit_scale=scale) for scale in (1.0, 0.5)]
    assert texts[0] == texts[1]


def test_a_dense_model_is_calibrated_too(tokenizer):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    pair = [Request(("2 + 2 =", " 4"))]
    one, other = (answers(model, tokenizer, "loglikelihood", pair, logit_scale=scale) for scale in (1.0, 2.0))
    assert one[0][0] != pytest.approx(other[0][0], abs=1e-4)


def test_a_profile_gives_its_scale_and_its_documents_are_left_out(tmp_path):
    (tmp_path / "best.yaml").write_text(replace(PROFILE, logit_scale=3.0, calibrated_scale=1.25).text())
    method = calibration(logit_scale=str(tmp_path / "best.yaml"))
    assert method.logit_scale == 1.25 and method.tuned_on == frozenset(PROFILE.documents)
    facts = SimpleNamespace(moe_layers=3)
    assert method.identity(facts)["logit_scale"] == 1.25 != calibration().identity(facts)["logit_scale"]
    assert method.temperatures(3) == [0.0, 0.0, 0.0]
    (tmp_path / "other.yaml").write_text(PROFILE.text())
    with pytest.raises(ConfigError, match="has not measured the scale of the base model"):
        calibration(logit_scale=str(tmp_path / "other.yaml"))
