"""Breaks when a revision is not pinned to its commit, the hub is asked again, or a command waits long for an answer."""

from __future__ import annotations

import json
import time

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from moe_lab.config.schema import ModelConfig
from moe_lab.models.hub import commit_of
from moe_lab.models.identity import known_weights
from moe_lab.models.source import load_config, model_commit, model_folder
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE, SHARDS
from tests.support.hub.server import Fault

MODEL = ModelConfig(name="olmoe", path=OLMOE)


@pytest.fixture
def second(olmoe_repository, olmoe_files):
    """A second commit: `main` moves to it, the tag `paper` stays."""
    first = olmoe_repository.branches["main"]
    olmoe_repository.branches["paper"] = first
    return first, olmoe_repository.commit(olmoe_files | {"README.md": b"Newer.\n"})


@pytest.mark.parametrize(("revision", "which"), [(None, 1), ("main", 1), ("paper", 0), ("commit", 0)])
def test_a_branch_a_tag_and_a_commit_are_pinned(client, second, revision, which):
    revision = second[0] if revision == "commit" else revision
    model = ModelConfig(name="olmoe", path=OLMOE, revision=revision)
    assert model_commit(model, offline=False) == second[which]
    assert model_folder(model, offline=False).name == second[which]
    assert (model_folder(model, offline=False) / "config.json").is_file()
    new_command()
    assert model_commit(model, offline=True) == second[which]


def test_a_command_keeps_its_commit_and_the_next_one_sees_the_new(client, olmoe_repository, olmoe_files):
    before = model_commit(MODEL, offline=False)
    after = olmoe_repository.commit(olmoe_files | {"README.md": b"Moved.\n"})
    assert model_commit(MODEL, offline=False) == before
    new_command()
    assert model_commit(MODEL, offline=False) == after != before


@pytest.mark.slow
def test_a_moved_branch_is_another_study(client, olmoe_repository, olmoe_files, tmp_path):
    from moe_lab.config.schema import Config, TuningConfig
    from moe_lab.methods import get_method
    from moe_lab.runs.tuning.study import prepare_study

    config = Config(
        model=MODEL,
        method=get_method("roe").Config(name="roe", n=2),
        tuning=TuningConfig(name="tpe", n_trials=2, num_samples=4, metric="perplexity", max_temperature=1.0),
        output_dir=str(tmp_path),
        device="cpu",
    )
    before = prepare_study(config).study_id
    assert prepare_study(config).study_id == before
    olmoe_repository.commit(olmoe_files | {"README.md": b"Moved.\n"})
    new_command()
    assert prepare_study(config).study_id != before


def test_the_hub_is_asked_once_and_nothing_is_fetched_again(client, hub):
    model_folder(MODEL, offline=False, weights=True)
    before = len(hub.log)
    model_folder(MODEL, offline=False, weights=True)
    assert len(hub.log) == before
    new_command()
    model_folder(MODEL, offline=False, weights=True)
    assert [answer.path for answer in hub.log[before:]] == [f"api/models/{OLMOE}"]


@pytest.mark.parametrize("fault", [Fault("api/", stall=3, times=9), Fault("api/", status=503, times=9)])
def test_a_hub_that_does_not_answer_is_left_for_the_cache(client, hub, fault, capsys):
    commit = model_commit(MODEL, offline=False)
    model_folder(MODEL, offline=False, weights=True)
    new_command()
    hub.faults = [fault]
    start = time.monotonic()
    assert model_commit(MODEL, offline=False) == commit
    assert model_folder(MODEL, offline=False, weights=True).is_dir()
    assert time.monotonic() - start < 2.5  # one time-out of a second, not one per file
    assert capsys.readouterr().err.count("cannot be reached") == 1


def test_without_a_connection_or_a_cache_it_ends_at_once(client, monkeypatch, capsys):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(LocalEntryNotFoundError):
        commit_of(OLMOE)
    assert "refused" in capsys.readouterr().err
    assert time.monotonic() - start < 2


def test_offline_asks_nobody(client, hub):
    with pytest.raises(LocalEntryNotFoundError):
        commit_of(OLMOE, offline=True)
    assert hub.log == []


def test_the_environment_forbids_the_network_as_offline_does(client, hub, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(LocalEntryNotFoundError):
        commit_of(OLMOE)
    assert hub.log == []


def test_weights_are_those_that_transformers_loads(client, hub, olmoe_repository):
    files = known_weights(model_folder(MODEL, offline=False, weights=True))
    assert files[0] == "model.safetensors.index.json" and len(files) > SHARDS
    assert all(name.endswith(".safetensors") for name in files[1:])
    index = json.dumps({"weight_map": {"a": "pytorch_model-1.bin"}}).encode()
    sharded = {"pytorch_model.bin.index.json": index, "pytorch_model-1.bin": b"weights"}
    for files, found in (
        ({"pytorch_model.bin": b"weights"}, ["pytorch_model.bin"]),
        (sharded, list(sharded)),
        (sharded | {"model.safetensors": b"weights"}, ["model.safetensors"]),
    ):
        olmoe_repository.commit({"config.json": b"{}"} | files)
        new_command()
        folder = model_folder(MODEL, offline=False, weights=True)
        assert known_weights(folder) == found and all((folder / name).exists() for name in found)


def test_the_configuration_comes_from_the_hub(client):
    assert load_config(MODEL, offline=False).num_experts == 8
