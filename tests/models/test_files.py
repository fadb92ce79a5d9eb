"""Breaks if what a model's small files hold ends in an error of a library."""

from __future__ import annotations

import json
import shutil

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.checks import check_vocabulary
from moe_lab.models.load import load_model
from moe_lab.models.tokenizer import load_tokenizer
from tests.support.models import make_model, make_tokenizer


@pytest.fixture
def folder(tiny_olmoe_dir, tmp_path):
    shutil.copytree(tiny_olmoe_dir, tmp_path / "model")
    return tmp_path / "model"


def change(file, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"a": '])
def test_a_file_that_is_no_mapping_is_named(folder, file, content):
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=str(folder)):
        load_model(ModelConfig(path=str(folder)), dtype="auto", device="cpu", offline=True)


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": "x"},
        {"dtype": "float7"},
        {"num_key_value_heads": 0},
        {"rope_parameters": {"rope_theta": "x"}},
        {"transformers_weights": "../other.safetensors"},
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(folder, values):
    change(folder / "config.json", **values)
    with pytest.raises(ModelError, match=str(folder)):
        load_model(ModelConfig(path=str(folder)), dtype="auto", device="cpu", offline=True)


@pytest.mark.parametrize(
    "values",
    [{"max_new_tokens": "x"}, {"guidance_scale": 2.0}],
)
def test_generation_settings_that_cannot_be_used_are_named(folder, values):
    change(folder / "generation_config.json", **values)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        load_model(ModelConfig(path=str(folder)), dtype="auto", device="cpu", offline=True)


def test_a_tokenizer_that_cannot_be_read_is_named(folder):
    change(folder / "tokenizer.json", normalizer={"type": "Nothing"})
    with pytest.raises(ModelError, match=f"tokenizer of {folder} .* cannot be read"):
        load_tokenizer(ModelConfig(path=str(folder)), offline=True)


def test_a_tokenizer_of_another_model_is_refused():
    tokenizer = make_tokenizer()
    check_vocabulary(tokenizer, make_model("olmoe"), "mine")
    with pytest.raises(ModelError, match="embeddings of 20 tokens"):
        check_vocabulary(tokenizer, make_model("olmoe", vocab_size=20, pad_token_id=0), "mine")
