"""Breaks if two models share an identity, a copy of a model has another one, or a file's
digest is partial or stale."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import moe_lab.models.file_digests as file_digest
from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.file_digests import WHOLE_BYTES, digest_of
from moe_lab.models.identity import folder_content, model_identity


def test_a_copy_is_the_same_model(tiny_olmoe_dir, tmp_path):
    copy = tmp_path / "another name"
    shutil.copytree(tiny_olmoe_dir, copy)
    (copy / "notes.md").write_text("not part of the model")
    same_identity = model_identity(str(tiny_olmoe_dir), ModelConfig(name="a"))
    assert model_identity(str(copy), ModelConfig(name="b")) == same_identity


@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"]
)
def test_every_part_counts(tiny_olmoe_dir, tmp_path, file):
    copy = tmp_path / "copy"
    shutil.copytree(tiny_olmoe_dir, copy)
    content = bytearray((copy / file).read_bytes())
    content[-2] ^= 1
    (copy / file).write_bytes(content)
    assert folder_content(copy) != folder_content(tiny_olmoe_dir)


def test_shards_in_a_folder_below_count(tmp_path):
    """transformers loads every file that the index names, whatever its place and its suffix."""
    (tmp_path / "parts").mkdir()
    index = {"weight_map": {"a": "parts/one.safetensors", "b": "two.data"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "parts" / "one.safetensors").write_bytes(b"1")
    (tmp_path / "two.data").write_bytes(b"2")
    before = folder_content(tmp_path)
    (tmp_path / "parts" / "one.safetensors").write_bytes(b"3")
    between = folder_content(tmp_path)
    (tmp_path / "two.data").write_bytes(b"3")
    assert before != between != folder_content(tmp_path)


@pytest.mark.parametrize("place", ["../outside.safetensors", "/tmp/outside.safetensors"])
def test_an_index_that_leaves_its_folder_is_refused(tmp_path, place):
    (tmp_path / "model").mkdir()
    (tmp_path / "outside.safetensors").write_bytes(b"1")
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(ModelError, match="outside"):
        folder_content(index.parent)


def test_named_chat_templates_count(tmp_path):
    """transformers reads them from a folder of their own."""
    template = tmp_path / "additional_chat_templates" / "tools.jinja"
    template.parent.mkdir()
    template.write_text("{{ messages }}")
    before = folder_content(tmp_path)
    template.write_text("{{ tools }}")
    assert folder_content(tmp_path) != before


def test_linked_weights_count_by_what_they_link_to(tmp_path):
    """As in the hub's cache, whose snapshots are links to blobs."""
    blobs = [tmp_path / "blobs" / name for name in "ab"]
    blobs[0].parent.mkdir()
    for blob in blobs:
        blob.write_bytes(blob.name.encode() * 2**19)
    link = tmp_path / "snapshot" / "model.safetensors"
    link.parent.mkdir()
    link.symlink_to(blobs[0])
    before = folder_content(link.parent)
    link.unlink()
    link.symlink_to(blobs[1])
    assert folder_content(link.parent) != before


def test_a_hub_model_is_its_id_and_revision():
    identity = model_identity("owner/name", ModelConfig(revision="v1"))
    assert identity["model"] == {"hub": "owner/name", "revision": "v1"}
    assert identity != model_identity("owner/name", ModelConfig(revision="v2"))
    assert identity != model_identity("owner/name", ModelConfig(revision="v1", experts_per_token=2))


LARGE = WHOLE_BYTES + 1


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOE_LAB_CACHE", str(tmp_path / "cache"))
    forget()
    return tmp_path / "cache" / "digests"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """One entry per time that a large file is read."""
    reads: list[Path] = []
    whole = file_digest._hash

    def counted(file: Path, size: int) -> str:
        reads.append(file)
        return whole(file, size)

    monkeypatch.setattr(file_digest, "_hash", counted)
    return reads


def forget() -> None:
    """As in a new process."""
    file_digest._cached.cache_clear()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x" * LARGE)
    return file


def test_a_small_file_keeps_its_digest(tmp_path):
    content = bytes(range(256)) * 1024
    (tmp_path / "model.bin").write_bytes(content)
    # the size comes first; run ids depend on this form
    assert digest_of(tmp_path / "model.bin") == hashlib.sha256(b"262144" + content).hexdigest()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest, "CHUNK", CHUNK)


CHUNK = 2**18
"""Of 16 MB."""


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("size", [LARGE, 2 * CHUNK, 2 * CHUNK + 1, 3 * CHUNK + 5])
def test_every_byte_counts(tmp_path, size):
    file = tmp_path / "model.safetensors"
    content = bytearray(os.urandom(size))
    file.write_bytes(content)
    digests = {digest_of(file)}
    changed = {
        place for place in (0, size // 3, CHUNK - 1, CHUNK, 2 * CHUNK, size - 1) if place < size
    }
    for place in changed:
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        digests.add(digest_of(file))
    assert len(digests) == len(changed) + 1


@pytest.mark.usefixtures("small_chunks")
def test_chunks_that_change_places_count(tmp_path):
    first_chunk = b"a" * CHUNK
    second_chunk = b"b" * CHUNK
    digests = []
    for name, content in (
        ("1", first_chunk + second_chunk),
        ("2", second_chunk + first_chunk),
        ("3", first_chunk + second_chunk),
    ):
        (tmp_path / name).write_bytes(content)
        digests.append(digest_of(tmp_path / name))
    assert digests[0] == digests[2] != digests[1]


def test_the_next_process_reads_no_weights(large, read):
    first = digest_of(large)
    assert len(read) == 1
    assert digest_of(large) == first
    forget()
    assert digest_of(large) == first
    assert len(read) == 1


def test_a_change_that_hides_its_time_is_seen(large, read):
    """The change time says so, which no program can set."""
    before = digest_of(large)
    stat = large.stat()
    with large.open("r+b") as opened:
        opened.write(b"y")
    os.utime(large, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    forget()
    assert digest_of(large) != before
    assert len(read) == 2


def test_a_file_that_changes_while_it_is_read_is_not_remembered(large, monkeypatch):
    def disturbed(file: Path, size: int) -> str:
        file.write_bytes(b"y" * LARGE)
        return "0" * 64

    with monkeypatch.context() as patch:
        patch.setattr(file_digest, "_hash", disturbed)
        assert digest_of(large) == "0" * 64
    assert digest_of(large) != "0" * 64


def test_a_damaged_entry_is_hashed_again(large, cache):
    first = digest_of(large)
    (entry,) = cache.iterdir()
    entry.write_text('{"digest": 7}')
    forget()
    assert digest_of(large) == first
    assert json.loads(entry.read_text())["digest"] == first


def test_an_unwritable_cache_is_no_failure(tmp_path, large, monkeypatch, read):
    monkeypatch.setenv("MOE_LAB_CACHE", "/proc/nowhere")
    first = digest_of(large)
    forget()
    assert digest_of(large) == first
    assert len(read) == 2
