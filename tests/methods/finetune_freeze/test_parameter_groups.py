"""Broken by: a family whose routers, experts or shared experts are not found, or another parameter taken for one."""

from pathlib import Path

import pytest
from transformers import LlamaConfig

from moe_lab.methods.finetune_freeze.parameter_groups import counts, empty_model, parameter_groups
from tests.support.families import ZOO
from tests.support.models import small_config
from tests.support.tiers import by_family

TABLE = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
SHARED = {
    line.split(" | ")[1].strip("`")
    for line in TABLE.splitlines()
    if line.startswith("| ") and line.split(" | ")[4:5] == ["yes"]
}
"""Types of models with shared experts."""


def names_of(model, group) -> set[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in group}


@pytest.mark.parametrize("model_type", by_family(ZOO))
def test_every_parameter_is_in_one_group_and_the_groups_are_what_they_say(model_type):
    model = empty_model(small_config(model_type))
    groups = parameter_groups(model)
    every = [id(parameter) for group in groups.values() for parameter in group]
    assert sorted(every) == sorted(map(id, model.parameters()))
    assert {parameter.shape[0] for parameter in groups["experts"]} <= {8, 10, 8 * 24}, "one slice per expert"
    routers, experts = names_of(model, groups["router"]), names_of(model, groups["experts"])
    assert not any("shared" in name or "attn" in name for name in routers | experts)
    wide = {
        name for name, parameter in model.named_parameters() if parameter.dim() == 3 and ".experts." in name
    }
    assert wide <= experts | {name for name in wide if "self_attention" in name}, (
        "JetMoE's attention has some, too"
    )
    assert counts(groups)["router"] < counts(groups)["experts"]
    shared = {name for name in names_of(model, model.parameters()) if "shared" in name}
    assert names_of(model, groups["shared_experts"]) == shared
    assert bool(shared) == (model_type in SHARED), "as docs/models.md says"


def test_the_names_of_olmoe_and_gpt_oss_are_exactly_these():
    for model_type, router, experts in (
        ("olmoe", {"gate.weight"}, {"experts.gate_up_proj", "experts.down_proj"}),
        (
            "gpt_oss",
            {"router.weight", "router.bias"},
            {f"experts.{half}_proj{end}" for half in ("gate_up", "down") for end in ("", "_bias")},
        ),
    ):
        model = empty_model(small_config(model_type))
        groups = parameter_groups(model)
        for group, wanted in (("router", router), ("experts", experts)):
            expected = {f"model.layers.{layer}.mlp.{name}" for layer in range(4) for name in wanted}
            assert names_of(model, groups[group]) == expected


def test_a_dense_model_is_one_group():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = empty_model(LlamaConfig(vocab_size=30, **sizes))
    other = sum(parameter.numel() for parameter in model.parameters())
    assert counts(parameter_groups(model)) == {"router": 0, "experts": 0, "shared_experts": 0, "other": other}
