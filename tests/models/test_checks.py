"""Breaks if a model runs with random or overflowing numbers, or a refusal does not name the parameter."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.checks import check_pass, out_of_range, without_place
from moe_lab.models.load import load_model
from tests.support.command import run_command
from tests.support.deepseek.checkpoint import SMALL, write_checkpoint
from tests.support.models import make_model, make_tokenizer


def damaged(source, folder, change):
    """A copy of a model whose tensors `change` has altered."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return ModelConfig(path=str(folder))


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop(NORM), f"lacks 1 .* {NORM}"),
        (lambda tensors: tensors.update({NORM: torch.ones(7)}), f"another shape 1 .* {NORM}"),
    ],
    ids=["missing", "another shape"],
)
def test_an_incomplete_checkpoint_is_refused(change, says, tiny_olmoe_dir, tmp_path):
    with pytest.raises(ModelError, match=says):
        load_model(
            damaged(tiny_olmoe_dir, tmp_path / "model", change), dtype="auto", device="cpu", offline=True
        )


def more_layers(tensors):
    copies = {name.replace(".layers.1.", ".layers.7."): tensor for name, tensor in tensors.items()}
    tensors.update({name: tensor.clone() for name, tensor in copies.items()})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (more_layers, r"model\.layers\.7\."),
        (lambda tensors: tensors.update({"model.layers.0.mlp.extra.weight": torch.ones(3)}), "extra"),
        (lambda tensors: tensors.update({"another.bias": torch.ones(3)}), "another.bias"),
    ],
    ids=["more layers", "one more in a layer", "one more"],
)
def test_weights_without_a_place_are_refused(change, named, tiny_olmoe_dir, tmp_path):
    """Broken by a checkpoint of more layers that is evaluated without them."""
    model = damaged(tiny_olmoe_dir, tmp_path / "model", change)
    with pytest.raises(ModelError, match=f"has .* weights that .* no place for, e.g. .*{named}"):
        load_model(model, dtype="auto", device="cpu", offline=True)


def test_what_transformers_leaves_out_on_purpose_is_no_error(tiny_olmoe_dir, tmp_path):
    """Old checkpoints hold the frequencies of positions, which are computed by now."""
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change = lambda tensors: tensors.update({name: torch.ones(4)})  # noqa: E731
    load_model(damaged(tiny_olmoe_dir, tmp_path / "model", change), dtype="auto", device="cpu", offline=True)


def test_parts_that_read_images_are_left_out_of_a_text_model():
    from transformers import Llama4Config, OlmoeConfig

    images = {"vision_model.layers.0.mlp.fc1.weight", "multi_modal_projector.linear_1.weight"}
    layer = {"language_model.model.layers.99.input_layernorm.weight"}
    assert without_place({"unexpected_keys": images | layer}, Llama4Config()) == layer
    assert without_place({"unexpected_keys": images}, OlmoeConfig()) == images


def expert(name, number=3):
    return f"model.layers.1.mlp.experts.{number}.{name}_proj.weight"


@pytest.mark.parametrize("name", ["gate", "up", "down"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors, name: tensors.pop(name), "lacks 1 .* {}"),
        (lambda tensors, name: tensors.update({name: torch.ones(7, 5)}), "another shape 1 .* {}"),
        (
            lambda tensors, name: tensors.update({name: tensors[name].t().contiguous()}),
            "another shape 1 .* {}",
        ),
    ],
    ids=["missing", "another shape", "transposed"],
)
def test_a_wrong_expert_is_named_though_it_is_fused(name, change, says, tiny_olmoe_dir, tmp_path):
    model = damaged(tiny_olmoe_dir, tmp_path / "model", lambda tensors: change(tensors, expert(name)))
    with pytest.raises(ModelError, match=says.format(expert(name))):
        load_model(model, dtype="auto", device="cpu", offline=True)


