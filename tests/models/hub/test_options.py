"""The options of conf/model: each plans by its real id, and runs with a small folder in the place of its weights.

Broken by: an id or a configuration that transformers cannot read, a family that does not run from the command line, a
quantization that is refused though it can be loaded, weights that are fetched to plan.
"""

import json
from pathlib import Path

import pytest
from transformers import AriaConfig

from moe_lab.config.schema import ModelConfig
from moe_lab.models.facts import model_facts
from moe_lab.models.source import load_config
from tests.support.command import run_command
from tests.support.hub.published import PUBLISHED
from tests.support.hub.repositories import Repository
from tests.support.models import make_tokenizer, save_model, small_model
from tests.support.runs import worked_sums, write_jsonl
from tests.support.tiers import first_fast

MODELS = {
    "olmoe": ("allenai/OLMoE-1B-7B-0924-Instruct", "olmoe", 16),
    "olmoe-base": ("allenai/OLMoE-1B-7B-0924", "olmoe", 16),
    "olmoe-0125-instruct": ("allenai/OLMoE-1B-7B-0125-Instruct", "olmoe", 16),
    "gpt-oss": ("openai/gpt-oss-20b", "gpt_oss", 24),
    "mixtral": ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral", 32),
    "deepseek-moe": ("deepseek-ai/deepseek-moe-16b-base", "deepseek", 27),
    "qwen3-moe": ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3_moe", 48),
    "granite-moe-1b": ("ibm-granite/granite-3.1-1b-a400m-instruct", "granitemoe", 24),
}
"""Option -> hub id, family, MoE layers of the published model."""


@pytest.fixture
def data_dir(tmp_path):
    """GSM8K as `data_dir` has it."""
    for split in ("train", "test"):
        write_jsonl(tmp_path / "data" / "gsm8k" / f"{split}.jsonl", worked_sums(8))
    return tmp_path / "data"


@pytest.mark.slow
def test_all_plan_by_their_real_ids(client, hub, data_dir, tmp_path, capsys):
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")
    tokenizer = {file.name: file.read_bytes() for file in (tmp_path / "tokenizer").iterdir()}
    for option, (name, _, _) in MODELS.items():
        published = PUBLISHED[option] | {"num_hidden_layers": 4}  # of all kinds: dense, with a window, full
        if "layer_types" in published:
            published["layer_types"] = published["layer_types"][:4]
        files = tokenizer | {"config.json": json.dumps(published).encode()}
        hub.add(Repository(name)).commit(files | {"model.safetensors": b"never fetched"})
    options = ["task=gsm8k", f"data_dir={data_dir}", "limit=2", f"output_dir={tmp_path / 'outputs'}"]
    ended = run_command(capsys, "-m", "mode=plan", "method=roe", f"model={','.join(MODELS)}", *options)
    assert ended.code == 0, ended.err
    for option, (name, _, _) in MODELS.items():
        assert option in ended.out and name in json.dumps(hub.log, default=str)
    assert not any("safetensors" in answer.path and answer.method == "GET" for answer in hub.log)
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("option", first_fast(list(MODELS)[3:]))
def test_each_runs_on_a_small_folder(option, data_dir, tmp_path, capsys):
    _, family, _ = MODELS[option]
    save_model(small_model(family), tmp_path / "model")
    options = ["task=gsm8k", f"data_dir={data_dir}", "limit=2", "num_fewshot=1", "gen_kwargs=max_gen_toks=4"]
    options += [f"model.path={tmp_path / 'model'}", f"output_dir={tmp_path / 'outputs'}", "device=cpu"]
    method = ["method=roe", "method.n=3", "method.skip_layers=0", "method.temperature=0.5"]
    ended = run_command(capsys, *method, f"model={option}", *options)
    assert ended.code == 0, ended.err
    block = json.loads(Path(ended.out.strip().splitlines()[-1]).read_text(encoding="utf-8"))["moe_lab"]
    assert block["model"]["family"] == family
    assert block["roe"]["changed_fraction"] > 0 and len(block["baseline"]["run_id"]) == 64


@pytest.mark.parametrize("option", MODELS)
def test_the_published_shape_is_read(option, tmp_path):
    _, family, layers = MODELS[option]
    published = PUBLISHED[option]
    (tmp_path / "config.json").write_text(json.dumps(published))
    model = ModelConfig(path=str(tmp_path))
    facts = model_facts(model, dtype="bfloat16", device="cpu", offline=True)
    experts = (
        published.get("num_local_experts") or published.get("num_experts") or published["n_routed_experts"]
    )
    assert (facts.family, facts.moe_layers, facts.experts) == (family, layers, experts)
    assert (facts.top_k, facts.max_length) == (
        published["num_experts_per_tok"],
        published["max_position_embeddings"],
    )
    config = load_config(model, offline=True)
    assert config.rope_parameters["rope_theta"] == published["rope_theta"]
    assert getattr(config, "sliding_window", None) == published.get("sliding_window")
    assert option == "gpt-oss" or str(config.dtype) == f"torch.{published['torch_dtype']}"


@pytest.mark.parametrize("mode", ["plan", "run", "prefetch"])
def test_the_weights_of_a_model_that_cannot_run_are_not_fetched(mode, client, hub, tmp_path, capsys):
    make_tokenizer().save_pretrained(tmp_path / "model")
    AriaConfig().save_pretrained(tmp_path / "model")
    files = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    hub.add(Repository("someone/aria")).commit(files | {"model.safetensors": b"never fetched"})
    ended = run_command(
        capsys, f"mode={mode}", "method=base", "model.path=someone/aria", f"output_dir={tmp_path / 'outputs'}"
    )
    assert ended.code == 2 and "no causal language model" in ended.err
    assert not any("safetensors" in answer.path for answer in hub.log)
