"""Image-and-text models, asked with text alone: what is loaded is transformers' own model, whose
towers of images are counted and stay as they are.

`tests/families` compares their text models with the slow references. Broken by: a text part that is
loaded without its towers, positions of three axes, a router of images that is taken for one of
text, a tower that a training changes.
"""

import copy
import json
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    DiffusionGemmaConfig,
    Inkling2LoopConfig,
    LlavaConfig,
    Mistral3Config,
    T5Config,
)

from moe_lab import RoE
from moe_lab.config.schema import ModelConfig
from moe_lab.engine.footprint import meta_model
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods.finetune_freeze.adapter import with_adapter
from moe_lab.methods.finetune_freeze.parameter_groups import (
    counts,
    empty_model,
    parameter_groups,
    trainable,
)
from moe_lab.methods.virtual_tokens.training import VirtualTokensLM
from moe_lab.methods.virtual_tokens.training import with_adapter as virtual_tokens
from moe_lab.models.auto_class import experts_option
from moe_lab.models.facts import model_facts, resolve_dtype
from moe_lab.models.memory import weight_bytes
from moe_lab.models.source import load_config
from moe_lab.models.text_part import tower_parameters
from moe_lab.routing.families import REFUSED_IMAGE_TEXT, family_of_type, image_text_types
from tests.support.command import run_command
from tests.support.ensembles import answered, greedy_by_transformers
from tests.support.families import IMAGE_TEXT, TEXT_ONLY
from tests.support.models import (
    END_TOKEN,
    load_folder,
    make_tokenizer,
    save_model,
    small_model,
    whole_model,
)
from tests.support.sources import ROOT
from tests.support.tiers import first_fast
from tests.support.trainings import train

MODELS = ["qwen3_vl_moe", *sorted(set(IMAGE_TEXT) - {"qwen3_vl_moe"})]
every_model = pytest.mark.parametrize("model_type", first_fast(MODELS))
IDS = torch.arange(12)[None] * 7 % 300


def test_every_model_type_of_the_table_has_a_small_model():
    with_small_model = {"mistral4"}  # a text model that transformers lists with them
    for name, parts in IMAGE_TEXT.items():
        model_type = parts.get("type", name)
        with_small_model.add(model_type)
        assert model_type in family_of_type(parts["text"]).image_text
    assert set(image_text_types()) == with_small_model


@every_model
def test_a_folder_is_loaded_as_transformers_loads_it(model_type, tmp_path):
    model = small_model(model_type)
    keys = {}
    option = experts_option(model.config, "eager")
    if option is not None:
        keys["experts_implementation"] = "eager"
    save_model(model, tmp_path)
    mapped = AutoModelForImageTextToText.from_pretrained(tmp_path, experts_implementation=option)
    own = copy.deepcopy(mapped)  # tensors of a mapped file are aligned otherwise, and round so

    loaded = load_folder(tmp_path, "float32", **keys)

    assert type(loaded.model) is type(own)
    with torch.no_grad():
        assert torch.equal(loaded.model(IDS).logits, own(IDS).logits)
    assert loaded.facts.family == IMAGE_TEXT[model_type]["text"]
    assert loaded.facts.moe_layers in (2, 3, 4)
    assert (loaded.facts.experts, loaded.facts.top_k) == (8, 2)
    assert weight_bytes(loaded.model) == weight_bytes(own)


def test_the_dtype_may_be_that_of_the_text_model():
    config = copy.deepcopy(small_model("qwen3_vl_moe").config)
    config.dtype = None
    config.text_config.dtype = torch.bfloat16
    assert resolve_dtype("auto", torch.device("cuda"), config) == "bfloat16"


@every_model
def test_generated_tokens_are_those_of_generate(model_type):
    model = small_model(model_type)
    lm = EngineLM(model, make_tokenizer(), progress=False)
    prompts = ["what", "a prompt that is longer"]
    options = {"until": [], "max_gen_toks": 4, "do_sample": False}
    answers = answered(lm, "generate_until", [(prompt, options) for prompt in prompts])
    for answer, prompt in zip(answers, prompts, strict=True):
        tokens = greedy_by_transformers(model, make_tokenizer().encode(prompt), 4)
        if END_TOKEN in tokens:
            tokens = tokens[: tokens.index(END_TOKEN)]
        assert answer == make_tokenizer().decode(tokens)


