"""Models by folder: their facts from the configuration alone, their weights in the dtype asked for."""

from __future__ import annotations

import shutil

import pytest
import torch

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.facts import model_facts, resolve_dtype
from moe_lab.models.load import load_model
from moe_lab.routing import find_routers
from moe_lab.runs.evaluation.run_lm_eval import environment
from tests.support.models import FAMILIES, make_model, make_tokenizer, small_model
from tests.support.tiers import by_family


def facts_of(path, **keys):
    return model_facts(
        ModelConfig(name="x", path=str(path), **keys), dtype="auto", device="cpu", offline=True
    )


def test_facts_count_moe_layers_only(tmp_path):
    make_model("qwen2_moe").save_pretrained(tmp_path)
    facts = facts_of(tmp_path)
    assert (facts.family, facts.moe_layers, facts.experts, facts.top_k, facts.max_length) == (
        "qwen2_moe",
        3,
        8,
        2,
        512,
    )
    assert facts.dtype == "float32" and facts.commit is None


@pytest.mark.parametrize("family", by_family(FAMILIES))
@pytest.mark.parametrize("changes", [{}, {"num_hidden_layers": 5}], ids=["4 layers", "5 layers"])
def test_facts_are_those_of_the_routers(family, changes, tmp_path):
    if family.startswith("qwen"):
        changes = changes | {"decoder_sparse_step": 2, "mlp_only_layers": [3]}
    model = make_model(family, **changes)
    model.config.save_pretrained(tmp_path)
    facts, routers = facts_of(tmp_path), find_routers(model)
    assert facts.moe_layers == len(routers) > 0
    assert facts.experts == routers[0].module.weight.shape[0]
    assert facts.top_k == routers[0].module.top_k


def test_no_weights_are_needed_for_facts(tiny_olmoe_dir, tmp_path):
    (tmp_path / "config.json").write_bytes((tiny_olmoe_dir / "config.json").read_bytes())
    assert facts_of(tmp_path).moe_layers == 4


def test_a_dense_model_has_no_moe_layers(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    assert facts_of(tmp_path).moe_layers == 0


@pytest.mark.parametrize(("path", "says"), [("/no/such/folder", "no folder"), (".", "no config.json")])
def test_what_is_no_model_is_said(path, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=says):
        facts_of(path)


def test_a_broken_configuration_is_said(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="could not be read"):
        facts_of(tmp_path)


def test_an_unreachable_hub_model_is_said():
    with pytest.raises(ModelError, match="owner/name"):
        facts_of("owner/name")


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_load(tiny_olmoe_dir, dtype):
    loaded = load_model(ModelConfig(path=str(tiny_olmoe_dir)), dtype=dtype, device="cpu", offline=True)
    assert loaded.model.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)
    assert not loaded.model.training
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("hello")) == "hello"


def test_experts_per_token_reaches_the_routers(tiny_olmoe_dir):
    config = ModelConfig(path=str(tiny_olmoe_dir), experts_per_token=5)
    loaded = load_model(config, dtype="auto", device="cpu", offline=True)
    assert loaded.facts.top_k == 5
    logits, weights, index = loaded.model.model.layers[0].mlp.gate(torch.randn(3, 48))
    assert index.shape == (3, 5)
    with pytest.raises(ConfigError, match="8 experts"):
        facts_of(tiny_olmoe_dir, experts_per_token=9)


def test_experts_that_are_computed_in_one_way_take_no_other_and_record_none(tmp_path):
    small_model("jetmoe").save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    loaded = load_model(ModelConfig(path=str(tmp_path)), dtype="auto", device="cpu", offline=True)
    assert environment(loaded)["experts_implementation"] is None
    config = ModelConfig(path=str(tmp_path), experts_implementation="eager")
    with pytest.raises(ConfigError, match="in one way only"):
        load_model(config, dtype="auto", device="cpu", offline=True)


def test_experts_implementation_is_taken(tiny_olmoe_dir):
    config = ModelConfig(path=str(tiny_olmoe_dir), experts_implementation="eager")
    assert (
        load_model(config, dtype="auto", device="cpu", offline=True).model.config._experts_implementation
        == "eager"
    )


def test_experts_are_computed_weights_first_on_a_cpu(tiny_olmoe_dir):
    loaded = load_model(ModelConfig(path=str(tiny_olmoe_dir)), dtype="auto", device="cpu", offline=True)
    assert loaded.model.config._experts_implementation == "weights_first"


def test_a_missing_tokenizer_is_said(tmp_path):
    make_model("olmoe").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="model.tokenizer"):
        load_model(ModelConfig(path=str(tmp_path)), dtype="auto", device="cpu", offline=True)
    make_tokenizer().save_pretrained(tmp_path / "other")
    config = ModelConfig(path=str(tmp_path), tokenizer=str(tmp_path / "other"))
    assert load_model(config, dtype="auto", device="cpu", offline=True).tokenizer


def test_dtype_auto_is_float32_on_the_cpu_and_the_checkpoints_elsewhere():
    stored = make_model("olmoe").config
    stored.dtype = torch.bfloat16
    assert resolve_dtype("auto", torch.device("cpu"), stored) == "float32"
    assert resolve_dtype("auto", torch.device("cuda"), stored) == "bfloat16"
    with pytest.raises(ConfigError, match="float32"):
        resolve_dtype("fp7", torch.device("cpu"), stored)


def test_a_truncated_checkpoint_is_refused(tiny_olmoe_dir, tmp_path):
    shutil.copytree(tiny_olmoe_dir, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="could not be loaded"):
        load_model(ModelConfig(path=str(tmp_path / "model")), dtype="auto", device="cpu", offline=True)


def test_tied_embeddings_are_complete(tmp_path):
    make_model("llama", tie_word_embeddings=True).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert load_model(ModelConfig(path=str(tmp_path)), dtype="auto", device="cpu", offline=True)
