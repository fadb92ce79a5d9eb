"""`method.peft`: adapters of peft, trained in place of the weights.

Broken by: a step that is not peft's own, an adapter that a frozen group trains, a weight of the
model that changes, a resumed training with other bytes, an adapter that is evaluated on other
weights, a field that does nothing.
"""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, set_seed

from moe_lab.errors import ConfigError
from moe_lab.methods.finetune_freeze.adapter import REFUSED, with_adapter
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.finetune_freeze.parameter_groups import counts, parameter_groups, trainable
from moe_lab.methods.finetune_freeze.training import finetune
from moe_lab.methods.tokenized import Pad, Rows
from moe_lab.models.adapters import attached, merged, save_adapter
from tests.support.command import run_command
from tests.support.models import small_model
from tests.support.trainings import interrupted, rows, training_of

ROUTER = {"gpt_oss": "router.weight"}
"""The parameter of a router, if it is not gate.weight."""
FAMILIES = ("olmoe", "mixtral", "qwen3_moe", "gpt_oss")


def settings_of(family: str) -> dict[str, Any]:
    """An adapter of attention, of fused experts and of routers."""
    return {
        "peft_type": "LORA",
        "r": 3,
        "lora_alpha": 6,
        "target_modules": ["q_proj", "v_proj"],
        "target_parameters": [
            "experts.gate_up_proj",
            "experts.down_proj",
            ROUTER.get(family, "gate.weight"),
        ],
    }


