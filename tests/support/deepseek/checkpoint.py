"""A small checkpoint as DeepSeek-MoE-16B is published: its configuration's
keys, its parameters' names."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.hub.published import PUBLISHED as OF_OPTIONS

PUBLISHED = OF_OPTIONS["deepseek-moe"]
"""The published config.json."""

SMALL = PUBLISHED | {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 512,
    "bos_token_id": 256,
    "eos_token_id": 256,
    "torch_dtype": "float32",
}


def parameter_shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Name -> shape, as published."""
    hidden = config["hidden_size"]
    vocabulary = config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name in ("q", "k", "v", "o"):
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (hidden, hidden)
        shapes[f"{prefix}input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
        if layer < config["first_k_dense_replace"]:
            shapes |= _mlp(f"{prefix}mlp.", hidden, config["intermediate_size"])
        else:
            shapes |= _moe(f"{prefix}mlp.", config)
    return shapes


def _moe(prefix: str, config: dict) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    width = config["moe_intermediate_size"]
    experts = config["n_routed_experts"]
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}gate.weight": (experts, hidden)}
    shared_experts = config["n_shared_experts"]
    if shared_experts is not None:
        shapes |= _mlp(f"{prefix}shared_experts.", hidden, width * shared_experts)
    for expert in range(experts):
        shapes |= _mlp(f"{prefix}experts.{expert}.", hidden, width)
    return shapes


def _mlp(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def write_checkpoint(folder: Path, config: dict, seed: int = 0) -> dict[str, Tensor]:
    """config.json and two shards of random float32 weights; returns the weights by name."""
    weights = _random_weights(config, seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(weights)
    names_by_shard = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    weight_map = {}
    for shard, shard_names in names_by_shard.items():
        tensors = {name: weights[name] for name in shard_names}
        save_file(tensors, folder / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard_names, shard)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weights


def _random_weights(config: dict, seed: int) -> dict[str, Tensor]:
    """Around 0; those of norms, which are vectors, around 1."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in parameter_shapes(config).items():
        weight = 0.15 * torch.randn(shape, generator=generator)
        if len(shape) == 1:
            weight = weight + 1.0
        weights[name] = weight
    return weights
