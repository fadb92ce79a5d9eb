"""`model.load`: keywords of transformers' from_pretrained.

Broken by: a keyword that is neither taken nor refused, one that opens the house, a quantized model
whose routers are bypassed, two ways of loading with one id, a keyword that is lost.
"""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models import load as load_module
from moe_lab.models.identity import NOT_NUMBERS, model_identity
from moe_lab.models.load import load_model
from moe_lab.models.load_options import REFUSED, SAME_KEYS, keywords, with_load
from moe_lab.models.source import model_source

INT8 = {
    "quant_method": "torchao",
    "quant_type": {
        "default": {
            "_type": "Int8WeightOnlyConfig",
            "_version": 2,
            "_data": {"set_inductor_config": False},
        }
    },
    "modules_to_not_convert": ["lm_head"],
}
VALUES: dict[str, Any] = {
    "disable_mmap": True,
    "fusion_config": {},
    "key_mapping": {"^nothing": "else"},
    "max_memory": {"cpu": "40GB"},
    "offload_buffers": True,
    "offload_folder": "/tmp/offloaded",
    "quantization_config": INT8,
    "use_kernels": False,
    "use_safetensors": True,
}


def test_every_keyword_of_transformers_is_taken_or_refused_with_a_reason():
    elsewhere = {"subfolder", "tp_plan", "variant"}  # below, and in test_torchrun.py
    assert set(keywords()) - set(REFUSED) - set(SAME_KEYS) - elsewhere == set(VALUES)
    assert set(REFUSED) <= set(keywords())
    for name, reason in REFUSED.items():
        assert len(reason) > 10
        with pytest.raises(ConfigError, match=f"model.load.{name} is not taken: "):
            with_load(ModelConfig(load={name: "x"}))


def test_a_plan_of_tensor_parallelism_needs_processes():
    with pytest.raises(ConfigError, match="and there is one: torchrun --nproc-per-node 2"):
        with_load(ModelConfig(load={"tp_plan": "auto"}))


def load(**keys: Any) -> Any:
    model = with_load(ModelConfig(**keys))
    return load_model(model, dtype="float32", device="cpu", offline=True).model


def test_every_other_keyword_arrives(monkeypatch):
    seen: dict[str, Any] = {}
    plain = AutoModelForCausalLM.from_pretrained

    def recorded(folder: Any, **options: Any) -> Any:
        seen.update(options)
        return plain(folder, **{key: options[key] for key in options if key not in taken})

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", recorded)
    for name, value in VALUES.items():
        if name == "use_kernels":  # False is the default, and True needs a package
            continue
        taken = {name}
        device_map = "auto" if name in ("max_memory", "offload_buffers", "offload_folder") else None
        load(load={name: value}, device_map=device_map)
        if name == "quantization_config":
            assert seen[name].quant_method == "torchao"
        else:
            assert seen[name] == value


@pytest.mark.parametrize(
    ("name", "value"),
    [("attn_implementation", "eager"), ("device_map", "sequential"), ("revision", "v2")],
)
def test_a_keyword_and_the_key_that_means_the_same_are_one(name, value):
    assert with_load(ModelConfig(load={name: value})) == ModelConfig(**{name: value})
    other = {"attn_implementation": "sdpa", "device_map": "auto", "revision": "v1"}[name]
    with pytest.raises(ConfigError, match=f"model.load.{name}=.*model.{name}=.*same setting"):
        with_load(ModelConfig(load={name: value}, **{name: other}))


def test_a_gpu_of_max_memory_is_a_number():
    """accelerate knows GPUs by number alone, and keys that are typed with dots are texts."""
    from accelerate.utils import get_max_memory

    given = {"0": "10GB", "cpu": "4GB"}
    model = with_load(ModelConfig(load={"max_memory": given}, device_map="auto"))
    assert model.load["max_memory"] == {0: "10GB", "cpu": "4GB"}
    assert get_max_memory(dict(model.load["max_memory"])) == {0: 10 * 10**9, "cpu": 4 * 10**9}


def test_the_default_of_a_keyword_is_no_keyword():
    assert with_load(ModelConfig(load={"use_kernels": False})) == ModelConfig()


def test_only_keywords_that_may_change_numbers_are_part_of_the_identity():
    plain = ModelConfig()
    source = model_source(plain)
    identity = model_identity(source, plain)
    for name, value in VALUES.items():
        loaded = model_identity(source, ModelConfig(load={name: value}))
        assert (loaded != identity) == (name not in NOT_NUMBERS | {"use_safetensors"}), name
    from_bin = model_identity(source, ModelConfig(load={"use_safetensors": False}))
    assert from_bin != identity, "a folder may have both kinds of files"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"quantisation_config": {}}, "Did you mean 'quantization_config'"),
        ({"max_memory": {"cpu": 1}}, "no effect without model.device_map"),
        ({"max_memory": {"cpu": "40XX"}, "device_map": "auto"}, "max_memory.cpu: .*valid format"),
        ({"use_safetensors": "maybe"}, "expected true or false"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "experts are fused tensors"),
        ({"quantization_config": {"quant_method": "nothing"}}, "cannot be used here"),
        ({"attn_implementation": "flash_attention_3"}, "Choices: eager, sdpa"),
    ],
    ids=str,
)
def test_a_wrong_keyword_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        with_load(ModelConfig(load=given))


def test_a_quantized_model_is_routed_by_its_rule_and_differs():
    """torchao's int8 weights of linear layers; experts are not linear layers, and stay."""
    ids = torch.arange(12)[None]
    with torch.no_grad():
        plain = load()(input_ids=ids).logits
        quantized = load(load={"quantization_config": INT8})
        logits = quantized(input_ids=ids).logits
    assert type(quantized.model.layers[0].self_attn.q_proj.weight).__module__.startswith("torchao")
    assert not torch.equal(plain, logits)
    torch.testing.assert_close(logits, plain, atol=1.0, rtol=0.1)


def test_every_model_that_is_loaded_otherwise_is_probed(monkeypatch):
    def refuse(*arguments: Any) -> None:
        raise ModelError("probed")

    monkeypatch.setattr(load_module, "prove_seam", refuse)
    load()
    with pytest.raises(ModelError, match="probed"):
        load(load={"use_safetensors": True})