def train_adapter(family: str, folder: Path, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """The PeftModel after a training, and the content of training.json."""
    given = {"peft": settings_of(family), "warmup_ratio": 0.0, "weight_decay": 0.0} | settings
    training = training_of(folder, **given)
    wrapped = with_adapter(deepcopy(small_model(family)), training.method.peft, seed=0)
    return finetune(training, wrapped)


def adapter_of(wrapped: Any) -> dict[str, torch.Tensor]:
    """A copy of the adapter's tensors by name."""
    tensors = {}
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            tensors[name] = parameter.detach().clone()
    return tensors


def plain_loop(family: str) -> Any:
    """peft's model after six steps of AdamW on two rows each, in the order of the rows."""
    set_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", **settings_of(family))
    wrapped = get_peft_model(deepcopy(small_model(family)), config).train()
    parameters = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0)
    collate = Pad(0)
    data = Rows(rows(12))
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 1e-2 * (6 - step) / 6
        batch = collate([data[2 * step], data[2 * step + 1]])
        wrapped(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return wrapped


@pytest.mark.parametrize("family", FAMILIES)
def test_a_training_is_that_of_a_plain_loop(family, tmp_path):
    in_order = {"train_sampling_strategy": "sequential"}
    wrapped, info = train_adapter(family, tmp_path, trainer=in_order)
    trained = adapter_of(wrapped)
    expected = adapter_of(plain_loop(family))
    assert trained.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(trained[name], tensor, atol=5e-5, rtol=1e-3, msg=name)
    start = adapter_of(with_adapter(deepcopy(small_model(family)), settings_of(family), seed=0))
    for name, tensor in trained.items():
        assert not torch.equal(start[name], tensor), name
    before = small_model(family).state_dict()
    for name, tensor in wrapped.get_base_model().state_dict().items():
        original = name.replace("base_layer.", "")
        if original in before:
            assert torch.equal(tensor, before[original]), name


@pytest.mark.parametrize("family", ["olmoe", "gpt_oss"])
def test_the_adapters_of_a_group_are_frozen_with_it(family, tmp_path):
    """The experts' adapters alone are trained in a first phase, all others in a second one."""
    start = adapter_of(with_adapter(deepcopy(small_model(family)), settings_of(family), seed=0))

    experts_alone = [{"frozen": ["router", "other"]}]
    wrapped, _ = train_adapter(family, tmp_path / "one", phases=experts_alone, max_steps=3)
    for name, tensor in adapter_of(wrapped).items():
        is_trained = ".experts." in name
        assert torch.equal(tensor, start[name]) == (not is_trained), name

    phases = [{"frozen": ["router", "other"], "until": 0.5}, {"frozen": ["experts"], "until": 1.0}]
    wrapped, _ = train_adapter(family, tmp_path / "two", phases=phases, max_steps=6)
    after_both = adapter_of(wrapped)
    assert after_both.keys() == start.keys()
    routers = [name for name in after_both if "gate." in name or "router." in name]
    assert routers != []
    for name in routers:
        assert not torch.equal(after_both[name], start[name]), name


def test_groups_count_the_adapters():
    wrapped = with_adapter(deepcopy(small_model("olmoe")), settings_of("olmoe"), seed=0)
    by_group = counts(trainable(parameter_groups(wrapped)))
    total = sum(tensor.numel() for tensor in adapter_of(wrapped).values())
    assert sum(by_group.values()) == total
    for group in ("router", "experts", "other"):
        assert by_group[group] > 0, group


def test_a_resumed_training_ends_in_the_same_bytes(tmp_path):
    settings: dict[str, Any] = {"save_steps": 2}
    expected, info = train_adapter("olmoe", tmp_path / "whole", **settings)
    with interrupted(5):
        train_adapter("olmoe", tmp_path / "cut", **settings)
    names = [path.name for path in (tmp_path / "cut" / "checkpoints").glob("checkpoint-4/*")]
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names
    resumed, info_again = train_adapter("olmoe", tmp_path / "cut", **settings)
    assert info_again == info
    for name, tensor in adapter_of(expected).items():
        assert torch.equal(tensor, adapter_of(resumed)[name]), name


def test_the_saved_adapter_gives_the_logits_of_the_trained_model(tmp_path):
    wrapped, _ = train_adapter("olmoe", tmp_path)
    save_adapter(wrapped, tmp_path / "adapter")
    ids = torch.tensor([rows(1)[0].ids])
    with torch.no_grad():
        expected = wrapped.eval()(input_ids=ids).logits
        base = small_model("olmoe")(input_ids=ids).logits
        next_to_it = attached(deepcopy(small_model("olmoe")), tmp_path / "adapter", "it")
        in_weights = merged(deepcopy(small_model("olmoe")), tmp_path / "adapter", "it")
        assert torch.equal(next_to_it(input_ids=ids).logits, expected)
        torch.testing.assert_close(in_weights(input_ids=ids).logits, expected, atol=1e-4, rtol=1e-4)
    assert (base - expected).abs().max() > 0.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rr": 3}, "Unknown LORA field method.peft.rr. Did you mean 'r'"),
        ({"peft_type": "LARA"}, "Did you mean 'LORA'"),
        ({"peft_type": "PROMPT_TUNING"}, "Use method=soft-prompt"),
        ({"peft_type": "ADALORA"}, "ADALORA is not taken"),
        ({"peft_type": "SHADOW"}, "SHADOW is not taken"),
        ({"r": "many"}, "method.peft.r=many: expected an integer"),
        ({"init_lora_weights": "pissa"}, "changes the weights below the adapter"),
    ],
    ids=str,
)
def test_a_wrong_field_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        FinetuneConfig(peft=given)


def test_an_adapter_that_peft_does_not_merge_is_not_merged():
    given = {"peft_type": "LILY", "target_modules": ["q_proj"]}
    FinetuneConfig(peft=given)
    with pytest.raises(ConfigError, match="peft does not merge LILY"):
        FinetuneConfig(peft=given, merge_adapter=True)


def test_every_refused_field_is_peft_s_and_has_a_reason():
    from dataclasses import fields

    known = {field.name for field in fields(LoraConfig)}
    for name, reason in REFUSED.items():
        assert name in known
        with pytest.raises(ConfigError, match=f"method.peft.{name} is not taken: "):
            FinetuneConfig(peft={name: "1"})
        assert len(reason) > 15


@pytest.mark.parametrize("kind", ["LORA", "LOHA", "LOKR", "IA3", "OFT", "VERA", "HRA", "LN_TUNING"])
def test_other_types_of_peft_are_trained(kind, tmp_path):
    names = {"LN_TUNING": ["input_layernorm"]}.get(kind, ["q_proj", "v_proj"])
    given: dict[str, Any] = {"peft_type": kind, "target_modules": names}
    if kind == "IA3":
        given["feedforward_modules"] = []
    _, info = train_adapter("olmoe", tmp_path, peft=given, max_steps=2)
    assert info["first_loss"] > 0


