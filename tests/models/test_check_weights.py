"""Broken by: a model that runs with random numbers where its checkpoint has none, a refusal that does not say where."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.check_weights import without_place
from moe_lab.models.load import load_model
from tests.support.deepseek.checkpoint import SMALL, write_checkpoint
from tests.support.models import make_tokenizer


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
