"""Breaks if an unusual but valid model ends in an error of torch, or an impossible
one in more than a message."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import moe_lab
from moe_lab.errors import ConfigError
from moe_lab.models.experts import avoid_grouped_products
from tests.support.command import run_command
from tests.support.families import COMMON, ZOO
from tests.support.models import build, load_folder, make_model, save_model

IDS = torch.arange(40)[None] * 7 % 300


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_whose_width_grouped_products_refuse_run(dtype, tmp_path):
    """22 numbers are 88 bytes in float32 and 44 in bfloat16: no multiple of 16."""
    save_model(make_model("olmoe", intermediate_size=22), tmp_path)
    loaded = load_folder(tmp_path, dtype=dtype).model
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=dtype, experts_implementation="eager"
    )
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_the_input_of_transposed_experts_has_the_width():
    """GPT-OSS keeps its experts' weights as [experts, in, out]; 12 numbers
    have 24 bytes in bfloat16."""
    model = build("gpt_oss", COMMON | ZOO["gpt_oss"] | {"intermediate_size": 12}).to(torch.bfloat16)
    model.set_experts_implementation("grouped_mm")
    avoid_grouped_products(model)
    assert model.config._experts_implementation == "eager"
    with torch.no_grad():
        model(IDS)


@pytest.mark.parametrize("model_type", ["granitemoehybrid", "lfm2_moe", "qwen3_next"])
def test_widths_of_convolutions_are_those_of_no_expert(model_type):
    """Their weights have three dimensions, too, and rows of 3 or 4 numbers."""
    model = build(model_type, COMMON | ZOO[model_type]).to(torch.bfloat16)
    model.set_experts_implementation("grouped_mm")
    avoid_grouped_products(model, given="grouped_mm")
    assert model.config._experts_implementation == "grouped_mm"


def test_an_implementation_that_refuses_the_width_is_refused_by_its_key(tmp_path, capsys):
    save_model(make_model("olmoe", intermediate_size=22), tmp_path)
    line = (
        f"method=base model=olmoe model.path={tmp_path} "
        "model.experts_implementation=grouped_mm task=toy_choice"
    )
    ended = run_command(capsys, *line.split(), "limit=2", f"output_dir={tmp_path}/out")
    assert ended.code == 2, ended.err
    assert "model.experts_implementation=grouped_mm needs rows" in ended.err, ended.err


def test_a_pretraining_of_such_a_width_runs(tmp_path, capsys):
    keys = (
        "layers=2 hidden_size=32 heads=4 active_size=44 experts=4 experts_per_token=2 steps=2 "
        "save_steps=2"
    )
    keys += " sequence_length=32 batch_size=2 validation_rows=2 dataset=toy"
    line = f"method=pretrain model=tiny task=toy_choice limit=2 output_dir={tmp_path}"
    ended = run_command(capsys, *line.split(), *(f"method.{key}" for key in keys.split()))
    assert ended.code == 0, ended.err


def test_a_model_that_reads_no_token_is_refused(tiny_olmoe_dir, tmp_path, capsys):
    for file in tiny_olmoe_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 0}))
    line = (
        f"method=base model=olmoe model.path={tmp_path} task=toy_choice limit=2 "
        f"output_dir={tmp_path}/out"
    )
    ended = run_command(capsys, *line.split())
    assert ended.code == 2
    assert "max_position_embeddings=0" in ended.err
    assert "Traceback" not in ended.err


def test_numbers_of_numpy_are_values_of_keys(tmp_path):
    keys = {
        "method": "base",
        "model": "tiny",
        "task": "toy_choice",
        "output_dir": tmp_path,
        "quiet": True,
    }
    own_results = moe_lab.run(seed=3, limit=2, **keys)
    numpy = moe_lab.run(seed=np.int64(3), limit=np.int32(2), **keys)
    assert [result["moe_lab"]["run_id"] for result in own_results] == [
        result["moe_lab"]["run_id"] for result in numpy
    ]
    with pytest.raises(ConfigError, match="takes numbers, texts, lists"):
        moe_lab.run(limit=object(), **keys)