@pytest.mark.parametrize(
    ("field", "name", "message"),
    [
        ("target_modules", "v_prj", "the model has no v_prj. Did you mean 'v_proj'"),
        ("modules_to_save", "lm_haed", "the model has no lm_haed. Did you mean 'lm_head'"),
        ("target_parameters", "experts.gate_up", "the model has no experts.gate_up. Did you mean"),
    ],
)
def test_one_name_of_several_that_the_model_lacks_is_refused(field, name, message):
    given = settings_of("olmoe") | {"modules_to_save": ["lm_head"]}
    with_adapter(deepcopy(small_model("olmoe")), given, seed=0)
    with pytest.raises(ConfigError, match=f"method.peft.{field}: {message}"):
        with_adapter(deepcopy(small_model("olmoe")), given | {field: [*given[field], name]}, seed=0)


def test_spellings_of_one_adapter_are_one_recipe():
    recipe = FinetuneConfig(peft={"target_modules": ["q_proj", "v_proj"]}).recipe()
    in_full: dict[str, Any] = {
        "peft_type": "lora",
        "r": 8,
        "lora_dropout": 0,
        "target_modules": ["v_proj", "q_proj"],
        "init_lora_weights": True,
    }
    assert FinetuneConfig(peft=in_full).recipe() == recipe
    assert FinetuneConfig(peft=in_full | {"r": 4}).recipe() != recipe


def test_modules_that_the_model_lacks_are_refused():
    model = deepcopy(small_model("olmoe"))
    with pytest.raises(ConfigError, match="method.peft: Target modules .*foo.* not found"):
        with_adapter(model, {"peft_type": "LORA", "target_modules": ["foo"]}, seed=0)


COMMAND = (
    "method=finetune-freeze",
    "method.max_steps=4",
    "method.dataset_size=20",
    "method.validation_size=0",
    "method.learning_rate=0.001",
    "method.peft.r=4",
    "method.peft.target_modules=[q_proj,v_proj]",
    "limit=4",
)


@pytest.mark.slow
def test_the_command_trains_once_and_evaluates_both_ways(tmp_path, capsys):
    folder = f"output_dir={tmp_path}"
    as_it_is = run_command(capsys, *COMMAND, folder)
    assert as_it_is.code == 0, as_it_is.err
    assert "Trained: " in as_it_is.err
    in_weights = run_command(capsys, *COMMAND, "method.merge_adapter=true", folder)
    assert in_weights.code == 0, in_weights.err
    assert "Trained: " not in in_weights.err, "the same adapter"
    assert as_it_is.folders != in_weights.folders
    [adapter] = tmp_path.glob("models/*/adapter")
    assert not (adapter.parent / "model").exists()
    AutoModelForCausalLM.from_pretrained(adapter)  # transformers reads it, with its base model

    onto_another = run_command(capsys, *COMMAND, f"model.peft={adapter}", folder)
    assert onto_another.code == 2
    assert "model.peft names another one" in onto_another.err

    routed = run_command(
        capsys,
        "method=roe",
        "method.n=2",
        f"model.peft={adapter}",
        "model.merge_adapter=false",
        "limit=2",
        folder,
    )
    assert routed.code == 0, routed.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("method.peft.target_modules=[foo]",), "not found in the base model"),
        (("method.schedule=experts", "method.peft.target_modules=[q_proj]"), None),
        (
            (
                "method.schedule=experts",
                "method.peft.target_modules=null",
                "method.peft.target_parameters=[experts.down_proj]",
            ),
            "nothing would be trained",
        ),
    ],
    ids=str,
)
def test_an_adapter_that_cannot_be_trained_is_refused_before_weights_load(
    more, message, tmp_path, capsys, loads
):
    ended = run_command(capsys, *COMMAND, *more, "mode=plan", f"output_dir={tmp_path}")
    assert loads == []
    if message is None:
        assert ended.code == 0, ended.err
    else:
        assert ended.code == 2
        assert message in ended.err
