"""Breaks when a byte is fetched twice, a damaged file is kept, or a full disk is met in the middle of a download."""

from __future__ import annotations

import errno
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import file_download

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models import hub as hub_files
from moe_lab.models.hub import fetch, find
from moe_lab.models.source import model_folder
from tests.support.hub.commands import new_command
from tests.support.hub.content import OLMOE
from tests.support.hub.repositories import Repository, etag
from tests.support.hub.server import Fault

MODEL = ModelConfig(name="olmoe", path=OLMOE)
SHARD = "model-00002-of-00005.safetensors"


def weights():
    return model_folder(MODEL, offline=False, weights=True)


def covered(ranges):
    """How often each byte was sent."""
    counts = {}
    for start, sent in ranges:
        for byte in range(start, start + sent):
            counts[byte] = counts.get(byte, 0) + 1
    return counts


def exactly_once(hub, files, name=SHARD):
    counts = covered(hub.ranges(name))
    return set(counts) == set(range(len(files[name]))) and set(counts.values()) == {1}


def test_a_dropped_connection_is_continued(client, hub, olmoe_files):
    shards = [name for name in olmoe_files if name.endswith(".safetensors")]
    assert min(len(olmoe_files[name]) for name in shards) > 4 * 20_000  # all four drops may meet one shard
    hub.faults = [Fault(f"GET cdn/models/{OLMOE}", drop_after=20_000, times=4)]
    folder = weights()
    for name in shards:
        assert (folder / name).read_bytes() == olmoe_files[name]
        assert exactly_once(hub, olmoe_files, name)
    assert len(hub.ranges(".safetensors")) == len(shards) + 4  # whichever shards the drops met


def test_the_same_command_continues_the_file(client, hub, olmoe_files):
    commit = hub.repositories["models", OLMOE.lower()].branches["main"]
    path = f"cdn/models/{OLMOE}/{commit}/{SHARD}"
    hub.faults = [Fault(path, drop_after=40_000), Fault(path, status=503, times=3)]
    with pytest.raises(ModelError, match="could not be reached|status 503"):
        weights()
    assert hub.ranges(SHARD) == [(0, 40_000)]
    hub.faults = []
    new_command()
    assert (weights() / SHARD).read_bytes() == olmoe_files[SHARD]
    assert hub.ranges(SHARD)[1][0] == 40_000 and exactly_once(hub, olmoe_files)


@pytest.mark.slow
def test_a_stalled_download_ends(client, hub):
    hub.faults = [Fault("cdn/models", stall=5, times=99)]
    with pytest.raises(ModelError, match="could not be reached"):
        weights()


def test_a_server_without_ranges_sends_the_file_again(client, hub, olmoe_files, monkeypatch):
    hub.faults = [Fault(f"GET cdn/models/{OLMOE}", drop_after=30_000)]
    hub.ignores_ranges = True
    assert (weights() / SHARD).read_bytes() == olmoe_files[SHARD]


def test_a_damaged_download_is_refused_and_fetched_again(client, hub, olmoe_files):
    hub.faults = [Fault(f"/{SHARD}", damage=True, times=99)]
    with pytest.raises(ModelError, match=f"{SHARD}.*arrived damaged"):
        weights()
    assert list(client.rglob(f"{etag(SHARD, olmoe_files[SHARD])}*.incomplete")) == []
    hub.faults = []
    assert (weights() / SHARD).read_bytes() == olmoe_files[SHARD]


def test_a_torn_file_in_the_cache_is_told_offline_and_fetched_again_online(client, olmoe_files, capsys):
    shard = weights() / SHARD
    blob = shard.resolve()
    blob.write_bytes(blob.read_bytes()[:5000])
    with pytest.raises(ModelError, match=f"absent or damaged.*{SHARD}"):
        model_folder(MODEL, offline=True, weights=True)
    new_command()
    assert (weights() / SHARD).read_bytes() == olmoe_files[SHARD]
    assert "damaged: fetching it again" in capsys.readouterr().err


def test_two_that_fetch_the_same_fetch_it_once(client, hub, olmoe_files):
    repository = find(OLMOE)
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: fetch(repository, [SHARD]), range(2)))
    assert (folders[0] / SHARD).read_bytes() == (folders[1] / SHARD).read_bytes() == olmoe_files[SHARD]
    assert exactly_once(hub, olmoe_files)


