"""Breaks if a model whose numbers overflow is evaluated: its logits may be uniform, which looks like a bad model."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.check_numbers import check_pass, out_of_range
from moe_lab.models.load import load_model
from tests.support.command import run_command
from tests.support.models import make_model


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
