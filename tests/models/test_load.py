"""Models by name and by folder: dtype, one copy of the weights in memory, and layers
on disk; the packaged models.

Broken by: weights that are fetched of a model that cannot be loaded, a setting that has no effect
and no error, files that stay mapped, tensors that are read ahead, a hook that reads a router's
parameters after they went back to disk, a folder of weights that outlives the model, or a packaged
checkpoint that is too large, of another shape, with dead experts, or unfit for the toy tasks.

Breaks if free memory ignores the container, a peak is an earlier one, or a model leaves
reference cycles in memory.
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, modeling_utils

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.facts import model_facts, resolve_dtype
from moe_lab.models.memory import (
    ModelPool,
    free_host_memory,
    peak_memory_bytes,
    reset_peak_memory,
    weight_bytes,
)
from moe_lab.models.source import EMBEDDED, TINY, load_config, model_source
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.models.transformers_internals import SEQUENTIAL, reading_once
from moe_lab.tasks.toy.stories import stories
from moe_lab.tasks.toy.word_problems import word_problems
from tests.support import rounding
from tests.support.command import run_command
from tests.support.deepseek.checkpoint import PUBLISHED
from tests.support.ensembles import roe_answers
from tests.support.families import ONE_WAY, ZOO
from tests.support.models import (
    change_json,
    load_folder,
    make_model,
    make_tokenizer,
    save_model,
    small_model,
)
from tests.support.tiers import by_family


def facts_of(path, **keys):
    model = ModelConfig(name="x", path=str(path), **keys)
    return model_facts(model, dtype="auto", device="cpu", offline=True)


def test_facts_count_moe_layers_only(tmp_path):
    make_model("qwen2_moe").save_pretrained(tmp_path)
    facts = facts_of(tmp_path)
    assert (facts.family, facts.moe_layers, facts.experts, facts.top_k) == ("qwen2_moe", 3, 8, 2)
    assert (facts.max_length, facts.dtype, facts.commit) == (512, "float32", None)


def test_no_weights_are_needed_for_facts_and_a_dense_model_has_no_moe_layers(
    tiny_olmoe_dir, tmp_path
):
    shutil.copy(tiny_olmoe_dir / "config.json", tmp_path)
    assert facts_of(tmp_path).moe_layers == 4
    make_model("llama").config.save_pretrained(tmp_path)
    assert facts_of(tmp_path).moe_layers == 0


@pytest.mark.parametrize(
    ("path", "message"),
    [("/no/such/folder", "no folder"), (".", "no config.json"), ("owner/name", "owner/name")],
)
def test_the_error_for_a_path_without_a_model_says_what_is_missing(
    path, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=message):
        facts_of(path)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_load(tiny_olmoe_dir, dtype):
    loaded = load_folder(tiny_olmoe_dir, dtype)
    assert loaded.model.dtype == (torch.float32 if dtype == "auto" else torch.bfloat16)
    assert not loaded.model.training
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("hello")) == "hello"


def test_attention_leaves_out_cudnn(tiny_olmoe_dir):
    torch.backends.cuda.enable_cudnn_sdp(True)
    load_folder(tiny_olmoe_dir)
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_experts_per_token_reaches_the_routers(tiny_olmoe_dir):
    loaded = load_folder(tiny_olmoe_dir, experts_per_token=5)
    assert loaded.facts.top_k == 5
    logits, weights, index = loaded.model.model.layers[0].mlp.gate(torch.randn(3, 48))
    assert index.shape == (3, 5)
    with pytest.raises(ConfigError, match="8 experts"):
        facts_of(tiny_olmoe_dir, experts_per_token=9)


def test_experts_that_are_computed_in_one_way_take_no_other_and_record_none(tmp_path):
    loaded = load_folder(save_model(small_model("jetmoe"), tmp_path))
    assert not loaded.model._can_set_experts_implementation()
    with pytest.raises(ConfigError, match="in one way only"):
        load_folder(tmp_path, experts_implementation="eager")


@pytest.mark.parametrize(
    ("requested", "implementation"), [("eager", "eager"), (None, "weights_first")]
)
def test_experts_implementation_is_taken(requested, implementation, tiny_olmoe_dir):
    """Without one, experts are computed weights first on a CPU."""
    loaded = load_folder(tiny_olmoe_dir, experts_implementation=requested)
    assert loaded.model.config._experts_implementation == implementation


def test_attn_implementation_is_taken_and_recorded(tiny_olmoe_dir):
    """With the same numbers: it is no part of a run's id."""
    tokens = torch.arange(10, 22)[None]
    logits = {}
    for name in ("eager", "sdpa"):
        loaded = load_folder(tiny_olmoe_dir, attn_implementation=name)
        assert loaded.model.config._attn_implementation == name
        logits[name] = loaded.model(tokens).logits
    rounding.assert_close(logits["eager"], logits["sdpa"])


def test_an_attention_that_a_family_does_not_have_is_refused(tmp_path):
    small_model("gpt_oss").save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match="GptOssForCausalLM does not support .*scaled_dot_product_attention"
    ):
        load_folder(tmp_path, attn_implementation="sdpa")


