"""Broken by: a design that does not exist but is built, or a setting that has no effect but is taken."""

from __future__ import annotations

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.source import load_config
from tests.support.designs import COMMON


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(router="tokens"), "router=tokens: choose one of token, expert, word, sentence"),
        (dict(backbone="mixtral"), "backbone=mixtral: choose one of olmoe, deepseek"),
        (dict(num_experts_per_tok=6), "num_experts_per_tok=6: a token takes 1 to n_routed_experts=5"),
        (dict(num_experts_per_tok=0), "num_experts_per_tok=0"),
        (dict(first_k_dense_replace=1), "every layer of the backbone olmoe has experts"),
        (dict(moe_layer_freq=2), "every layer of the backbone olmoe has experts"),
        (dict(router="expert", selection_bias=True), "selection_bias=true: .*nothing to balance"),
        (dict(router="expert", capacity_factor=0), "capacity_factor=0: must be above 0"),
        (dict(scoring_func="sigmoid"), "scoring_func=sigmoid"),
        (dict(n_routed_experts=None), "n_routed_experts=null"),
    ],
)
def test_a_design_that_does_not_exist_is_refused(changes, says, tmp_path):
    with pytest.raises(Exception, match=says):
        MoeDesignConfig(**COMMON | changes)
    config = MoeDesignConfig(**COMMON)
    for key, value in changes.items():
        object.__setattr__(config, key, value)
    config.to_json_file(tmp_path / "config.json")
    with pytest.raises(ModelError, match=says):
        load_config(ModelConfig(path=str(tmp_path)), offline=True)


def test_a_configuration_comes_back(tmp_path):
    config = MoeDesignConfig(
        **COMMON, backbone="deepseek", router="word", first_k_dense_replace=2, clip_qkv=8
    )
    config.save_pretrained(tmp_path)
    again = load_config(ModelConfig(path=str(tmp_path)), offline=True)
    assert type(again) is MoeDesignConfig
    kept = ("backbone", "router", "selection_bias", "clip_qkv", "first_k_dense_replace", "capacity_factor")
    assert [getattr(again, key) for key in kept] == ["deepseek", "word", False, 8, 2, 1.0]
    assert again.layer_types == ["hybrid"] * 3
    assert MoeDesignConfig(**COMMON).layer_types is None


def test_expert_choice_has_no_cache():
    assert MoeDesignConfig(**COMMON).use_cache and not MoeDesignConfig(**COMMON, router="expert").use_cache
