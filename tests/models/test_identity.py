"""Breaks if two models share an identity, or if a copy of one model has another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.identity import folder_content, model_identity


def test_a_copy_is_the_same_model(tiny_olmoe_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "another name"
    shutil.copytree(tiny_olmoe_dir, copy)
    (copy / "notes.md").write_text("not part of the model")
    assert model_identity(str(copy), ModelConfig(name="b")) == model_identity(
        str(tiny_olmoe_dir), ModelConfig(name="a")
    )


@pytest.mark.parametrize(
    "file", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"]
)
def test_every_part_counts(tiny_olmoe_dir: Path, tmp_path: Path, file: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_olmoe_dir, copy)
    content = bytearray((copy / file).read_bytes())
    content[-2] ^= 1
    (copy / file).write_bytes(content)
    assert folder_content(copy) != folder_content(tiny_olmoe_dir)


TINY = Path(__file__).parents[2] / "moe_lab" / "models" / "tiny"
"""The embedded model: 8 MB of weights."""


def a_router(names: list[str]) -> str:
    return next(name for name in names if name.endswith("mlp.gate.weight"))


def an_expert(names: list[str]) -> str:
    return next(name for name in names if ".experts.3." in name)


def the_head(names: list[str]) -> str:
    return "model.embed_tokens.weight" if "lm_head.weight" not in names else "lm_head.weight"


def the_last(names: list[str]) -> str:
    return names[-1]


@pytest.mark.parametrize("choose", [a_router, an_expert, the_head, the_last])
def test_one_element_of_any_tensor_counts(tmp_path: Path, choose: Callable[[list[str]], str]) -> None:
    file = tmp_path / "model.safetensors"
    shutil.copy(TINY / "model.safetensors", file)
    with safe_open(file, "pt") as stored:
        names = stored.offset_keys()
        metadata = stored.metadata()
    tensors = load_file(file)
    for element in sample(tensors[choose(names)]):
        before = folder_content(tmp_path)
        tensors[choose(names)].view(-1)[element] += 0.5
        save_file(tensors, file, metadata=metadata)
        assert folder_content(tmp_path) != before


def sample(tensor: Tensor) -> list[int]:
    return Random(0).sample(range(tensor.numel()), 3)


def test_shards_in_a_folder_below_count(tmp_path: Path) -> None:
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


def test_a_shard_that_is_missing_is_named(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "parts/one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="parts/one.safetensors"):
        folder_content(tmp_path)


@pytest.mark.parametrize("place", ["../outside.safetensors", "/tmp/outside.safetensors"])
def test_an_index_that_leaves_its_folder_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "outside.safetensors").write_bytes(b"1")
    index = tmp_path / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": place}}))
    with pytest.raises(ModelError, match="outside"):
        folder_content(index.parent)


def test_named_chat_templates_count(tmp_path: Path) -> None:
    """transformers reads them from a folder of their own."""
    template = tmp_path / "additional_chat_templates" / "tools.jinja"
    template.parent.mkdir()
    template.write_text("{{ messages }}")
    before = folder_content(tmp_path)
    template.write_text("{{ tools }}")
    assert folder_content(tmp_path) != before


def test_linked_weights_count_by_what_they_link_to(tmp_path: Path) -> None:
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


def test_a_hub_model_is_its_id_and_revision() -> None:
    one = model_identity("owner/name", ModelConfig(revision="v1"))
    assert one["model"] == {"hub": "owner/name", "revision": "v1"}
    assert one != model_identity("owner/name", ModelConfig(revision="v2"))
    assert one != model_identity("owner/name", ModelConfig(revision="v1", experts_per_token=2))