def test_a_missing_tokenizer_is_said(tmp_path):
    make_model("olmoe").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="model.tokenizer"):
        load_folder(tmp_path)
    make_tokenizer().save_pretrained(tmp_path / "other")
    assert load_folder(tmp_path, tokenizer=str(tmp_path / "other")).tokenizer


def test_dtype_auto_is_float32_on_the_cpu_and_the_checkpoints_elsewhere():
    stored = make_model("olmoe").config
    stored.dtype = torch.bfloat16
    assert resolve_dtype("auto", torch.device("cpu"), stored) == "float32"
    assert resolve_dtype("auto", torch.device("cuda"), stored) == "bfloat16"
    with pytest.raises(ConfigError, match="float32"):
        resolve_dtype("fp7", torch.device("cpu"), stored)
    stored.dtype = None
    assert resolve_dtype("float16", torch.device("cuda"), stored) == "float16"
    with pytest.raises(ConfigError, match="names no dtype.*dtype=bfloat16"):
        resolve_dtype("auto", torch.device("cuda"), stored)


def test_a_truncated_checkpoint_is_refused(tiny_olmoe_dir, tmp_path):
    shutil.copytree(tiny_olmoe_dir, tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="could not be loaded"):
        load_folder(tmp_path / "model")


def test_tied_embeddings_are_complete(tmp_path):
    assert load_folder(save_model(make_model("llama", tie_word_embeddings=True), tmp_path))


LAYERS = 6
LOAD = """
import sys
import torch
import transformers.modeling_utils
from moe_lab.config.schema import ModelConfig
from moe_lab.models.load import load_model
from moe_lab.models.memory import memory_bytes, peak_memory_bytes, reset_peak_memory, weight_bytes

cpu = torch.device("cpu")
torch.set_num_threads(1)
reset_peak_memory(cpu)
before = memory_bytes(cpu)
loaded = load_model(ModelConfig(path=sys.argv[1]), dtype=sys.argv[2], device="cpu", offline=True)
print(weight_bytes(loaded.model), peak_memory_bytes(cpu) - before)
"""


@pytest.mark.slow
def test_the_peak_is_the_model_and_the_parts_of_a_layer(tmp_path):
    """Without `reading_once` it is more than twice the model."""
    sizes = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_experts": 8,
        "num_hidden_layers": LAYERS,
    }
    make_model("olmoe", **sizes).bfloat16().save_pretrained(tmp_path, max_shard_size="60MB")
    make_tokenizer().save_pretrained(tmp_path)
    freed_at_once = {"MALLOC_MMAP_THRESHOLD_": "100000", "MALLOC_TRIM_THRESHOLD_": "100000"}
    command = [sys.executable, "-c", LOAD, str(tmp_path), "bfloat16"]
    options = {"text": True, "check": True}
    ended = subprocess.run(command, env=os.environ | freed_at_once, capture_output=True, **options)
    size, grown = map(int, ended.stdout.split())
    assert size > 150e6, "too small to tell"
    assert grown < size * (1 + 2 / LAYERS) + 20e6, f"{grown / size:.2f} times the weights"


def test_transformers_is_left_as_it_was(monkeypatch):
    monkeypatch.setenv(SEQUENTIAL, "0")
    mapped = modeling_utils.safe_open
    with pytest.raises(RuntimeError, match="stop"), reading_once():
        assert os.environ[SEQUENTIAL] == "1"
        assert modeling_utils.safe_open is not mapped
        raise RuntimeError("stop")
    assert os.environ[SEQUENTIAL] == "0"
    assert modeling_utils.safe_open is mapped