@every_model
def test_roe_generates_in_a_batch_what_the_model_generates_alone(model_type):
    model = small_model(model_type)
    tokenizer = make_tokenizer()
    roe = RoE(model, tokenizer, n=2, temperature=0.0, skip_layers=0)
    prompts = ["what", "a prompt that is longer"]
    texts = roe.generate(prompts, max_new_tokens=4, do_sample=False, eos_token_id=None)
    for text, prompt in zip(texts, prompts, strict=True):
        tokens = greedy_by_transformers(model, tokenizer.encode(prompt), 4)
        assert text == tokenizer.decode(tokens, skip_special_tokens=True)


def test_positions_of_an_earlier_generation_do_not_move_virtual_tokens():
    model = small_model("qwen3_vl_moe")
    pairs = [("ab", "cd"), ("what lies before", " and"), ("x", " y")]
    with virtual_tokens(model, "soft-prompt", 3) as wrapped:
        lm = VirtualTokensLM(wrapped, make_tokenizer(), progress=False, batch_size=4)
        scores = answered(lm, "loglikelihood", pairs)
        ids = torch.arange(20).reshape(5, 4)
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2)
        assert answered(lm, "loglikelihood", pairs) == scores


@every_model
def test_plans_count_the_towers(model_type):
    model = small_model(model_type)
    towers = tower_parameters(model)
    assert towers
    assert weight_bytes(meta_model(model.config, torch.float32)) == weight_bytes(model)
    trained = trainable(parameter_groups(empty_model(model.config)))
    expected = 0
    for name, parameter in model.named_parameters():
        if name not in towers and parameter.requires_grad:
            expected += parameter.numel()
    assert sum(counts(trained).values()) == expected


@every_model
def test_a_training_leaves_the_towers_as_they_are(model_type, tmp_path):
    save_model(small_model(model_type), tmp_path / "model")
    loaded = load_folder(tmp_path / "model", "float32").model
    before = copy.deepcopy(loaded.state_dict())
    towers = tower_parameters(loaded)

    train(loaded, tmp_path / "training")

    changed = set()
    for name, parameter in loaded.named_parameters():
        if not torch.equal(parameter, before[name]):
            changed.add(name)
    assert not changed & set(towers)
    assert any("experts" in name for name in changed)
    assert any(name.endswith(("gate.weight", "router.weight")) for name in changed)


def test_adapters_are_trained_for_the_text_model_alone():
    model = copy.deepcopy(small_model("mistral3"))
    towers = {name.rpartition(".")[0] for name in tower_parameters(model)}
    assert any(name.endswith("o_proj") for name in towers), "a name of both parts"
    for excluded in (None, ["layers.0.self_attn.o_proj"], r".*layers\.0\..*"):
        settings: dict[str, Any] = {"peft_type": "LORA", "target_modules": ["o_proj"]}
        if excluded:
            settings["exclude_modules"] = excluded
        wrapped = with_adapter(copy.deepcopy(model), settings, seed=0)
        adapted = set()
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                adapted.add(name.partition(".lora_")[0])
        layers = range(1, 4) if excluded else range(4)
        prefix = "base_model.model.model.language_model.layers"
        assert adapted == {f"{prefix}.{layer}.self_attn.o_proj" for layer in layers}


@pytest.mark.parametrize("model_type", first_fast(sorted(TEXT_ONLY)))
def test_what_auto_model_for_causal_lm_takes_is_loaded_by_it(model_type, tmp_path):
    model = whole_model(model_type)
    save_model(model, tmp_path)

    loaded = load_folder(tmp_path, "float32")

    assert loaded.facts.family == TEXT_ONLY[model_type]["text"]
    assert loaded.facts.moe_layers in (3, 4)
    assert bool(tower_parameters(loaded.model)) == (model_type == "gemma4")
    text_model = model
    if model_type == "llama4":  # without an image its own pass fails
        text_model = model.language_model
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(IDS).logits, text_model(IDS).logits)


