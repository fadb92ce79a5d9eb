"""Breaks when weights are fetched of a model that cannot be loaded, or a setting is passed over in silence."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from transformers import AriaConfig, MiniMaxM3VLConfig, Qwen3VLMoeConfig

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.source import load_config
from moe_lab.models.tokenizer import load_tokenizer
from tests.support.deepseek.checkpoint import PUBLISHED
from tests.support.models import make_tokenizer


@pytest.mark.parametrize(
    ("config", "part"),
    [(AriaConfig, "aria_text"), (MiniMaxM3VLConfig, "minimax_m3_vl_text"), (Qwen3VLMoeConfig, None)],
)
def test_a_model_of_images_is_refused_with_what_runs(config, part, tmp_path):
    config().save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=f"{config.model_type}, which is no causal language model"
    ) as refusal:
        load_config(ModelConfig(path=str(tmp_path)), offline=True)
    assert "docs/models.md" in str(refusal.value)
    assert ("text model alone runs" in str(refusal.value)) == (part is not None)
    assert part is None or f"(model_type {part})" in str(refusal.value)


@pytest.mark.slow
def test_no_modeling_code_is_imported_for_it(tiny_olmoe_dir):
    code = (
        "import sys\nfrom moe_lab.config.schema import ModelConfig\nfrom moe_lab.models.source import load_config\n"
        f"load_config(ModelConfig(path={str(tiny_olmoe_dir)!r}), offline=True)\n"
        "print('transformers.models.olmoe.modeling_olmoe' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "False"


def test_the_native_deepseek_moe_is_taken(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    assert load_config(ModelConfig(path=str(tmp_path)), offline=True).model_type == "deepseek"


@pytest.mark.parametrize("path", [None, "folder"])
def test_a_revision_of_a_folder_is_refused(path, tiny_olmoe_dir):
    model = ModelConfig(path=path and str(tiny_olmoe_dir), revision="v1")
    with pytest.raises(
        ConfigError, match=r"model.revision=v1 belongs to a repository of the hub.*Leave it out"
    ):
        load_config(model, offline=True)


def test_a_token_for_the_beginning_that_is_none(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    says = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(says | {"bos_token": None}))
    model = ModelConfig(path=str(tmp_path), tokenizer=str(tmp_path), add_bos_token=True)
    with pytest.raises(
        ConfigError, match="add_bos_token=true: the tokenizer of .* has no token for the beginning"
    ):
        load_tokenizer(model, offline=True)
