"""Breaks when mode=doctor miscounts memory, that of a training too, or calls something missing, ready or wrong that is not."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig

from moe_lab.cli import doctor as needs
from moe_lab.cli.doctor import command_needs
from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ModelError
from moe_lab.methods import get_method
from moe_lab.models.facts import model_facts
from moe_lab.models.memory import size_text, weight_memory
from moe_lab.models.source import model_folder
from tests.support.hub.published import PUBLISHED
from tests.support.models import make_model, make_tokenizer

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
    [
        ("gpt-oss", 41.83),
        ("mixtral", 93.41),
        ("qwen3-moe", 61.06),
        ("deepseek-moe", 32.75),
        ("granite-moe-1b", 2.67),
    ],
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


@pytest.mark.slow
@pytest.mark.parametrize("content", ['{"weight_map": {"a', "{}", "[]", '{"weight_map": ["a"]}', ""])
def test_a_damaged_index_is_named(content, sharded):
    (sharded / INDEX).write_text(content)
    text = text_of(config_of(sharded))
    assert "weights: DAMAGED" in text and f"{sharded / INDEX} is damaged" in text
    with pytest.raises(ModelError, match="index.json is damaged: .*\n.*[Ss]ave or copy the model again"):
        model_folder(ModelConfig(path=str(sharded)), offline=True, weights=True)


@pytest.mark.slow
def test_an_index_without_its_sizes_is_none_that_is_damaged(sharded):
    index = json.loads((sharded / INDEX).read_text())
    (sharded / INDEX).write_text(json.dumps({"weight_map": index["weight_map"], "metadata": None}))
    assert "weights: ready" in text_of(config_of(sharded))
    next(sharded.glob("*.safetensors")).unlink()
    assert "weights: MISSING 1 of" in text_of(config_of(sharded))


@pytest.mark.slow
def test_a_local_folder_is_not_fetched(sharded):
    shard = next(sharded.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:500])
    assert f"DAMAGED {shard.name}" in text_of(config_of(sharded))
    shard.unlink()
    text = text_of(config_of(sharded))
    assert "save or copy it again" in text and "prefetch" not in text


def test_a_pretraining_needs_the_tokenizer_alone(sharded):
    text = text_of(config_of(sharded, "pretrain"))
    assert "of which the tokenizer is read" in text and "weights: ready" not in text
    assert "training by pretrain" in text
    assert "weights: ready" in text_of(config_of(sharded, "pretrain"), config_of(sharded))


def test_a_device_that_is_not_there_does_not_make_the_model_missing(sharded, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = text_of(config_of(sharded, device="cuda"))
    assert "weights: ready" in text and "device: CANNOT RUN device=cuda: torch sees no GPU" in text
    assert "MISSING" not in text


@pytest.mark.slow
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


@pytest.fixture
def half_precision(tmp_path):
    """A local folder with bfloat16 weights, and the parameters of its routers, its experts and all."""
    model = make_model("olmoe").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    make_tokenizer().save_pretrained(tmp_path / "half")
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    routers = sum(count for name, count in counts.items() if "mlp.gate." in name)
    experts = sum(count for name, count in counts.items() if "mlp.experts." in name)
    assert routers and experts
    return tmp_path / "half", routers, experts, sum(counts.values())


def training_config(path, **keys):
    config = config_of(path, "finetune-freeze", output_dir=str(path.parent / "outputs"))
    return replace(config, method=replace(config.method, dataset_size=8, validation_size=0, **keys))


def planned(config):
    """The bytes that the method plans for its training."""
    facts = model_facts(config.model, dtype=config.dtype, device=config.device, offline=True)
    return get_method("finetune-freeze")(config.method).training_memory(config, facts)


@pytest.mark.slow
def test_the_memory_of_a_training_is_that_of_its_largest_phase(half_precision):
    """Float32 weights, whatever is stored, 12 bytes more for each parameter that the phase trains, and its passes."""
    path, routers, experts, every = half_precision
    trained = {
        "none": every,
        "router": every - routers,
        "experts": every - experts,
        "router-experts": every - min(routers, experts),
        "experts-none": every,
    }
    for schedule, most in trained.items():
        config = training_config(path, schedule=schedule, compare_with_full=False)
        text = text_of(config)
        size = planned(config)
        assert 4 * every + 12 * most < size
        assert f"training by finetune-freeze, model x: takes {size_text(size)} at most" in text
        assert text.count("training ") == 1 and "NOT ENOUGH" not in text
    assert "training " not in text_of(config_of(path, "roe"))


@pytest.mark.slow
def test_a_training_that_does_not_fit_is_told_with_those_it_is_compared_with(half_precision, monkeypatch):
    path, *_ = half_precision
    config = training_config(path, schedule="experts")
    own = planned(config)
    monkeypatch.setattr(needs, "free_memory", lambda device: own)
    lines = {line.split(",")[0]: line for line in command_needs([config, replace(config, seed=1)])}
    assert "NOT ENOUGH" not in lines["training by finetune-freeze"]
    full = lines["training of full_fine_tuning to compare with"]
    size = planned(training_config(path))
    assert f"takes {size_text(size)} at most, {size_text(own)} are free on cpu NOT ENOUGH" in full
    assert "method.schedule=experts method.compare_with_full=false" in full and "docs/finetuning.md" in full
    for alone in (replace(config, baseline=False), replace(config, predict_only=True)):
        assert "full_fine_tuning" not in text_of(alone)


def test_a_training_that_is_stored_needs_no_memory(half_precision):
    config = training_config(half_precision[0], schedule="experts")
    method = get_method("finetune-freeze")(config.method)
    facts = model_facts(config.model, dtype="auto", device="cpu", offline=True)
    trained = method.trained(config, facts)
    (trained.folder / "model").mkdir(parents=True)
    (trained.folder / "training.json").write_text(json.dumps({"id": trained.id}))
    text = text_of(config)
    assert "training by finetune-freeze" not in text and "training of full_fine_tuning" in text


def test_a_device_that_is_not_there_has_no_memory_for_a_training(half_precision, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    text = text_of(replace(training_config(half_precision[0]), device="cuda"))
    assert "device: CANNOT RUN" in text and "training " not in text


@pytest.mark.slow
def test_equal_lines_are_printed_once(sharded, monkeypatch):
    """Cells of an experiment may differ in what these lines do not show; free memory changes all the time."""
    free = itertools.count(10**9, 10**8)
    monkeypatch.setattr(needs, "free_memory", lambda device: next(free))
    one, other = config_of(sharded), config_of(sharded)
    other.model.experts_implementation = "eager"
    text = text_of(one, other)
    assert text.count("weights: ready") == 1 and text.count("task toy_math") == 1
    assert size_text(sum(file.stat().st_size for file in sharded.glob("*.safetensors"))) in text