# Refusals


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (T5Config(), "t5, which is no causal language model"),
        (LlavaConfig(), "an image-and-text model of the type llava with a text model of the type"),
        (Mistral3Config(), "of the type mistral3 with a text model of the type mistral, which"),
        (DiffusionGemmaConfig(), "writes the tokens of a block together"),
        (Inkling2LoopConfig(), "run several times for a token"),
    ],
    ids=["t5", "llava", "mistral3", "diffusion_gemma", "inkling2_loop"],
)
def test_a_model_that_does_not_run_is_refused_before_its_weights(config, message, tmp_path):
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rf"{message}(.|\n)*docs/models\.md") as refused:
        load_config(ModelConfig(path=str(tmp_path)), offline=True)
    assert len(str(refused.value).splitlines()) <= 3


def test_refused_models_are_named_with_the_reason():
    text = " ".join((ROOT / "docs" / "models.md").read_text().split())
    for model_type, reason in REFUSED_IMAGE_TEXT.items():
        assert f"`{model_type}`: {reason}" in text


def test_tensor_parallelism_is_refused_before_weights_load(tmp_path):
    small_model("qwen3_vl_moe").config.save_pretrained(tmp_path)
    split = ModelConfig(path=str(tmp_path), load={"tp_plan": "auto"})
    with pytest.raises(ConfigError, match=r"model\.load\.tp_plan(.|\n)*qwen3_vl_moe"):
        model_facts(split, dtype="float32", device="cpu", offline=True)


# The command

COMMANDED = ("qwen3_vl_moe", "aria", "glm4v_moe", "mistral3", "nemotron_h_omni")
ROE = ("method=roe", "method.n=3", "method.skip_layers=0", "method.temperature=0.5")
C3PO = ("method=c3po", "method.layers=all", "method.steps=2")
FINETUNE = ("method=finetune-freeze", "method.schedule=experts-router", "method.epochs=1")
FINETUNE += ("method.dataset_size=8", "method.batch_size=2", "method.gradient_accumulation=1")


@pytest.mark.parametrize("model_type", first_fast(COMMANDED, 0))
def test_the_command_runs_each_method_and_trains(model_type, tmp_path, capsys):
    save_model(small_model(model_type), tmp_path / "model")
    options = ("limit=2", "device=cpu", f"model.path={tmp_path / 'model'}")
    options += (f"output_dir={tmp_path / 'outputs'}",)
    text_type = IMAGE_TEXT[model_type]["text"]
    lines = [
        (*ROE, "task=toy_math", "gen_kwargs=max_gen_toks=3"),
        (*ROE, "task=toy_choice"),
        (*FINETUNE, "task=toy_choice"),
    ]
    if family_of_type(text_type).chooses_by_logits:
        lines.append((*C3PO, "task=toy_choice"))
    for line in lines:
        ended = run_command(capsys, *line, *options)
        assert ended.code == 0, ended.err
        assert "HF model type" not in ended.err, "a warning of lm-eval"
        for result in ended.results:
            assert result["moe_lab"]["model"]["family"] == text_type

    before = small_model(model_type)
    towers = set(tower_parameters(before))
    folders = list((tmp_path / "outputs" / "models").glob("*/model"))
    assert folders
    for trained in folders:
        after = load_folder(trained, "float32").model.state_dict()
        assert after.keys() == before.state_dict().keys()
        changed = set()
        for name, tensor in before.state_dict().items():
            if not torch.equal(after[name], tensor):
                changed.add(name)
        assert changed
        assert not changed & towers
        assert "use_cache" not in json.loads((trained / "config.json").read_text())
    again = run_command(
        capsys, "method=base", "task=toy_choice", "limit=2", f"model.path={trained}"
    )
    assert again.code == 0, again.err
