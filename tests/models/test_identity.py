"""Breaks if two models share an identity, or if a copy of one model has another."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.models.identity import WHOLE_BYTES, folder_content, model_identity, weights_fingerprint


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


def test_large_weights_are_sampled_in_milliseconds(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as weights:
        weights.truncate(2**34)  # 16 GiB, sparse
    start = time.perf_counter()
    first = weights_fingerprint(file)
    assert time.perf_counter() - start < 0.5
    with file.open("r+b") as weights:
        weights.truncate(2**34 - 8)
    assert weights_fingerprint(file) != first


def test_retraining_changes_large_weights(tmp_path: Path) -> None:
    """Every weight moves a little when a model is trained on: each sampled block sees it."""
    file = tmp_path / "model.safetensors"
    header = b"{}"
    body = bytes(range(256)) * (WHOLE_BYTES // 64)
    file.write_bytes(len(header).to_bytes(8, "little") + header + body)
    first = weights_fingerprint(file)
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(byte ^ 1 for byte in body))
    assert weights_fingerprint(file) != first


def test_a_hub_model_is_its_id_and_revision() -> None:
    one = model_identity("owner/name", ModelConfig(revision="v1"))
    assert one["model"] == {"hub": "owner/name", "revision": "v1"}
    assert one != model_identity("owner/name", ModelConfig(revision="v2"))
    assert one != model_identity("owner/name", ModelConfig(revision="v1", experts_per_token=2))
