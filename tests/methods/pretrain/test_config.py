"""The keys. Broken by: a default that the YAML does not have, a design of other active or total parameters, a request that
cannot be trained and is accepted, two recipes that are one and have two ids.
"""

from __future__ import annotations

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods.pretrain.method import Pretrain
from tests.support.pretrainings import GRANULARITIES, design

"""Experts per token, routed experts, shared experts: the paper's eight."""


def test_the_yaml_holds_the_defaults():
    from omegaconf import OmegaConf

    from moe_lab.config.paths import resource_folder

    assert OmegaConf.load(resource_folder("conf") / "method" / "pretrain.yaml") == vars(Pretrain.Config())


@pytest.mark.parametrize("k, experts, shared", GRANULARITIES)
def test_all_granularities_have_equal_experts_in_sum(k, experts, shared):
    """The default width divides by all of them, and the label is the paper's."""
    one = Pretrain.Config(experts=experts, experts_per_token=k, shared_experts=shared)
    assert one.expert_size * (k + shared) == one.active_size == 256
    assert one.expert_size * (experts + shared) == 4 * 256
    assert one.label == f"{k}/{experts}" + "+1" * shared


def test_steps_batches_and_passes_make_rows():
    one = design(steps=3, batch_size=5, gradient_accumulation=7)
    assert one.rows == 105 and design(steps=100, warmup_ratio=0.051).warmup_steps == 6
    assert design(warmup_ratio=0.0).warmup_steps == 0


@pytest.mark.parametrize(
    "keys, coefficient",
    [
        ({}, 0.1),
        ({"aux_loss": 0.0}, 0.0),
        ({"aux_loss": 0.3, "bias_rate": 0.1}, 0.3),
        ({"bias_rate": 0.1}, 0.0),
        ({"router": "expert"}, 0.0),
        ({"router": "word"}, 0.1),
        ({"router": "word-hash"}, 0.0),
    ],
)
def test_the_balancing_loss_is_left_out_where_something_else_balances(keys, coefficient):
    one = design(**keys)
    assert one.auxiliary == coefficient and one.recipe()["aux_loss"] == coefficient


@pytest.mark.parametrize(
    "keys, label, regularizers",
    [
        ({}, "2/8", "auxiliary loss + z-loss"),
        (
            {"experts": 7, "experts_per_token": 1, "shared_experts": 1, "z_loss": 0.0},
            "1/7+1",
            "auxiliary loss",
        ),
        ({"bias_rate": 0.1}, "2/8", "z-loss + bias"),
        ({"aux_loss": 0.0, "z_loss": 0.0, "device_loss": 0.1}, "2/8", "device loss"),
        ({"router": "expert", "z_loss": 0.0}, "2/8", "-"),
        ({"backbone": "dense"}, "dense", "-"),
    ],
)
def test_a_design_is_named(keys, label, regularizers):
    assert (design(**keys).label, design(**keys).regularizers) == (label, regularizers)


def test_a_recipe_has_what_determines_the_weights_and_no_more():
    one = design().recipe()
    assert design(aux_loss=0.1).recipe() == one, "a default and its value are one recipe"
    same = {
        "save_steps": 3,
        "dataset": "minipile",
        "dataset_size": 4,
        "validation_rows": 5,
        "vocab_size": 999,
    }
    assert design(**same, tokenizer="train").recipe() == one, "data and tokenizer count by their content"
    others = {"experts": 16, "z_loss": 0.0, "routing_noise": 1.0, "steps": 5, "batch_size": 3, "layers": 3}
    others |= {"backbone": "deepseek", "router": "word", "sequence_length": 16, "weight_decay": 0.0}
    for key, value in others.items():
        assert design(**{key: value}).recipe() != one, key


