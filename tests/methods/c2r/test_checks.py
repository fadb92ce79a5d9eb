"""What a constraint needs of a model. Broken by: too few or too many partners, counts of another model, groups of experts."""

from __future__ import annotations

import pytest
import torch

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.c2r.checks import check_groups, check_partners, check_profile
from tests.support.models import small_model
from tests.support.runs import facts


def test_each_expert_has_as_many_partners_as_a_token_needs_and_there_are():
    for count in (facts().top_k - 1, facts().experts - 1):
        check_partners(count, facts())
    for count in (facts().top_k - 2, facts().experts):
        with pytest.raises(ConfigError, match=f"method.partners={count}: this model takes"):
            check_partners(count, facts())


def test_counts_have_the_models_layers_and_experts():
    layers, experts = facts().moe_layers, facts().experts
    check_profile("x", torch.zeros(layers, experts, experts), facts())
    with pytest.raises(ConfigError, match="method.profile=x is of another model"):
        check_profile("x", torch.zeros(layers - 1, experts, experts), facts())


def test_a_model_that_chooses_within_groups_is_refused(tmp_path):
    for family, groups in (("olmoe", None), ("deepseek_v3", 2)):
        architecture = small_model(family).config
        if groups is not None:
            architecture.n_group = groups
        architecture.save_pretrained(tmp_path / family)
        config = Config(
            method=get_method("c2r").Config(name="c2r"), model=ModelConfig(path=str(tmp_path / family))
        )
        if groups is None:
            check_groups(config, facts())
        else:
            with pytest.raises(ConfigError, match="method=c2r: .* chooses experts within groups"):
                check_groups(config, facts())
