"""Small checkpoints with random weights.

The environments of vLLM and of moe_lab write the same bits: the weights are numpy's, not torch's,
and the files are written without transformers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

HIDDEN, HEAD, VOCABULARY, EXPERT, EXPERTS = 64, 32, 257, 32, 8
LAYERS, HEADS = 4, 4

_COMMON: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    intermediate_size=EXPERT,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_experts_per_tok=2,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    bos_token_id=256,
    eos_token_id=256,
    dtype="float32",
    rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
)
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "olmoe": _COMMON
    | dict(
        model_type="olmoe",
        architectures=["OlmoeForCausalLM"],
        hidden_size=HEADS * HEAD,  # OLMoE's heads share the hidden size
        num_key_value_heads=HEADS,
        num_experts=EXPERTS,
        norm_topk_prob=False,
    ),
    "mixtral": _COMMON
    | dict(
        model_type="mixtral",
        architectures=["MixtralForCausalLM"],
        num_key_value_heads=2,
        head_dim=HEAD,
        num_local_experts=EXPERTS,
        sliding_window=None,
    ),
    "qwen3_moe": _COMMON
    | dict(
        model_type="qwen3_moe",
        architectures=["Qwen3MoeForCausalLM"],
        num_key_value_heads=2,
        head_dim=HEAD,
        num_experts=EXPERTS,
        moe_intermediate_size=EXPERT,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[1],
    ),
}
"""Renormalized weights or not, all key-value heads or half of them, and a dense layer between."""


def write(folder: Path, family: str) -> None:
    """Write `config.json` and `model.safetensors` of a family to an empty folder."""
    from safetensors.numpy import save_file

    config = CONFIGURATIONS[family]
    tensors = {name: _values(name, shape) for name, shape in _shapes(config)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(crc32(name.encode())).standard_normal(shape) * 0.15
    return (values + (len(shape) == 1)).astype(np.float32)  # weights of norms are around 1


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["hidden_size"]
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    yield "lm_head.weight", (VOCABULARY, hidden)
    yield "model.norm.weight", (hidden,)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        for name, shape in [*_attention(config), *_feed_forward(config, layer)]:
            yield f"{prefix}.{name}.weight", shape


def _attention(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, keys = config["hidden_size"], config["num_key_value_heads"] * HEAD
    yield "self_attn.q_proj", (HEADS * HEAD, hidden)
    yield "self_attn.k_proj", (keys, hidden)
    yield "self_attn.v_proj", (keys, hidden)
    yield "self_attn.o_proj", (hidden, HEADS * HEAD)
    if config["model_type"] == "olmoe":
        yield "self_attn.q_norm", (hidden,)
        yield "self_attn.k_norm", (keys,)
    if config["model_type"] == "qwen3_moe":
        yield "self_attn.q_norm", (HEAD,)
        yield "self_attn.k_norm", (HEAD,)


def _feed_forward(config: dict[str, Any], layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, mixtral = config["hidden_size"], config["model_type"] == "mixtral"
    block = "block_sparse_moe" if mixtral else "mlp"
    up, down, gate = ("w3", "w2", "w1") if mixtral else ("up_proj", "down_proj", "gate_proj")
    dense = layer in config.get("mlp_only_layers", ())
    if not dense:
        yield f"{block}.gate", (EXPERTS, hidden)
    for part in [block] if dense else [f"{block}.experts.{expert}" for expert in range(EXPERTS)]:
        yield f"{part}.{gate}", (EXPERT, hidden)
        yield f"{part}.{up}", (EXPERT, hidden)
        yield f"{part}.{down}", (hidden, EXPERT)
