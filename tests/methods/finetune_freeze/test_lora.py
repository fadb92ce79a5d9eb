"""LoRA in `method=finetune-freeze`: targets, training, checkpoints, the stored adapter.

Broken by: a weight of the model that moves, a rank or a scale that does not reach peft, targets that peft changes in
silence, a resume that ends in another adapter, an adapter that peft and transformers read as another model.
"""

import os
from copy import deepcopy
from pathlib import Path

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import trainer as shared
from moe_lab.methods.finetune_freeze.config import FinetuneConfig, Lora
from moe_lab.methods.finetune_freeze.lora import empty_to_train, with_lora
from moe_lab.methods.finetune_freeze.parameter_groups import counts, parameter_groups, trainable
from moe_lab.methods.trained import save_model
from moe_lab.models.load import load_model
from tests.support import rounding
from tests.support.models import make_model, make_tokenizer, small_model
from tests.support.tiers import by_family, first_fast
from tests.support.trainings import assert_same, interrupted, train
from tests.support.two_processes import SETTINGS, by_two

TOKENS = torch.arange(10, 22)[None]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
REACHED = {
    "attention": (Lora(r=4), "other"),
    "routers": (Lora(r=4, target_modules=[], target_parameters=["gate.weight"]), "router"),
    "experts": (Lora(r=2, target_modules=[], target_parameters=EXPERTS), "experts"),
}
"""What is adapted, and the only group of parameters with an adapter."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "olmoe"
    small_model("olmoe").save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def adapted(folder: Path, lora: Lora, seed: int = 0):
    """A small OLMoE with an adapter."""
    config = Config(model=ModelConfig(path=str(folder)), seed=seed)
    return with_lora(deepcopy(small_model("olmoe")), lora, config, None)


def adapter_of(model) -> dict[str, torch.Tensor]:
    return {name: own.detach().clone() for name, own in model.named_parameters() if own.requires_grad}


@pytest.mark.parametrize("what", first_fast(REACHED, 2))
def test_the_adapter_alone_is_trained_and_peft_reads_it_as_the_same_model(what, folder, tmp_path):
    """Also with the merged weights of `model.peft=`, in which a run evaluates it."""
    lora, group = REACHED[what]
    model = adapted(folder, lora)
    before = adapter_of(model)
    weights = {name: own.clone() for name, own in model.named_parameters() if name not in before}
    course = train(model, tmp_path / "training", lora=lora, held_out=2)
    after = adapter_of(model)
    assert before.keys() == after.keys() and all("lora_" in name for name in after)
    assert not any(torch.equal(before[name], after[name]) for name in after if "lora_B" in name)
    for name, own in model.named_parameters():
        assert name in after or torch.equal(own, weights[name]), name
    assert {key for key, own in trainable(parameter_groups(model)).items() if own} == {group}
    assert course["validation"]["losses"] and course["expert_metrics"] is not None

    save_model(model, make_tokenizer(), tmp_path / "adapter", "float32")
    logits = model.eval()(TOKENS).logits
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert (logits - plain(TOKENS).logits).abs().max() > 1e-3
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    assert torch.equal(loaded(TOKENS).logits, logits)
    config = ModelConfig(path=str(folder), peft=str(tmp_path / "adapter"))
    merged = load_model(config, dtype="float32", device="cpu", offline=True).model
    rounding.assert_close(merged(TOKENS).logits, logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "adapter")("a").input_ids


@pytest.mark.parametrize(
    "lora, scale",
    [
        (Lora(r=4, lora_alpha=12), 3.0),
        (Lora(r=4, lora_alpha=12, use_rslora=True), 6.0),
        (Lora(r=2, target_modules=[], target_parameters=EXPERTS), 4.0),
    ],
)
def test_rank_and_scale_are_those_of_the_keys(lora, scale, folder):
    model = adapted(folder, lora)
    experts = 8 if lora.target_parameters else 1
    for name, own in adapter_of(model).items():
        rank = own.shape[0 if "lora_A" in name else 1]
        assert rank == lora.r * experts, name
        assert model.get_submodule(name.partition(".lora_")[0]).scaling == {"default": scale}


def test_the_seed_draws_the_adapter_and_leaves_the_generator(folder):
    state = torch.random.get_rng_state()
    one, same, other = (adapter_of(adapted(folder, Lora(r=2), seed)) for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


DROPOUT = {"save_steps": 2, "epochs": 2, "count": 5, "lora": Lora(r=4, lora_dropout=0.1)}
"""A training of 6 steps."""


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory) -> dict[str, torch.Tensor]:
    model = adapted(folder, DROPOUT["lora"])
    train(model, tmp_path_factory.mktemp("whole"), **DROPOUT)
    return adapter_of(model)


@pytest.mark.parametrize("last", (2, pytest.param(4, marks=pytest.mark.slow)))
def test_a_resumed_training_ends_in_the_same_bytes(last, undisturbed, folder, tmp_path):
    """With dropout, whose random numbers go on where they were."""
    lora = DROPOUT["lora"]
    with interrupted(last + 1):
        train(adapted(folder, lora), tmp_path / "cut", **DROPOUT)
    kept = shared.last_checkpoint(tmp_path / "cut" / "checkpoints")
    assert kept.name == f"checkpoint-{last}"
    assert (kept / "adapter_model.safetensors").is_file() and not (kept / "model.safetensors").exists()
    resumed = adapted(folder, lora)
    train(resumed, tmp_path / "cut", **DROPOUT)
    assert_same(undisturbed, adapter_of(resumed))


def test_the_memory_is_that_of_the_weights_and_of_the_adapters_training(folder, tmp_path):
    lora = Lora(r=4)
    config = Config(model=ModelConfig(path=str(folder)), method=FinetuneConfig(lora=lora))
    empty = empty_to_train(config, lora, "bfloat16")
    model = adapted(folder, lora)
    weights = sum(own.numel() for own in small_model("olmoe").parameters())
    own = sum(own.numel() for own in adapter_of(model).values())
    assert counts(trainable(parameter_groups(empty)))["other"] == own
    [phase] = train(model, tmp_path, lora=lora, count=2)["phases"]
    assert phase["gradient_bytes"] == 4 * own and phase["optimizer_bytes"] == 8 * own
    assert phase["saved_bytes"] == 12 * (weights - own)


def test_a_model_in_bfloat16_has_a_float32_adapter(folder, tmp_path):
    config = Config(model=ModelConfig(path=os.path.relpath(folder)))
    lora = Lora(r=4, target_parameters=["experts.down_proj"])
    model = with_lora(deepcopy(small_model("olmoe")).bfloat16(), lora, config, None)
    assert model.peft_config["default"].base_model_name_or_path == str(folder.resolve())
    train(model, tmp_path, lora=lora, dtype="bfloat16", count=4)
    assert {own.dtype for own in adapter_of(model).values()} == {torch.float32}
    save_model(model, make_tokenizer(), tmp_path / "adapter", "float32")
    config = ModelConfig(path=str(folder), peft=str(tmp_path / "adapter"))
    merged = load_model(config, dtype="bfloat16", device="cpu", offline=True).model
    difference = merged(TOKENS).logits - model.eval()(TOKENS).logits
    assert difference.abs().max() < 0.1, "merging rounds to bfloat16"


def test_an_impossible_rank():
    with pytest.raises(ConfigError, match=r"method\.lora\.r=0: must be"):
        Lora(r=0)


def test_an_adapter_needs_peft(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(
        "moe_lab.methods.finetune_freeze.config.need_package", lambda name, *_: asked.append(name)
    )
    Lora()
    assert asked == []
    Lora(r=2)
    assert asked == ["peft"]


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"target_modules": "q_proj"}, "method.lora is refused by peft"),
        ({"target_modules": ["experts"]}, "is refused by peft: .*Target module OlmoeExperts"),
        ({"target_modules": []}, "is refused by peft: .*No `target_modules` passed"),
        ({"lora_dropout": 1.5}, "is refused by peft: .*dropout probability"),
        ({"lora_dropout": 0.1, "target_parameters": EXPERTS}, "is refused by peft: .*lora_dropout"),
    ],
)
def test_targets_that_the_model_or_peft_does_not_have(keys, message, folder):
    lora = Lora(r=2, **keys)
    config = Config(model=ModelConfig(path=str(folder)), method=FinetuneConfig(lora=lora))
    with pytest.raises(ConfigError, match=message):
        empty_to_train(config, lora)


@pytest.mark.parametrize(
    "family", by_family(("olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "granitemoe"))
)
def test_routers_and_experts_of_a_family_are_reached_by_the_names_of_their_parameters(family, tmp_path):
    small_model(family).save_pretrained(tmp_path)
    config = Config(model=ModelConfig(path=str(tmp_path)))
    groups = parameter_groups(small_model(family))
    members = {id(each) for group in ("router", "experts") for each in groups[group] if each.dim() > 1}
    names = [name for name, each in small_model(family).named_parameters() if id(each) in members]
    lora = Lora(r=2, target_parameters=sorted({".".join(name.split(".")[-2:]) for name in names}))
    model = with_lora(deepcopy(small_model(family)), lora, config, None)
    model(TOKENS, labels=TOKENS).loss.backward()
    assert all(own.grad is not None for own in model.parameters() if own.requires_grad)
    reached = {key for key, own in trainable(parameter_groups(model)).items() if own}
    assert reached == {"router", "experts", "other"}


@pytest.mark.slow
def test_two_processes_are_equal_to_each_other_and_train_as_one(folder, tmp_path):
    lora = Lora(r=4, target_parameters=["gate.weight", *EXPERTS])
    assert by_two("ddp", folder, tmp_path / "two", lora=lora) == [0, 0]
    one, other = (torch.load(tmp_path / "two" / f"step6.rank{rank}.pt")[0] for rank in (0, 1))
    assert all(torch.equal(one[name], other[name]) for name in one)
    alone = adapted(folder, lora)
    train(alone, tmp_path / "one", lora=lora, **SETTINGS | {"gradient_accumulation": 2})
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(one[name], value, atol=1e-5, rtol=0, msg=name)


def test_all_linear_is_every_linear_module_of_a_dense_model_but_the_head(tmp_path):
    make_model("llama").save_pretrained(tmp_path)
    lora = Lora(r=2, target_modules="all-linear")
    config = Config(model=ModelConfig(path=str(tmp_path)), method=FinetuneConfig(lora=lora))
    adapted_names = set(empty_to_train(config, lora).base_model.targeted_module_names)
    linear = {name for name, each in make_model("llama").named_modules() if isinstance(each, torch.nn.Linear)}
    assert adapted_names == linear - {"lm_head"} and len(adapted_names) > 4
