"""Breaks when mode=doctor miscounts memory, or calls something missing, ready or wrong that is not."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from transformers import AutoConfig

from moe_lab import needs
from moe_lab.config import Config, ModelConfig
from moe_lab.errors import ModelError
from moe_lab.memory import size_text, weight_memory
from moe_lab.methods import get_method
from moe_lab.models.hub import model_folder
from moe_lab.needs import command_needs
from tests.conftest import make_model, make_tokenizer
from tests.hub.published import PUBLISHED

INDEX = "model.safetensors.index.json"


def config_of(path, method="base", **keys):
    model = ModelConfig(name="x", path=str(path))
    return Config(
        method=get_method(method).Config(name=method), model=model, offline=True, **{"device": "cpu"} | keys
    )


@pytest.fixture
def sharded(tmp_path):
    """A local folder with an index and several shards."""
    make_model("olmoe").save_pretrained(tmp_path / "model", max_shard_size="200KB")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def text_of(*configs):
    return "\n".join(command_needs(configs))


@pytest.mark.parametrize(
    ("option", "gigabytes"),
    [("gpt-oss", 41.83), ("mixtral", 93.41), ("qwen3-moe", 61.06), ("deepseek-moe", 32.75)],
)
def test_memory_is_that_of_the_published_models(option, gigabytes, tmp_path):
    """gpt-oss-20b is stored in 13.8 GB, and dequantized as it is loaded; no file of weights is needed to know."""
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[option]))
    stored = AutoConfig.from_pretrained(tmp_path)
    assert weight_memory(stored, tmp_path, "bfloat16") / 1e9 == pytest.approx(gigabytes, abs=0.01)


def test_fp8_is_counted_as_it_runs(sharded, monkeypatch):
    """Dequantized without a GPU; where its kernels run, as stored."""
    stored = AutoConfig.from_pretrained(sharded)
    parameters = sum(parameter.numel() for parameter in make_model("olmoe").parameters())
    stored.quantization_config = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    assert weight_memory(stored, sharded, "bfloat16") == 2 * parameters
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    files = sum(file.stat().st_size for file in sharded.glob("*.safetensors"))
    assert weight_memory(stored, sharded, "bfloat16") == files
    next(sharded.glob("*.safetensors")).unlink()
    assert weight_memory(stored, sharded, "bfloat16") is None


@pytest.mark.parametrize("content", ['{"weight_map": {"a', "{}", "[]", '{"weight_map": ["a"]}', ""])
def test_a_damaged_index_is_named(content, sharded):
    (sharded / INDEX).write_text(content)
    text = text_of(config_of(sharded))
    assert "weights: DAMAGED" in text and f"{sharded / INDEX} is damaged" in text
    with pytest.raises(ModelError, match="index.json is damaged: .*\n.*[Ss]ave or copy the model again"):
        model_folder(ModelConfig(path=str(sharded)), offline=True, weights=True)


def test_an_index_without_its_sizes_is_none_that_is_damaged(sharded):
    index = json.loads((sharded / INDEX).read_text())
    (sharded / INDEX).write_text(json.dumps({"weight_map": index["weight_map"], "metadata": None}))
    assert "weights: ready" in text_of(config_of(sharded))
    next(sharded.glob("*.safetensors")).unlink()
    assert "weights: MISSING 1 of" in text_of(config_of(sharded))


def test_a_local_folder_is_not_fetched(sharded):
    shard = next(sharded.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:500])
    assert f"DAMAGED {shard.name}" in text_of(config_of(sharded))
    shard.unlink()
    text = text_of(config_of(sharded))
    assert "save or copy it again" in text and "prefetch" not in text


def test_a_device_that_is_not_there_does_not_make_the_model_missing(sharded, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = text_of(config_of(sharded, device="cuda"))
    assert "weights: ready" in text and "device: CANNOT RUN device=cuda: torch sees no GPU" in text
    assert "MISSING" not in text


def test_a_method_that_the_model_refuses_is_told(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    text = text_of(config_of(tmp_path), config_of(tmp_path, "roe"))
    assert text.count("weights: ready") == 1
    assert text.count("method roe on model x: CANNOT RUN") == 1 and "method base" not in text


def test_a_model_that_cannot_run_is_not_missing(tmp_path):
    make_model("mixtral").config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": {"quant_method": "gptq"}})
    )
    text = text_of(config_of(tmp_path, "roe"))
    assert "CANNOT RUN" in text and "gptq" in text and "MISSING" not in text


def test_equal_lines_are_printed_once(sharded, monkeypatch):
    """Cells of an experiment may differ in what these lines do not show; free memory changes all the time."""
    free = itertools.count(10**9, 10**8)
    monkeypatch.setattr(needs, "free_memory", lambda device: next(free))
    one, other = config_of(sharded), config_of(sharded)
    other.model.experts_implementation = "eager"
    text = text_of(one, other)
    assert text.count("weights: ready") == 1 and text.count("task toy_math") == 1
    assert size_text(sum(file.stat().st_size for file in sharded.glob("*.safetensors"))) in text