def test_an_index_that_names_what_is_not_there_is_told(client, hub, olmoe_files):
    lacking = {name: data for name, data in olmoe_files.items() if name != SHARD}
    hub.add(Repository("someone/lacking")).commit(lacking)
    with pytest.raises(ModelError, match=f"lacks {SHARD}"):
        model_folder(ModelConfig(path="someone/lacking"), offline=False, weights=True)


def test_a_stopped_download_ends_with_the_next_bytes_and_is_continued(client, hub, olmoe_files, monkeypatch):
    """Ctrl-C comes while 40 kB are there and the server is silent."""
    partial = hub_files._partial(find(OLMOE), find(OLMOE).files[SHARD])

    def interrupted(futures):
        while not partial.exists() or partial.stat().st_size < 30_000:  # a buffer of 8 kB is not on disk yet
            time.sleep(0.01)
        raise KeyboardInterrupt

    repository = find(OLMOE)
    cdn = f"cdn/models/{OLMOE}"
    hub.faults = [Fault(cdn, drop_after=40_000), Fault(cdn, stall=9, times=9)]
    with monkeypatch.context() as patched:
        patched.setattr(hub_files, "as_completed", interrupted)
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            fetch(repository, [SHARD])
    assert time.monotonic() - start < 2.5  # not after all attempts
    hub.faults = []
    assert (fetch(repository, [SHARD]) / SHARD).read_bytes() == olmoe_files[SHARD]
    assert hub.ranges(SHARD)[0] == (0, 40_000) and hub.ranges(SHARD)[-1][0] >= 30_000


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(client, hub, monkeypatch):
    model_folder(MODEL, offline=False)
    before = len(hub.log)
    usage = shutil.disk_usage(client)._replace(free=300_000)
    monkeypatch.setattr(hub_files.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ModelError, match=r"needs 0\.\d+ GB more.*\n.*HF_HOME"):
        weights()
    assert not [answer for answer in hub.log[before:] if answer.path.endswith(".safetensors")]


def test_a_disk_that_runs_full_keeps_what_came(client, hub, olmoe_files, monkeypatch):
    get = file_download.http_get

    def full(url, out, *, displayed_filename, **options):
        if displayed_filename == SHARD:
            out.write(olmoe_files[SHARD][:70_000])
            raise OSError(errno.ENOSPC, "No space left on device", out.name)
        get(url, out, displayed_filename=displayed_filename, **options)

    with monkeypatch.context() as patched:
        patched.setattr(file_download, "http_get", full)
        with pytest.raises(ModelError, match=r"No space left on device.*\n.*continues"):
            weights()
    weights()
    assert hub.ranges(SHARD) == [(70_000, len(olmoe_files[SHARD]) - 70_000)]


def test_only_one_format_is_fetched_and_no_token_leaves_the_hub(client, hub, monkeypatch):
    from tests.support.hub.server import TOKEN

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    folder = weights()
    assert not (folder / "pytorch_model.bin").exists()
    assert any(answer.authorized for answer in hub.log)
    assert not any(answer.authorized for answer in hub.log if answer.path.startswith("cdn/"))


def test_the_hubs_own_client_finds_what_was_fetched(client):
    from huggingface_hub import snapshot_download

    folder = weights()
    assert snapshot_download(OLMOE, local_files_only=True) == str(folder.resolve())


def test_large_files_on_xet_are_fetched_by_the_hubs_client_alone(client, hub, olmoe_files, monkeypatch):
    """Small files are never on Xet. The loopback hub has none, so the client goes on by HTTP."""
    asked, completed = [], []
    complete = hub_files._complete

    def metadata(url):
        asked.append(url)
        return SimpleNamespace(xet_file_data="reference")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(hub_files, "find_spec", lambda name: name == "hf_xet")
    monkeypatch.setattr(
        hub_files, "_complete", lambda *given: completed.append(given[1].name) or complete(*given)
    )
    assert (weights() / SHARD).read_bytes() == olmoe_files[SHARD]
    assert asked and not [name for name in completed if name.endswith(".safetensors")]
    assert "config.json" in completed
