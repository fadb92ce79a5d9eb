"""A small checkpoint as DeepSeek-MoE-16B is published: its configuration's keys, its parameters' names."""

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
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        shapes |= {
            f"{prefix}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")
        }
        if layer < config["first_k_dense_replace"]:
            shapes |= _mlp(f"{prefix}mlp.", hidden, config["intermediate_size"])
            continue
        width, experts = config["moe_intermediate_size"], config["n_routed_experts"]
        shapes[f"{prefix}mlp.gate.weight"] = (experts, hidden)
        if config["n_shared_experts"] is not None:
            shapes |= _mlp(
                f"{prefix}mlp.shared_experts.", hidden, width * config["n_shared_experts"]
            )
        for expert in range(experts):
            shapes |= _mlp(f"{prefix}mlp.experts.{expert}.", hidden, width)
    return shapes


def _mlp(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name in ("gate", "up"):
        shapes[f"{prefix}{name}_proj.weight"] = (width, hidden)
    return shapes | {f"{prefix}down_proj.weight": (hidden, width)}


def write_checkpoint(folder: Path, config: dict, seed: int = 0) -> dict[str, Tensor]:
    """config.json and two shards of random float32 weights; returns the weights by name."""
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: 0.15 * torch.randn(shape, generator=generator) + (1.0 if len(shape) == 1 else 0.0)
        for name, shape in parameter_shapes(config).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = list(weights)
    shards = {
        "model-00001-of-00002.safetensors": names[::2],
        "model-00002-of-00002.safetensors": names[1::2],
    }
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, part in shards.items() for name in part}
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return weights
