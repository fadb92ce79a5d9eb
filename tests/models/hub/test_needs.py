"""Breaks when mode=doctor fetches something, or calls a model ready whose files are absent, torn, or too large."""

from __future__ import annotations

import re

import pytest
from safetensors.torch import load

from moe_lab.cli import doctor as needs
from moe_lab.cli.doctor import command_needs
from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.methods import get_method
from moe_lab.models.memory import size_text, weight_memory
from moe_lab.models.source import load_config, model_folder
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE

MODEL = ModelConfig(name="olmoe", path=OLMOE)
SHARD = "model-00003-of-00005.safetensors"


def lines(**keys):
    config = Config(
        method=get_method("base").Config(name="base"), model=MODEL, device="cpu", offline=True, **keys
    )
    new_command()
    return "\n".join(command_needs([config]))


@pytest.fixture
def fetched(client, hub):
    """The cached folder, after which the hub may not be asked any more."""
    folder = model_folder(MODEL, offline=False, weights=True)
    hub.log.clear()
    yield folder
    assert hub.log == []


def test_a_model_that_was_never_fetched(client, hub):
    text = lines()
    assert "MISSING" in text and "mode=prefetch" in text and "task toy_math: ready" in text
    assert hub.log == []


@pytest.fixture
def parameters(olmoe_files):
    """How many numbers the model has."""
    shards = [load(data) for name, data in olmoe_files.items() if name.endswith(".safetensors")]
    return sum(tensor.numel() for shard in shards for tensor in shard.values())


def test_a_model_that_is_ready(fetched, olmoe_files, parameters):
    stored = sum(len(data) for name, data in olmoe_files.items() if name.endswith(".safetensors"))
    text = lines()
    assert "main is commit" in text and "olmoe, 4 MoE layers" in text
    assert "tokenizer: ready, 257 tokens" in text and f"weights: ready, 5 files, {size_text(stored)}" in text
    assert (
        f"weights take {size_text(4 * parameters)} in float32" in text
        and "MISSING" not in text
        and "NOT ENOUGH" not in text
    )


def test_a_shard_that_is_missing(fetched, parameters):
    (fetched / SHARD).unlink()
    text = lines()
    assert f"MISSING 1 of 5 files: {SHARD}" in text and re.search(r"disk: about 1[345]\d\.\d\d kB", text)
    assert f"weights take {size_text(4 * parameters)} in float32" in text  # by the index


def test_a_shard_that_is_torn(fetched):
    blob = (fetched / SHARD).resolve()
    blob.write_bytes(blob.read_bytes()[:3000])
    assert f"DAMAGED {SHARD}" in lines()


@pytest.mark.slow
def test_a_configuration_without_weights(client):
    model_folder(MODEL, offline=False)
    assert "weights: MISSING, none are in" in lines() and "memory: weights take" in lines()


@pytest.mark.slow
def test_memory_and_disk_that_do_not_suffice(fetched, monkeypatch):
    monkeypatch.setattr(needs, "free_memory", lambda device: 100_000)
    assert "100.00 kB are free on cpu NOT ENOUGH" in lines()


def test_memory_follows_the_dtype(fetched, parameters):
    config = load_config(MODEL, offline=True)
    assert weight_memory(config, fetched, "float32") == 4 * parameters
    assert weight_memory(config, fetched, "bfloat16") == 2 * parameters


@pytest.mark.slow
def test_what_a_method_reads_beside_its_task(client):
    toy = TaskConfig(name="toy_choice")
    for reference, state in ((None, "is ready"), ("toy_choice:nowhere", "is MISSING")):
        method = get_method("c3po").Config(name="c3po", reference=reference)
        text = "\n".join(command_needs([Config(method=method, task=toy, device="cpu", offline=True)]))
        assert f"method c3po: its data other than toy_choice {state}" in text
    plain = Config(method=get_method("base").Config(name="base"), task=toy, device="cpu", offline=True)
    assert "what it reads" not in "\n".join(command_needs([plain]))
