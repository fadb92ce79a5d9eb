"""What is frozen stays byte for byte, through momentum and weight decay; everything else is trained."""

from __future__ import annotations

import pytest
import torch

from moe_lab import freeze
from moe_lab.errors import ConfigError, ModelError
from moe_lab.routing import find_routers
from tests.support.models import make_model

IDS = torch.arange(24).view(2, 12)


def step(model, optimizer):
    optimizer.zero_grad()
    model(IDS, labels=IDS).loss.backward()
    optimizer.step()


def test_a_frozen_router_stays_byte_for_byte():
    model = make_model("olmoe")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    step(model, optimizer)  # momentum
    routers = [router.module.weight for router in find_routers(model)]
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    with freeze(model, "router") as count:
        assert count == sum(weight.numel() for weight in routers)
        step(model, optimizer)
    same = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    assert same == {name for name, value in model.named_parameters() if any(value is w for w in routers)}
    step(model, optimizer)
    assert not torch.equal(routers[0], before["model.layers.0.mlp.gate.weight"])


def test_parameters_that_were_not_trained_stay_so():
    model = make_model("mixtral")
    model.lm_head.weight.requires_grad = False
    with pytest.raises(ZeroDivisionError), freeze(model, "experts", "router"):
        assert not find_routers(model)[0].module.weight.requires_grad
        1 / 0  # noqa: B018
    assert find_routers(model)[0].module.weight.requires_grad and not model.lm_head.weight.requires_grad


def test_groups_that_are_not_there_are_refused():
    model = make_model("olmoe")
    for groups, says in (
        (("gate",), "choose among router"),
        (("shared_experts",), "no such"),
        ((), "no group"),
    ):
        with pytest.raises(ConfigError, match=says), freeze(model, *groups):
            pass
    with pytest.raises(ModelError, match="No router was found"), freeze(make_model("llama"), "router"):
        pass