def test_an_expert_without_any_parameter_is_named(tiny_olmoe_dir, tmp_path):
    def change(tensors):
        for name in ("gate", "up", "down"):
            tensors.pop(expert(name, 7))

    model = damaged(tiny_olmoe_dir, tmp_path / "model", change)
    with pytest.raises(ModelError, match=f"lacks 3 .* {expert('down', 7)}"):
        load_model(model, dtype="auto", device="cpu", offline=True)


def test_an_expert_is_looked_for_in_all_shards(tmp_path):
    write_checkpoint(tmp_path, SMALL)
    make_tokenizer().save_pretrained(tmp_path)
    name = "model.layers.2.mlp.experts.0.up_proj.weight"
    for file in tmp_path.glob("*.safetensors"):
        tensors = load_file(file)
        tensors.pop(name, None)
        save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"lacks 1 .* {name}"):
        load_model(ModelConfig(path=str(tmp_path)), dtype="auto", device="cpu", offline=True)


def changed(source, folder, change):
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        change(name, tensor)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return ModelConfig(path=str(folder))


def scaled(factor, part=""):
    return lambda name, tensor: tensor.mul_(factor) if part in name else None


def one_row(name, tensor):
    if "embed_tokens" in name:
        tensor[7] *= 1e30


def one_nan(name, tensor):
    if name.endswith("layers.1.self_attn.o_proj.weight"):
        tensor[0, 0] = torch.nan


@pytest.mark.parametrize(
    "change",
    [
        scaled(1e30),
        scaled(1e30, "norm"),
        scaled(1e30, "embed_tokens"),
        scaled(1e30, "gate.weight"),
        scaled(1e9),
        scaled(1e12, "self_attn"),
        one_row,
        one_nan,
    ],
    ids=["all", "norms", "embeddings", "routers", "all a little", "attention", "one token", "one number"],
)
def test_overflow_is_refused_at_loading(change, tiny_olmoe_dir, tmp_path):
    model = changed(tiny_olmoe_dir, tmp_path / "model", change)
    with pytest.raises(ModelError, match="larger than 1e[+]18|no numbers") as refused:
        load_model(model, dtype="auto", device="cpu", offline=True)
    assert str(tmp_path / "model") in str(refused.value)
    assert len(str(refused.value).splitlines()) <= 3


def test_large_weights_that_do_not_overflow_are_no_error(tiny_olmoe_dir, tmp_path):
    model = changed(tiny_olmoe_dir, tmp_path / "model", scaled(1e3))
    loaded = load_model(model, dtype="auto", device="cpu", offline=True)
    assert not any(module._forward_pre_hooks for module in loaded.model.modules())


def test_the_command_ends_with_one_message(capsys, tiny_olmoe_dir, tmp_path):
    model = changed(tiny_olmoe_dir, tmp_path / "model", scaled(1e30))
    ended = run_command(
        capsys,
        *("method=base", "task=toy_choice", "limit=2", "device=cpu", "offline=true"),
        *(f"model.path={model.path}", f"output_dir={tmp_path / 'out'}"),
    )
    assert ended.code == 2 and "Traceback" not in ended.err
    assert "larger than 1e+18" in ended.err
    assert not list((tmp_path / "out").rglob("results.json"))


def test_logits_that_are_no_numbers_are_found():
    model = make_model("mixtral")
    with torch.no_grad():
        model.lm_head.weight[3] = float("inf")
    with pytest.raises(ModelError, match="no numbers"):
        check_pass(model, torch.device("cpu"), "this model")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_stored_buffer_is_checked_and_a_mask_may_be_low(value):
    """A router's selection bias is a buffer; a mask holds the lowest number and is not stored."""
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2,), torch.finfo(torch.float32).min))
    model.register_buffer("e_score_correction_bias", torch.zeros(2))
    assert out_of_range(model) is None
    model.e_score_correction_bias[1] = value
    assert out_of_range(model) == "e_score_correction_bias"
