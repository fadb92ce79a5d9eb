"""Breaks when resuming changes the weights, or a key of the recipe is missing from the id."""

import json
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    OlmoeConfig,
    get_cosine_schedule_with_warmup,
)

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.methods import trainer as training
from moe_lab.methods.pretrain_tiny import PretrainTiny, ToyRows
from moe_lab.models.source import TINY
from tests.support.trainings import interrupted

RECIPE = {"steps": 6, "warmup_steps": 2, "cooldown_steps": 2, "save_steps": 2}
RECIPE |= {"batch_size": 2, "sequence_length": 32}


@pytest.fixture(scope="module")
def architecture(tmp_path_factory) -> Path:
    """A folder with a miniature OLMoE config and the tiny model's tokenizer, without weights."""
    folder = tmp_path_factory.mktemp("mini model")
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    tokenizer.save_pretrained(folder)
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "eos_token_id": 0, "pad_token_id": 0}
    OlmoeConfig(vocab_size=len(tokenizer), **sizes, **experts).save_pretrained(folder)
    return folder


def train(architecture: Path, output: Path, *, seed: int = 0, **recipe: object) -> Path:
    method = PretrainTiny.Config(**{**RECIPE, **recipe})
    model = ModelConfig(name="mini", path=str(architecture))
    config = Config(model=model, method=method, seed=seed, output_dir=str(output), device="cpu")
    return PretrainTiny(method).train(config)


@pytest.mark.slow
def test_a_resumed_training_gives_the_same_weights(architecture, tmp_path, monkeypatch, capsys):
    whole, rows_read, read_row = train(architecture, tmp_path / "whole"), [], ToyRows.__getitem__
    with interrupted(5):
        train(architecture, tmp_path / "resumed")

    def noted(rows, index):
        rows_read.append(index)
        return read_row(rows, index)

    monkeypatch.setattr(ToyRows, "__getitem__", noted)
    assert "continuing at" not in capsys.readouterr().err
    resumed = train(architecture, tmp_path / "resumed")
    assert f"{resumed.name}: training, continuing at step 4 of 6\n" in capsys.readouterr().err
    assert rows_read == [8, 9, 10, 11]
    one, other = (folder / "model" / "model.safetensors" for folder in (whole, resumed))
    assert one.read_bytes() == other.read_bytes()
    logs = [(folder / "log.jsonl").read_text().count('"loss"') for folder in (whole, resumed)]
    assert logs[0] == logs[1]


def test_what_is_written_is_a_plain_model_with_its_record(architecture, tmp_path):
    folder = train(architecture, tmp_path)
    assert folder.name.startswith("mini-pretrain-tiny-")
    assert not (folder / "status.json").exists()
    assert json.loads((folder / "training.json").read_text())["recipe"]["steps"] == 6
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    assert model.config.num_experts == 4 and model.config.output_router_logits is False
    assert model.config.use_cache is True
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.slow
def test_a_finished_training_is_returned_to_its_recipe_alone(architecture, tmp_path, monkeypatch):
    first = train(architecture, tmp_path)
    others = {train(architecture, tmp_path, steps=7), train(architecture, tmp_path, seed=1)}
    assert len({first, *others}) == 3
    monkeypatch.setattr(training, "fit", None)
    assert train(architecture, tmp_path) == first
    assert train(architecture, tmp_path, save_steps=5) == first


def test_the_rate_is_transformers_cosine_schedule_and_falls_to_zero_in_the_cooldown():
    # the cooldown is the last 20 of 80 steps
    ours = PretrainTiny.Config(steps=80, warmup_steps=10, decay_steps=100, cooldown_steps=20).rate
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = get_cosine_schedule_with_warmup(
        optimizer, num_warmup_steps=10, num_training_steps=100
    )
    [cosine] = schedule.lr_lambdas
    assert [ours(step) for step in range(61)] == [cosine(step) for step in range(61)]
    assert [ours(step) for step in (70, 80)] == [cosine(70) / 2, 0.0]
