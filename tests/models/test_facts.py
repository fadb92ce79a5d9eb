"""Quantized checkpoints run with every router called, or are refused before their weights are read.

Broken by: MXFP4 kernels that compute the router themselves, weights dequantized in another layout
or order, a method that leaves fused experts empty, a refusal that comes after the weights.
"""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ModelError
from moe_lab.models.checks import prove_seam
from moe_lab.models.facts import loading_options, model_facts
from moe_lab.models.source import load_config
from moe_lab.routing import record
from tests.support.families import COMMON, VOCAB, ZOO
from tests.support.models import build, load_folder, make_model, save_model

IDS = torch.arange(2 * 9).reshape(2, 9) * 7 % VOCAB


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Magnitudes of a four-bit float; the fourth bit is the sign."""
MX_BLOCK = 32
FP8_BLOCK = 16


def mxfp4(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    """(blocks uint8 [R, C/32, 16], scales uint8 [R, C/32], the weights that these are [R, C])."""
    code_RGI = torch.randint(16, (rows, columns // MX_BLOCK, MX_BLOCK), dtype=torch.uint8)
    scale_RG = torch.randint(122, 126, code_RGI.shape[:2], dtype=torch.uint8)
    value_RGI = E2M1[(code_RGI % 8).long()] * torch.where(code_RGI < 8, 1.0, -1.0)
    read_RC = (value_RGI * 2.0 ** (scale_RG[..., None].float() - 127)).reshape(rows, columns)
    return code_RGI[..., ::2] | code_RGI[..., 1::2] << 4, scale_RG, read_RC


def fp8(rows: int, columns: int) -> tuple[torch.Tensor, ...]:
    """(float8 [R, C], scales float32 [R/16, C/16], the weights that these are [R, C])."""
    stored_RC = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scales = torch.rand(rows // FP8_BLOCK, columns // FP8_BLOCK) / 4
    return (
        stored_RC,
        scales,
        stored_RC.float() * torch.kron(scales, torch.ones(FP8_BLOCK, FP8_BLOCK)),
    )


@pytest.fixture(scope="module")
def mxfp4_checkpoint(tmp_path_factory):
    """(folder with published names and MXFP4 experts, the model with the same weights)."""
    folder = tmp_path_factory.mktemp("mxfp4")
    model = build("gpt_oss", COMMON | ZOO["gpt_oss"] | {"hidden_size": 64, "intermediate_size": 32})
    save_model(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        quantized = [mxfp4(*expert_IO.t().shape) for expert_IO in tensors.pop(name)]
        blocks, scales, read = (torch.stack(part) for part in zip(*quantized, strict=True))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        with torch.no_grad():
            model.get_parameter(name).copy_(read.transpose(1, 2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    quantize(
        folder, quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"]
    )
    return folder, model


def quantize(folder, **says):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": says}))


def test_mxfp4_is_dequantized_and_routed(mxfp4_checkpoint):
    folder, expected = mxfp4_checkpoint
    loaded = load_folder(folder, dtype="float32").model
    for name, parameter in expected.named_parameters():
        weight = loaded.get_parameter(name)
        assert weight.dtype == torch.float32, name
        assert torch.equal(weight, parameter), name
    loaded.set_experts_implementation("eager")
    expected.set_experts_implementation("eager")
    with torch.no_grad(), record(loaded) as routes:
        assert torch.equal(loaded(IDS).logits, expected(IDS).logits)
    assert [len(index) for index in routes.indices] == [IDS.numel()] * 4
    assert not hasattr(loaded.config, "quantization_config"), (
        "a saved copy would be read as quantized"
    )


def test_mxfp4_in_bfloat16(mxfp4_checkpoint):
    folder, expected = mxfp4_checkpoint
    loaded = load_folder(folder, dtype="bfloat16").model
    for name, parameter in expected.named_parameters():
        weight = loaded.get_parameter(name)
        assert weight.dtype == torch.bfloat16
        if name.endswith(("gate_up_proj", "down_proj")):
            assert torch.equal(weight.float(), parameter), f"{name}: these numbers need no rounding"


def test_fp8_is_dequantized_and_routed(tmp_path):
    expected = make_model(
        "qwen3_moe", hidden_size=48, intermediate_size=32, moe_intermediate_size=32
    )
    save_model(expected, tmp_path)
    stored = {}
    plain = load_file(tmp_path / "model.safetensors")
    for name, weight in plain.items():
        if name.endswith("_proj.weight"):
            stored[name], stored[f"{name}_scale_inv"], plain[name] = fp8(*weight.shape)
        else:
            stored[name] = weight
    save_file(plain, tmp_path / "model.safetensors", metadata={"format": "pt"})
    expected = load_folder(tmp_path, dtype="float32").model
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    block = [FP8_BLOCK, FP8_BLOCK]
    quantize(tmp_path, quant_method="fp8", weight_block_size=block, activation_scheme="dynamic")
    loaded = load_folder(tmp_path, dtype="float32").model
    with torch.no_grad(), record(loaded) as routes:
        assert torch.equal(loaded(IDS).logits, expected(IDS).logits)
    assert len(routes.indices) == 4


def config_only(folder, family="mixtral", **says):
    """A folder with a configuration and no weights: a refusal comes before weights are read."""
    make_model(family).config.save_pretrained(folder)
    quantize(folder, **says)
    return ModelConfig(path=str(folder))


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ({"quant_method": "bitsandbytes"}, "quantized with bitsandbytes.*fused"),
        ({"quant_method": "gptq", "bits": 4}, "quantized with gptq.*fused"),
        ({"quant_method": "awq", "bits": 4}, "quantized with awq.*fused"),
        ({"quant_method": "nonsense"}, "nonsense and cannot run here: Unknown quantization type"),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8 and cannot run here: .*GPU"),
    ],
    ids=lambda value: value.get("quant_method") if isinstance(value, dict) else "",
)
def test_what_cannot_run_is_refused_before_weights_are_read(says, reason, tmp_path):
    with pytest.raises(ModelError, match=reason) as refusal:
        model_facts(config_only(tmp_path, **says), dtype="auto", device="cpu", offline=True)
    assert "unquantized checkpoint" in str(refusal.value)
    assert "93 GB" in str(refusal.value)


def test_a_dense_model_may_be_quantized_in_its_linear_layers(tmp_path):
    """The fused experts are the obstacle: without them only the missing package is."""
    model = config_only(tmp_path, "llama", quant_method="bitsandbytes", load_in_4bit=True)
    with pytest.raises(ModelError, match="cannot run here: .*bitsandbytes"):
        model_facts(model, dtype="auto", device="cpu", offline=True)


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_a_dense_bitsandbytes_checkpoint_is_left_to_transformers(bits, tmp_path, monkeypatch):
    """Where the kernels' package is installed, the model passes without a GPU or a message.

    It stays quantized, and loads without options of this package.
    """
    from transformers.quantizers import quantizer_bnb_4bit, quantizer_bnb_8bit

    for cls in (quantizer_bnb_4bit.Bnb4BitHfQuantizer, quantizer_bnb_8bit.Bnb8BitHfQuantizer):
        monkeypatch.setattr(cls, "validate_environment", lambda self, **options: None)
    model = config_only(tmp_path, "llama", quant_method="bitsandbytes", **{bits: True})
    assert model_facts(model, dtype="auto", device="cpu", offline=True).moe_layers == 0
    config = load_config(model, offline=True)
    assert loading_options(config) == {}


class OwnLogits(nn.Module):
    """A fused block as MXFP4's: it computes the router's logits from the router's weight."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden_BSH):
        hidden_TH = hidden_BSH.reshape(-1, hidden_BSH.shape[-1])
        weights_TK, index_TK = (hidden_TH @ self.block.gate.weight.t()).softmax(-1).topk(2)
        return self.block.experts(hidden_TH, index_TK, weights_TK).view_as(hidden_BSH)


def test_a_bypassed_router_is_found_by_the_probe():
    model = make_model("mixtral")
    prove_seam(model, torch.device("cpu"), "this model")
    model.model.layers[2].mlp = OwnLogits(model.model.layers[2].mlp)
    message = r"this model cannot be routed.*layers\.2\.mlp\.block\.gate was bypassed"
    with pytest.raises(ModelError, match=message):
        prove_seam(model, torch.device("cpu"), "this model")


def test_a_router_with_another_rule_is_found_by_the_probe():
    model = make_model("qwen3_moe")
    gate = model.model.layers[1].mlp.gate
    gate.register_forward_hook(lambda module, args, out: (out[0], out[1] * 0.5, out[2]))
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.gate gives its experts other weights"):
        prove_seam(model, torch.device("cpu"), "this model")
