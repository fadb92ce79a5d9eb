"""Adapters that are merged into a model.

Broken by: an adapter that is ignored in part, code that it names, weights that load before
it is refused, a run's id without its content.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models import load
from moe_lab.models.adapters import load_adapter, save_adapter
from moe_lab.models.identity import model_identity
from moe_lab.routing import find_routers
from tests.support import rounding
from tests.support.adapters import make_adapter
from tests.support.models import change_json, load_folder, make_model

TOKENS = torch.arange(10, 22)[None]
ATTENTION = ["q_proj", "v_proj"]


def loaded(model: Path, adapter: Path, **keys: Any) -> Any:
    return load_folder(model, peft=str(adapter), **keys).model


@pytest.mark.parametrize(
    "kind",
    [
        peft.LoraConfig(target_modules=ATTENTION, init_lora_weights=False, task_type="CAUSAL_LM"),
        peft.LoraConfig(
            target_parameters=["gate.weight"], target_modules=[], init_lora_weights=False
        ),
        peft.LoHaConfig(target_modules=ATTENTION, init_weights=False),
        peft.LoKrConfig(target_modules=ATTENTION, init_weights=False),
        peft.IA3Config(target_modules=ATTENTION, feedforward_modules=[], init_ia3_weights=False),
    ],
    ids=["LoRA", "LoRA of routers", "LoHa", "LoKr", "IA3"],
)
def test_a_merged_adapter_is_the_wrapped_model(kind, tiny_olmoe_dir, tmp_path):
    base = load_folder(tiny_olmoe_dir).model
    before = base(TOKENS).logits
    wrapped = make_adapter(base, kind, tmp_path)
    model = loaded(tiny_olmoe_dir, tmp_path)
    assert not isinstance(model, peft.PeftModel)
    assert len(find_routers(model)) == 4
    logits = model(TOKENS).logits
    rounding.assert_close(logits, wrapped(TOKENS).logits)
    assert (logits - before).abs().max() > 1e-3


@pytest.fixture
def adapter(tiny_olmoe_dir, tmp_path):
    kind = peft.LoraConfig(target_modules=ATTENTION, r=4, init_lora_weights=False)
    make_adapter(load_folder(tiny_olmoe_dir).model, kind, tmp_path / "a")
    return tmp_path / "a"


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"megatron_config": {"x": 1}, "megatron_core": "payload"},
            "names code, which is never run",
        ),
        ({"r": 8}, r"lora_A.weight has the shape \[4, 48\] in the adapter, and \[8, 48\]"),
        ({"target_modules": ["q_proj"]}, "and none in the model"),
        ({"target_modules": ["c_attn"]}, "does not fit the model: Target modules"),
    ],
)
def test_a_wrong_adapter_is_refused_without_weights(
    adapter, values, message, tiny_olmoe_dir, monkeypatch
):
    change_json(adapter / "adapter_config.json", **values)
    none = SimpleNamespace(
        from_pretrained=lambda *args, **keys: pytest.fail("the weights are loaded")
    )
    monkeypatch.setattr(load, "auto_class", lambda config: none)
    with pytest.raises(ModelError, match=message):
        loaded(tiny_olmoe_dir, adapter)


def test_other_refusals(adapter, tiny_olmoe_dir):
    with pytest.raises(ConfigError, match="on one device: leave model.device_map out"):
        loaded(tiny_olmoe_dir, adapter, device_map="auto")
    with pytest.raises(
        ModelError, match="no adapter in peft's format: it has no adapter_config.json"
    ):
        loaded(tiny_olmoe_dir, tiny_olmoe_dir)
    with pytest.raises(ModelError, match="There is no folder .*nowhere"):
        loaded(tiny_olmoe_dir, adapter / "nowhere")
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="it has no adapter_model.safetensors"):
        loaded(tiny_olmoe_dir, adapter)


def test_the_content_of_an_adapter_is_part_of_the_identity(adapter, tiny_olmoe_dir):
    source = str(tiny_olmoe_dir)
    plain = model_identity(source, ModelConfig(path=source))
    with_adapter = model_identity(source, ModelConfig(path=source, peft=str(adapter)))
    assert "peft" not in plain
    assert with_adapter == plain | {"peft": with_adapter["peft"]}
    change_json(adapter / "adapter_config.json", lora_alpha=99)
    assert model_identity(source, ModelConfig(path=source, peft=str(adapter))) != with_adapter


@pytest.mark.parametrize(
    "other_settings",
    [
        {"target_modules": ["k_proj"]},
        {"target_modules": [*ATTENTION, "k_proj"]},
        {"target_modules": ["q_proj"]},
    ],
    ids=["of another module", "of more modules", "of fewer"],
)
def test_a_stored_adapter_is_read_into_the_same_one_alone(other_settings, tmp_path):
    """Broken by tensors that are left out in silence, and by an adapter that is not read at all."""

    def with_adapter(**modules):
        config = peft.LoraConfig(init_lora_weights=False, task_type="CAUSAL_LM", **modules)
        return peft.get_peft_model(make_model("olmoe"), config)

    stored = with_adapter(target_modules=ATTENTION)
    save_adapter(stored, tmp_path)
    same_adapter = with_adapter(target_modules=ATTENTION)
    assert not torch.equal(same_adapter(TOKENS).logits, stored(TOKENS).logits)
    load_adapter(same_adapter, tmp_path)
    assert torch.equal(same_adapter(TOKENS).logits, stored(TOKENS).logits)
    with pytest.raises(ModelError, match="holds another adapter"):
        load_adapter(with_adapter(**other_settings), tmp_path)
