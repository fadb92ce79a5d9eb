"""Breaks when a file is fetched twice or left out, or a token leaves the hub."""

from __future__ import annotations

import errno

import pytest
from huggingface_hub import file_download, hf_hub_download

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


def test_a_dropped_connection_is_continued(client, hub, olmoe_files):
    hub.faults = [Fault(f"GET cdn/models/{OLMOE}", drop_after=20_000)]
    folder = weights()
    shards = [name for name in olmoe_files if name.endswith(".safetensors")]
    assert all((folder / name).read_bytes() == olmoe_files[name] for name in shards)
    assert len(hub.ranges(".safetensors")) == len(shards) + 1


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


@pytest.mark.slow
def test_a_stalled_download_ends(client, hub):
    hub.faults = [Fault("cdn/models", stall=5, times=99)]
    with pytest.raises(ModelError, match="is not available: "):
        weights()


def test_an_index_that_names_what_is_not_there_is_told(client, hub, olmoe_files):
    lacking = {name: data for name, data in olmoe_files.items() if name != SHARD}
    hub.add(Repository("someone/lacking")).commit(lacking)
    with pytest.raises(ModelError, match=f"has no file {SHARD}"):
        model_folder(ModelConfig(path="someone/lacking"), offline=False, weights=True)


def test_a_full_disk_is_told(client, monkeypatch):
    def full(url, out, **options):
        raise OSError(errno.ENOSPC, "No space left on device", out.name)

    monkeypatch.setattr(file_download, "http_get", full)
    with pytest.raises(ModelError, match="No space left on device"):
        weights()


def test_only_one_format_is_fetched_and_no_token_leaves_the_hub(client, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = weights()
    assert not (folder / "pytorch_model.bin").exists()
    assert any(answer.authorized for answer in hub.log)
    assert not any(answer.authorized for answer in hub.log if answer.path.startswith("cdn/"))


def test_the_hubs_own_client_finds_what_was_fetched(client):
    folder = weights()
    assert hf_hub_download(OLMOE, SHARD, local_files_only=True) == str(folder / SHARD)
