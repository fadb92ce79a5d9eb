"""Models by name, and the packaged ones.

Broken by: weights that are fetched of a model that cannot be loaded, a setting that has no effect and no error, or a
packaged checkpoint that is too large, of another shape, with dead experts, or unfit for the toy tasks.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AriaConfig, AutoModelForCausalLM, AutoTokenizer

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.facts import model_facts
from moe_lab.models.source import EMBEDDED, TINY, load_config, model_source
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.tasks.toy.corpus import stories
from moe_lab.tasks.toy.word_problems import word_problems
from tests.support.command import run_command
from tests.support.deepseek.checkpoint import PUBLISHED
from tests.support.models import change_json, make_tokenizer


def test_a_model_of_images_is_refused(tmp_path):
    AriaConfig().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"aria, which is no causal language model(.|\n)*docs/models\.md"):
        load_config(ModelConfig(path=str(tmp_path)), offline=True)


def test_the_native_deepseek_moe_is_taken(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    assert load_config(ModelConfig(path=str(tmp_path)), offline=True).model_type == "deepseek"


@pytest.mark.parametrize("path", [None, "folder"])
def test_a_revision_of_a_folder_is_refused(path, tiny_olmoe_dir):
    model = ModelConfig(path=path and str(tiny_olmoe_dir), revision="v1")
    told = r"model.revision=v1 has no effect on the folder .*Leave it out"
    with pytest.raises(ConfigError, match=told):
        load_config(model, offline=True)


def test_a_token_for_the_beginning_that_is_none(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", bos_token=None)
    model = ModelConfig(path=str(tmp_path), tokenizer=str(tmp_path), add_bos_token=True)
    told = "add_bos_token=true: the tokenizer of .* has no token for the beginning"
    with pytest.raises(ConfigError, match=told):
        load_tokenizer(model, offline=True)


@pytest.mark.parametrize(
    ("name", "layers", "experts", "top_k"), [("tiny", 8, 16, 4), ("tiny-noisy", 3, 8, 2)]
)
def test_an_embedded_model_is_found_by_its_name(name, layers, experts, top_k):
    model = ModelConfig(name=name)
    assert model_source(model) == str(EMBEDDED / name)
    facts = model_facts(model, dtype="auto", device="cpu", offline=True)
    assert (facts.moe_layers, facts.experts, facts.top_k) == (layers, experts, top_k)
    assert (EMBEDDED / name / "README.md").is_file()


def test_another_name_without_a_path_has_the_tokenizer_of_tiny():
    assert model_source(ModelConfig(name="a-design")) == str(TINY)


@pytest.fixture(scope="module")
def tiny():
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(TINY)


def test_files_are_a_plain_model_with_a_card_and_of_at_most_12_mb():
    names = {path.name for path in TINY.iterdir()}
    files = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"}
    assert names >= files | {"README.md"}
    assert sum(path.stat().st_size for path in TINY.iterdir()) <= 12e6


def test_architecture_is_what_the_methods_need(tiny):
    model, tokenizer = tiny
    config = model.config
    assert config.model_type == "olmoe"
    assert config.num_hidden_layers >= 6 and config.num_experts >= 16 and config.num_experts_per_tok >= 4
    assert config.max_position_embeddings >= 2048 and config.vocab_size == len(tokenizer)
    assert config.output_router_logits is False
    assert json.loads((TINY / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.slow
def test_every_expert_is_used_on_held_out_documents(tiny):
    """Some 7,000 tokens: each expert of each layer is chosen, and choices spread: 4 bits would be even, 2 four experts."""
    model, tokenizer = tiny
    texts = [row["text"] for row in stories("test", 40)]
    texts += [f"Question: {row['question']}\nAnswer: {row['answer']}" for row in word_problems("test", 40)]
    counts = torch.zeros(model.config.num_hidden_layers, model.config.num_experts)
    for text in texts:
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt"), output_router_logits=True).router_logits
        for layer, of_layer in enumerate(logits):
            chosen = of_layer.topk(model.config.num_experts_per_tok).indices.flatten()
            counts[layer] += chosen.bincount(minlength=model.config.num_experts)
    assert counts.min() >= 1
    share = counts / counts.sum(1, keepdim=True)
    assert -(share * share.log2()).sum(1).min() > 3.2


@pytest.mark.slow
@pytest.mark.parametrize(
    "task, limit, metric", [("toy_choice", 300, "acc,none"), ("toy_math", 100, "exact_match,none")]
)
def test_tasks_are_solved_neither_by_chance_nor_perfectly(task, limit, metric, tmp_path, capsys):
    """Chance is 25% in questions."""
    keys = ["method=base", "model=tiny", f"task={task}", f"limit={limit}", f"output_dir={tmp_path}"]
    ended = run_command(capsys, *keys)
    results = json.loads(Path(ended.out.splitlines()[-1]).read_text())["results"]
    assert 0.30 <= results[task][metric] <= 0.75
