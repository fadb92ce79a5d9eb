"""The keys and architectures of designs. Broken by: a default that the YAML does not have, designs of unequal parameters, a
request that cannot be trained and is accepted, one recipe with two ids, a registered class for a design that
transformers has, a model that plain transformers cannot load, or that computes something else there.
"""

from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from moe_lab.methods.pretrain.config import architecture
from moe_lab.methods.pretrain.method import Pretrain
from moe_lab.methods.pretrain.training import parameters_of
from moe_lab.models.designs.units import unit_tables
from moe_lab.models.facts import routing_facts
from tests.support.models import make_tokenizer
from tests.support.pretrainings import GRANULARITIES, design
from tests.support.runs import facts


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
    same = {"dataset": "minipile", "dataset_size": 4, "validation_rows": 5, "vocab_size": 999}
    assert design(**same, save_steps=3, tokenizer="train").recipe() == one, "data count by their content"
    others = {"experts": 16, "z_loss": 0.0, "routing_noise": 1.0, "steps": 5, "batch_size": 3, "layers": 3}
    others |= {"backbone": "deepseek", "router": "word", "sequence_length": 16, "weight_decay": 0.0}
    for key, value in others.items():
        assert design(**{key: value}).recipe() != one, key


@pytest.mark.parametrize(
    ("keys", "unread"),
    [
        ({"backbone": "dense"}, {"experts": 16, "router": "expert", "z_loss": 0.5, "routing_noise": 0.5}),
        ({}, {"capacity_factor": 2.0}),
        ({}, {"devices": 2}),
    ],
)
def test_keys_without_effect_make_no_other_recipe(keys, unread):
    """Broken by a dense model that is trained once per granularity."""
    assert design(**keys, **unread).recipe() == design(**keys).recipe()
    assert unread.keys() <= design(**keys).unread


def test_keys_with_an_effect_make_another_recipe():
    expert, devices = {"router": "expert"}, {"device_loss": 0.1}
    assert design(**expert, capacity_factor=2.0).recipe() != design(**expert).recipe()
    assert design(**devices, devices=2).recipe() != design(**devices).recipe()


def test_a_dense_model_reads_no_keys_of_experts():
    """One line of a grid over designs."""
    assert design(router="expert").reads_later_tokens
    keys = {"experts": 1, "experts_per_token": 5, "devices": 3}
    assert not design(router="expert", backbone="dense", **keys).reads_later_tokens


SIZES = {"hidden_size": 32, "layers": 3, "heads": 4, "active_size": 64}


def config_of(**keys):
    return architecture(design(**SIZES | keys), make_tokenizer())


def counted(**keys) -> dict[str, int]:
    """Parameters without those of routers."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(**keys))
    routers = sum(own.numel() for name, own in model.named_parameters() if name.endswith("gate.weight"))
    return {name: count - routers for name, count in parameters_of(model).items()}


@pytest.mark.parametrize("backbone", ("olmoe", "deepseek"))
def test_all_granularities_have_equal_parameters(backbone):
    """Total and active ones, routers aside; the dense model has the active ones, norms of queries and keys aside."""
    found = [
        counted(backbone=backbone, experts_per_token=k, experts=experts, shared_experts=shared)
        for k, experts, shared in GRANULARITIES
    ]
    assert all(each == found[0] for each in found), found
    own, norms = 4 * 32 * 32 + 2 * 32, 2 * 32 * (backbone == "olmoe")
    dense = 3 * (own + 3 * 32 * 64) + 32
    assert found[0]["active"] == dense + 3 * norms
    layers = 3 - (backbone == "deepseek")
    assert found[0]["total"] == dense + 3 * norms + layers * 3 * (3 * 32 * 64), "four times the experts"
    assert counted(backbone="dense") == {"total": dense, "active": dense}


@pytest.mark.parametrize(
    "keys, model_type",
    [
        ({}, "olmoe"),
        ({"backbone": "deepseek"}, "deepseek"),
        ({"backbone": "deepseek", "experts": 3, "experts_per_token": 1, "shared_experts": 1}, "deepseek"),
        ({"backbone": "dense"}, "llama"),
        ({"experts": 3, "experts_per_token": 1, "shared_experts": 1}, "moe_design"),
        ({"bias_rate": 0.01}, "moe_design"),
        ({"backbone": "deepseek", "bias_rate": 0.01}, "moe_design"),
        ({"router": "expert"}, "moe_design"),
        ({"router": "word"}, "moe_design"),
        ({"router": "word-hash"}, "moe_design"),
        ({"backbone": "deepseek", "router": "sentence"}, "moe_design"),
    ],
)
def test_the_plainest_class_that_has_the_design_is_taken(keys, model_type):
    config = config_of(**keys)
    assert config.model_type == model_type
    assert (config.eos_token_id, config.vocab_size) == (256, 257)
    assert config.max_position_embeddings == 2048 and not config.tie_word_embeddings
    if model_type != "llama":
        told = replace(facts(), **routing_facts(config))
        one = design(**SIZES | keys)
        assert (told.family, told.experts, told.top_k) == (model_type, one.experts, one.experts_per_token)
        assert told.moe_layers == 3 - (one.backbone == "deepseek") and told.max_length == 2048
    if model_type == "moe_design":
        assert config.router == keys.get("router", "token")
        assert config.backbone == keys.get("backbone", "olmoe")
        assert config.selection_bias == ("bias_rate" in keys)
    if model_type in ("deepseek", "moe_design"):
        assert config.is_moe_layer(0) == (keys.get("backbone") != "deepseek") and config.is_moe_layer(1)


KINDS = ({}, {"backbone": "deepseek"}, {"backbone": "dense"}, {"router": "word"})


def test_classes_differ_in_the_design_alone():
    """Broken by a default of one class (the eps of norms, say) that another lacks."""
    configs = [config_of(**keys) for keys in KINDS]
    alike = ["rms_norm_eps", "hidden_act", "initializer_range", "rope_parameters"]
    alike += ["attention_bias", "attention_dropout"]
    found = [{name: getattr(config, name) for name in alike} for config in configs]
    assert all(each == found[0] for each in found), found
    assert not any(getattr(config, "norm_topk_prob", False) for config in configs)


@pytest.mark.parametrize("keys", KINDS)
def test_the_end_token_has_a_gradient(keys):
    """Also where it pads, as torch.nn.Embedding leaves out the padding token; a token that only pads has none."""
    tokenizer = make_tokenizer()
    for padding, trained in (("<|end|>", True), ("!", False)):
        tokenizer.pad_token = padding
        config = architecture(design(**SIZES | keys), tokenizer)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        ids = torch.tensor([[5, tokenizer.pad_token_id, 1, 2, 256, 9]])
        if keys.get("router") == "word":
            model.set_units(unit_tables(tokenizer, "word"))
        model(ids, labels=ids).loss.backward()
        gradient = model.get_input_embeddings().weight.grad
        assert gradient[[1, 2, 5, 256]].abs().amax(-1).min() > 0
        assert (gradient[tokenizer.pad_token_id].abs().max() > 0) == trained


def test_every_id_of_a_tokenizer_has_an_embedding():
    """Also behind a gap in the ids, where the number of tokens is less than the highest id."""
    words = Tokenizer(models.WordLevel({"a": 0, "b": 3, "<end>": 7}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    assert len(tokenizer) == 3
    assert architecture(design(), tokenizer).vocab_size == 8
    assert config_of().vocab_size == len(make_tokenizer()) == 257


def test_a_long_row_has_positions():
    assert config_of(sequence_length=5000).max_position_embeddings == 5000