@pytest.fixture
def temporary(monkeypatch, tmp_path):
    """Where temporary folders are made."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def from_disk(monkeypatch, temporary, tmp_path):
    """Loads a small model. transformers believes that the machine has memory for a part of it."""

    def load(model_type, part):
        model = small_model(model_type)
        size = part * weight_bytes(model)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=size))
        keys = {} if model_type in ONE_WAY else {"experts_implementation": "eager"}
        folder = save_model(model, tmp_path / "model")
        return load_folder(folder, "float32", "auto", device_map="auto", **keys)

    return load


@pytest.mark.slow
@pytest.mark.parametrize("model_type", by_family(["olmoe", "gpt_oss", "deepseek", "deepseek_v3"]))
def test_roe_is_the_same_from_disk(model_type, from_disk):
    loaded = from_disk(model_type, 0.7)
    assert set(loaded.model.hf_device_map.values()) == {"disk", "cpu"}
    assert any(parameter.device.type == "meta" for parameter in loaded.model.parameters())
    assert loaded.device == torch.device("cpu")
    in_memory = small_model(model_type)
    in_memory.set_experts_implementation("eager")
    answers = roe_answers(loaded.model)
    expected = roe_answers(in_memory)
    in_memory.set_experts_implementation("grouped_mm")
    assert answers == rounding.approx(expected)


READS_PARAMETERS = {"dbrx", "gemma4_text", "jetmoe", "longcat_flash"}
"""Families that read parameters of a router which are not in memory then."""


@pytest.mark.slow
@pytest.mark.parametrize("model_type", by_family(sorted(ZOO)))
def test_every_family_is_the_same_from_disk_or_refused(model_type, from_disk):
    if model_type in READS_PARAMETERS:
        with pytest.raises(ModelError, match="cannot be routed|cannot read a text"):
            from_disk(model_type, 0.6)
        return
    loaded = from_disk(model_type, 0.6).model
    assert "disk" in loaded.hf_device_map.values()
    in_memory = small_model(model_type)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        logits = loaded(ids, use_cache=False).logits
        expected = in_memory(ids, use_cache=False).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_the_folder_on_disk_goes_with_the_model(from_disk, temporary):
    loaded = from_disk("olmoe", 0.5)
    (folder,) = temporary.iterdir()
    assert list(folder.glob("*experts*")), "fused experts are written again"
    del loaded
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_without_memory_for_embeddings_it_is_refused(from_disk, temporary):
    with pytest.raises(ModelError, match="embeddings"):
        from_disk("olmoe", 0.0)
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_with_memory_for_all_a_device_map_changes_nothing(tmp_path):
    loaded = load_folder(
        save_model(small_model("olmoe"), tmp_path), "float32", "auto", device_map="auto"
    )
    assert {parameter.device.type for parameter in loaded.model.parameters()} == {"cpu"}
    assert loaded.device == torch.device("cpu")


def test_a_model_is_placed_in_one_way():
    with pytest.raises(ConfigError, match="model.device_map=cpu"):
        build(ModelConfig, {"device_map": "cpu"}, "model.")
    with pytest.raises(ConfigError, match="device=cpu.*model.device_map"):
        Config(model=ModelConfig(device_map="auto"), device="cpu")


@pytest.mark.parametrize(
    ("limit", "free"), [("max", 7000), ("5000", 3000), ("90000", 7000), ("1000", 0)]
)
def test_a_container_may_have_less_memory_than_the_machine(tmp_path, monkeypatch, limit, free):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=7000))
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("2000\n")
    assert free_host_memory(tmp_path) == free


def test_peak_memory_is_this_processs_and_starts_anew():
    block = bytearray(200 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    with_block = peak_memory_bytes(None)
    assert with_block > 200 * 2**20
    del block
    reset_peak_memory(None)
    assert peak_memory_bytes(None) < with_block - 100 * 2**20


def test_weights_are_counted_with_their_size():
    model = torch.nn.Linear(10, 6)
    model.register_buffer("steps", torch.zeros(3, dtype=torch.float64))
    assert weight_bytes(model) == (60 + 6) * 4 + 3 * 8


class Node:
    """Refers to itself, as a Trainer does by its callbacks."""

    def __init__(self) -> None:
        self.own = self


def test_free_removes_reference_cycles_also_before_a_model_was_loaded():
    node = Node()
    seen = weakref.ref(node)
    del node
    ModelPool().free()
    assert seen() is None


def test_the_native_deepseek_moe_is_taken(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    assert load_config(ModelConfig(path=str(tmp_path)), offline=True).model_type == "deepseek"


@pytest.mark.parametrize("path", [None, "folder"])
def test_a_revision_of_a_folder_is_refused(path, tiny_olmoe_dir):
    model = ModelConfig(path=path and str(tiny_olmoe_dir), revision="v1")
    message = r"model.revision=v1 has no effect on the folder .*Leave it out"
    with pytest.raises(ConfigError, match=message):
        load_config(model, offline=True)


def test_add_bos_token_is_refused_if_the_tokenizer_has_no_such_token(tmp_path):
    make_tokenizer().save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", bos_token=None)
    model = ModelConfig(path=str(tmp_path), tokenizer=str(tmp_path), add_bos_token=True)
    message = "add_bos_token=true: the tokenizer of .* has no token for the beginning"
    with pytest.raises(ConfigError, match=message):
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
    assert config.num_hidden_layers >= 6
    assert config.num_experts >= 16
    assert config.num_experts_per_tok >= 4
    assert config.max_position_embeddings >= 2048
    assert config.vocab_size == len(tokenizer)
    assert config.output_router_logits is False
    assert json.loads((TINY / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.slow
def test_every_expert_is_used_on_held_out_documents(tiny):
    """About 7,000 tokens choose each expert of each layer. Entropies show that choices spread:

    4 bits would be uniform, 2 bits four experts.
    """
    model, tokenizer = tiny
    texts = [row["text"] for row in stories("test", 40)]
    texts += [
        f"Question: {row['question']}\nAnswer: {row['answer']}" for row in word_problems("test", 40)
    ]
    counts = torch.zeros(model.config.num_hidden_layers, model.config.num_experts)
    for text in texts:
        with torch.no_grad():
            logits = model(
                **tokenizer(text, return_tensors="pt"), output_router_logits=True
            ).router_logits
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