@pytest.mark.parametrize(
    "keys, told",
    [
        ({"experts": 2, "experts_per_token": 3}, "method.experts=2 is fewer than method.experts_per_token=3"),
        (
            {"experts_per_token": 3},
            "method.active_size=32 does not divide by the 3 experts that a token takes",
        ),
        ({"shared_experts": 1}, "does not divide by the 3 experts"),
        ({"backbone": "deepseek", "layers": 1}, "method.layers=1 leaves no experts"),
        ({"hidden_size": 36}, "method.hidden_size=36 must be a multiple of 2 x method.heads=4"),
        ({"hidden_size": 20}, "method.hidden_size=20 must be"),
        ({"router": "expert", "capacity_factor": 0.3}, "an expert would take 0.90 tokens of a row of 12"),
        ({"router": "expert", "aux_loss": 0.1}, "router=expert balances the load by itself"),
        ({"router": "expert", "bias_rate": 0.1}, "router=expert balances the load by itself"),
        ({"router": "expert", "device_loss": 0.1}, "router=expert balances the load by itself"),
        ({"router": "expert", "routing_noise": 1.0}, "method.routing_noise needs router=token"),
        ({"router": "word", "routing_noise": 1.0}, "method.routing_noise needs router=token"),
        ({"router": "word-hash", "bias_rate": 0.1}, "router=word-hash has nothing to learn"),
        ({"router": "word-hash", "aux_loss": 0.1}, "router=word-hash has nothing to learn"),
        ({"device_loss": 0.1, "devices": 3}, "method.experts=8 does not divide by method.devices=3"),
        ({"vocab_size": 256}, "method.vocab_size=256"),
        ({"warmup_ratio": 1.0}, "method.warmup_ratio=1.0: must be below 1"),
        ({"capacity_factor": 0.0}, "method.capacity_factor=0.0"),
        ({"learning_rate": 0.0}, "method.learning_rate=0.0"),
        ({"sequence_length": 1}, "method.sequence_length=1"),
        ({"validation_rows": 1}, "method.validation_rows=1"),
        ({"validation_rows": 0}, "method.validation_rows=0"),
        ({"aux_loss": -0.1}, "method.aux_loss=-0.1"),
        ({"bias_rate": -0.1}, "method.bias_rate=-0.1"),
        ({"routing_noise": -1.0}, "method.routing_noise=-1.0"),
        ({"z_loss": float("nan")}, "method.z_loss"),
        ({"learning_rate": float("inf")}, "method.learning_rate"),
        ({"dataset_size": 0}, "method.dataset_size=0"),
        ({"steps": 0}, "method.steps=0"),
    ],
)
def test_an_impossible_design_is_named(keys, told):
    with pytest.raises(ConfigError) as error:
        design(**keys)
    assert told in str(error.value)


def test_a_whole_token_is_capacity_enough():
    assert design(router="expert", sequence_length=4, capacity_factor=1.0).capacity_factor == 1.0


def test_a_dense_model_needs_no_experts():
    """One line of a grid over designs: their keys are not read."""
    assert design(backbone="dense", experts=1, experts_per_token=5, devices=3).backbone == "dense"


@pytest.mark.parametrize(
    ("keys", "others"),
    [
        ({"backbone": "dense"}, {"experts": 16, "router": "expert", "z_loss": 0.5, "routing_noise": 0.5}),
        ({}, {"capacity_factor": 2.0}),
        ({}, {"devices": 2}),
        ({}, {"routing_noise_schedule": "linear"}),
    ],
)
def test_keys_without_effect_make_no_other_recipe(keys, others):
    """Broken by a dense model that is trained once per granularity."""
    assert design(**keys, **others).recipe() == design(**keys).recipe()
    assert others.keys() <= design(**keys).unread


@pytest.mark.parametrize(
    "keys",
    [
        {"router": "expert", "capacity_factor": 2.0},
        {"device_loss": 0.1, "devices": 2},
        {"routing_noise": 0.5, "routing_noise_schedule": "linear"},
        {"z_loss": 0.5},
    ],
)
def test_keys_with_an_effect_make_another_recipe(keys):
    last = list(keys)[-1]
    assert design(**keys).recipe() != design(**{name: keys[name] for name in keys if name != last}).recipe()


def test_a_dense_model_reads_no_later_tokens():
    assert design(router="expert").reads_later_tokens
    assert not design(router="expert", backbone="dense").reads_later_tokens
