"""Breaks when a file is fetched twice or left out, or a token leaves the hub."""

from __future__ import annotations

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.source import model_folder
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE
from tests.support.hub.repositories import Repository
from tests.support.hub.server import TOKEN, Fault

MODEL = ModelConfig(name="olmoe", path=OLMOE)
SHARD = "model-00002-of-00005.safetensors"


def weights(offline=False):
    return model_folder(MODEL, offline=offline, weights=True)


def test_the_same_command_fetches_what_is_left(client, hub, olmoe_files):
    hub.faults = [Fault(f"/{SHARD}", status=403, times=99)]
    with pytest.raises(ModelError, match="403"):
        weights()
    with pytest.raises(ModelError, match="not available offline"):
        weights(offline=True)
    hub.faults = []
    sent = len(hub.ranges(".safetensors"))
    new_command()
    assert (weights() / SHARD).read_bytes() == olmoe_files[SHARD]
    assert len(hub.ranges(".safetensors")) < sent + 5
    new_command()
    assert (weights(offline=True) / SHARD).is_file()


def test_an_index_that_names_what_is_not_there_is_told(client, hub, olmoe_files):
    lacking = {name: data for name, data in olmoe_files.items() if name != SHARD}
    hub.add(Repository("someone/lacking")).commit(lacking)
    with pytest.raises(ModelError, match=f"has no file {SHARD}"):
        model_folder(ModelConfig(path="someone/lacking"), offline=False, weights=True)


def test_only_one_format_is_fetched_and_no_token_leaves_the_hub(client, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = weights()
    assert not (folder / "pytorch_model.bin").exists()
    assert any(answer.authorized for answer in hub.log)
    assert not any(answer.authorized for answer in hub.log if answer.path.startswith("cdn/"))
