"""Breaks when prefetching loads weights, stops at the first failure, or goes on where the network is forbidden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from moe_lab.cli.prefetch import prefetch
from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods import get_method
from moe_lab.tasks import loading
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE
from tests.support.hub.server import Fault

MODEL = ModelConfig(name="olmoe", path=OLMOE)


def config(**keys):
    return Config(method=get_method("base").Config(name="base"), **{"model": MODEL, "device": "cpu", **keys})


@pytest.mark.slow
def test_every_model_of_a_grid_is_fetched_and_none_is_loaded(client, hub, loads, capsys):
    assert prefetch([config(), config(seed=1), config(model=ModelConfig())]) == 0
    models = [line for line in capsys.readouterr().out.splitlines() if line.startswith("model ")]
    assert [line.partition(":")[0] for line in models] == ["model olmoe", "model tiny"]
    assert next(Path(models[0].partition(": ")[2]).glob("*.safetensors"))
    assert loads == []
    new_command()
    before = len(hub.ranges("model-00001-of-00005.safetensors"))
    assert prefetch([config()]) == 0
    assert len(hub.ranges("model-00001-of-00005.safetensors")) == before


def test_what_fails_is_told_and_the_rest_is_fetched(client, hub, capsys):
    wrong = config(model=ModelConfig(name="x", path="allenai/nothing"))
    assert prefetch([wrong, config()]) == 2
    captured = capsys.readouterr()
    assert "The model allenai/nothing is not on the hub" in captured.err and "model olmoe: " in captured.out


@pytest.mark.slow
def test_the_same_command_continues(client, hub, olmoe_files, capsys):
    name = "model-00001-of-00005.safetensors"
    path = f"cdn/models/{OLMOE}/{hub.repositories['models', OLMOE.lower()].branches['main']}/{name}"
    hub.faults = [Fault(path, drop_after=60_000), Fault(path, status=503, times=3)]
    assert prefetch([config()]) == 2
    hub.faults = []
    new_command()
    assert prefetch([config()]) == 0
    assert sum(sent for _, sent in hub.ranges(name)[1:]) == len(olmoe_files[name])


def test_a_pretraining_takes_the_tokenizer_alone(client, hub, capsys):
    pretrain = replace(config(), method=get_method("pretrain").Config(name="pretrain"))
    assert prefetch([pretrain]) == 0
    assert not [answer.path for answer in hub.log if answer.path.endswith(".safetensors")]
    assert [answer.path for answer in hub.log if answer.path.endswith("tokenizer.json")]
    assert prefetch([pretrain, config()]) == 0
    assert [answer.path for answer in hub.log if answer.path.endswith(".safetensors")]


def test_a_task_that_lacks_its_data_is_a_failure(client, monkeypatch, capsys):
    def missing(config):
        raise TaskError("no data")

    monkeypatch.setattr(loading, "load_tasks", missing)
    assert prefetch([config(model=ModelConfig())]) == 2
    assert "no data" in capsys.readouterr().err


def test_it_is_refused_offline(client, monkeypatch):
    from huggingface_hub import constants

    with pytest.raises(ConfigError, match="needs the network"):
        prefetch([config(offline=True)])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE=1"):
        prefetch([config()])


@pytest.mark.slow
def test_what_a_method_reads_beside_its_task_is_a_step(client, hub, capsys, tmp_path):
    asks = Config(
        task=TaskConfig(name="toy_choice"),
        method=get_method("c3po").Config(name="c3po"),
        output_dir=str(tmp_path),
    )
    assert prefetch([asks]) == 0
    assert "method c3po: its data other than" in capsys.readouterr().out
    wrong = replace(asks, method=get_method("c3po").Config(name="c3po", reference="toy_choice:nowhere"))
    assert prefetch([wrong]) == 2
    assert "nowhere" in capsys.readouterr().err
