"""Schedules and rates. Broken by: a schedule that switches elsewhere than at half, a learning rate that does not follow it,
bad phases that are accepted.

Broken by: a family whose routers, experts or shared experts are not found, or another parameter taken for one.
"""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, get_scheduler

from moe_lab.methods.finetune_freeze.config import (
    SCHEDULES,
    FinetuneConfig,
    Phase,
    boundaries,
    label,
    phase_at,
    phases_of,
)
from moe_lab.methods.finetune_freeze.parameter_groups import counts, empty_model, parameter_groups
from moe_lab.methods.finetune_freeze.trainer import rate
from tests.support.families import ZOO
from tests.support.models import small_config
from tests.support.tiers import by_family
from tests.support.trainings import names_by_group


def test_the_papers_nine_schedules_have_their_halves():
    assert len(SCHEDULES) == 9
    labels = {label(phases_of(name)) for name in SCHEDULES}
    assert labels == {f"{first}→{second}" for first in "NRE" for second in "NRE"}
    assert phases_of("none-router") == (Phase(frozen=(), until=0.5), Phase(frozen=("router",), until=1.0))


@pytest.mark.parametrize(
    "about",
    [{"router_lr": 1e-4}, {"router_aux_loss_coef": 0.01}, {"partners": 2}, {"schedule": "router"}],
    ids=str,
)
def test_one_key_about_routers_or_experts_needs_a_model_that_has_them(about):
    assert FinetuneConfig(schedule="none").names_no_router
    assert not FinetuneConfig(**{"schedule": "none"} | about).names_no_router


def test_listed_phases_win_and_are_the_same_as_a_name_for_them():
    listed = [{"frozen": [], "until": 0.5}, {"frozen": ["router"], "until": 1}]
    assert phases_of("experts", listed) == phases_of("none-router")
    three = phases_of("none", [{"frozen": ["router", "experts"], "until": 0.25, "lr": 1e-3}, *listed])
    assert three[0] == Phase(frozen=("experts", "router"), until=0.25, lr=1e-3)
    assert label(three) == "ER 25%→N 50%→R 100%"


def test_the_switch_is_at_half_of_the_steps_rounded_down():
    phases = phases_of("none-router")
    assert boundaries(phases, 10) == [5, 10] and boundaries(phases, 7) == [3, 7]
    assert [phase_at([3, 7], step) for step in range(8)] == [0, 0, 0, 1, 1, 1, 1, 1]
    thirds = phases_of("none", [{"frozen": [], "until": share} for share in (0.1, 0.7, 1.0)])
    assert boundaries(thirds, 10) == [1, 7, 10], "0.7 * 10 is below 7 in floating point"


def test_the_rate_is_the_linear_one_of_transformers():
    recipe = FinetuneConfig(epochs=1, warmup_ratio=0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_scheduler("linear", optimizer, 4, 40).lr_lambdas[0]
    assert [rate(recipe, 160, step) for step in range(41)] == pytest.approx(list(map(theirs, range(41))))


def test_a_phases_own_rate_holds_in_it_and_the_routers_everywhere():
    phases = [{"frozen": [], "until": 0.5}, {"frozen": [], "until": 1.0, "lr": 1e-4}]
    recipe = FinetuneConfig(phases=phases, learning_rate=1e-3, router_lr=1e-5, epochs=1)
    plain = FinetuneConfig(learning_rate=1e-3, epochs=1)
    assert rate(recipe, 40, 4) == rate(plain, 40, 4)
    assert rate(recipe, 40, 6) == pytest.approx(rate(plain, 40, 6) / 10)
    routers = [rate(recipe, 40, step, router=True) for step in range(10)]
    assert routers == [rate(plain, 40, step) for step in range(10)]


def test_steps_count_smaller_ones_at_the_end_of_an_epoch():
    assert FinetuneConfig(epochs=3, batch_size=1, gradient_accumulation=4).steps(9) == 9
    assert FinetuneConfig(epochs=3, max_steps=5).steps(9) == 5


def test_shared_experts_are_a_group_of_their_own():
    phases = [{"frozen": ["experts", "shared_experts"], "until": 0.5}, {"frozen": ["router"], "until": 1.0}]
    assert label(phases_of("none", phases)) == "ES→R"


TABLE = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
SHARED = {
    line.split(" | ")[1].strip("`")
    for line in TABLE.splitlines()
    if line.startswith("| ") and line.split(" | ")[4:5] == ["yes"]
}
"""Types of models with shared experts."""


@pytest.mark.parametrize("model_type", by_family(ZOO))
def test_every_parameter_is_in_one_group_and_the_groups_are_what_they_say(model_type):
    model = empty_model(small_config(model_type))
    groups = parameter_groups(model)
    every = [id(parameter) for group in groups.values() for parameter in group]
    assert sorted(every) == sorted(map(id, model.parameters()))
    assert {parameter.shape[0] for parameter in groups["experts"]} <= {8, 10, 8 * 24}, "one slice per expert"
    names = names_by_group(model)
    routers, experts = names["router"], names["experts"]
    assert not any("shared" in name or "attn" in name for name in routers | experts)
    parameters = model.named_parameters()
    wide = {name for name, own in parameters if own.dim() == 3 and ".experts." in name}
    assert wide <= experts | {name for name in wide if "self_attention" in name}, "JetMoE's attention"
    assert counts(groups)["router"] < counts(groups)["experts"]
    shared = {name for name, _ in model.named_parameters() if "shared" in name}
    assert names["shared_experts"] == shared
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
        names = names_by_group(model)
        for group, wanted in (("router", router), ("experts", experts)):
            expected = {f"model.layers.{layer}.mlp.{name}" for layer in range(4) for name in wanted}
            assert names[group] == expected


def test_a_dense_model_is_one_group():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = empty_model(LlamaConfig(vocab_size=30, **sizes))
    other = sum(parameter.numel() for parameter in model.parameters())
    assert counts(parameter_groups(model)) == {"router": 0, "experts": 0, "shared_experts": 0, "other": other}
