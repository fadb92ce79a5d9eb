"""A published model's full shape on a CPU: time and memory of loading it in bfloat16 and of
answering with RoE.

    python -m benchmarks.full_size --model granite-moe-1b --data-dir <folder> --work-dir <folder
    with 3 GB free> python -m benchmarks.full_size --data-dir <folder> --work-dir <folder with 14 GB
    free>

Writes a checkpoint of random bfloat16 weights (OLMoE's in shards with published parameter names;
deleted at the end), then runs `python -m moe_lab method=roe method.n=8 task=gsm8k dtype=bfloat16`
on a few documents of `<data-dir>/gsm8k`, which evaluates method=base on the same documents as well,
and reads times and memory from the two results and from the system. What a trained model would
answer it does not say.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.bench_model import make_tokenizer
from benchmarks.roe_gpu import OLMOE_1B_7B

GIB = 2**30
GRANITE_1B_A400M: dict[str, Any] = dict(
    vocab_size=49155,
    hidden_size=1024,
    intermediate_size=512,
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=8,
    num_local_experts=32,
    num_experts_per_tok=8,
    max_position_embeddings=131072,
    attention_multiplier=0.015625,
    embedding_multiplier=12.0,
    logits_scaling=6.0,
    residual_multiplier=0.22,
    tie_word_embeddings=True,
)


@dataclass(frozen=True)
class Shape:
    """A published model."""

    write: Callable[[Path, Path], int]
    """Writes its checkpoint into a folder, with a tokenizer made from the data; returns the bytes
    of its weights."""
    kv_width: int
    """Of the keys of one layer, all heads together."""
    layers: int

    @property
    def cache_bytes(self) -> int:
        """Of a token's keys and values in bfloat16."""
        return 2 * 2 * self.layers * self.kv_width


def write_granite(folder: Path, data: Path) -> int:
    """A checkpoint of Granite-3.1-1B-A400M's shape, as transformers saves it; returns the bytes of
    its weights."""
    from transformers import GraniteMoeConfig, GraniteMoeForCausalLM

    config = GraniteMoeConfig(**GRANITE_1B_A400M, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model = GraniteMoeForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    make_tokenizer([data / "gsm8k" / "train.jsonl"]).save_pretrained(folder)
    return sum(parameter.nbytes for parameter in model.parameters())


def write_olmoe(folder: Path, data: Path) -> int:
    """A checkpoint as OLMoE is published, one shard per layer; returns the bytes of its weights."""
    from transformers import OlmoeConfig

    folder.mkdir(parents=True)
    OlmoeConfig(
        **OLMOE_1B_7B,
        architectures=["OlmoeForCausalLM"],
        dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    ).save_pretrained(folder)
    make_tokenizer([data / "gsm8k" / "train.jsonl"]).save_pretrained(folder)
    hidden = OLMOE_1B_7B["hidden_size"]
    vocab = OLMOE_1B_7B["vocab_size"]
    ends = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    ends["lm_head.weight"] = (vocab, hidden)
    parts = [ends, *(_layer_shapes(layer) for layer in range(OLMOE_1B_7B["num_hidden_layers"]))]
    places: dict[str, str] = {}
    total = 0
    generator = torch.Generator().manual_seed(0)
    for number, shapes in enumerate(parts, start=1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        weights = {name: _random(shape, generator) for name, shape in shapes.items()}
        save_file(weights, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(weights, file)
        total += sum(weight.nbytes for weight in weights.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)


def _layer_shapes(layer: int) -> dict[str, tuple[int, ...]]:
    hidden = OLMOE_1B_7B["hidden_size"]
    width = OLMOE_1B_7B["intermediate_size"]
    prefix = f"model.layers.{layer}."
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"
    }
    for norm in (
        "input_layernorm",
        "post_attention_layernorm",
        "self_attn.q_norm",
        "self_attn.k_norm",
    ):
        shapes[f"{prefix}{norm}.weight"] = (hidden,)
    shapes[f"{prefix}mlp.gate.weight"] = (OLMOE_1B_7B["num_experts"], hidden)
    for expert in range(OLMOE_1B_7B["num_experts"]):
        for name, shape in (
            ("gate", (width, hidden)),
            ("up", (width, hidden)),
            ("down", (hidden, width)),
        ):
            shapes[f"{prefix}mlp.experts.{expert}.{name}_proj.weight"] = shape
    return shapes


def run(model: Path, data: Path, output: Path, documents: int, new_tokens: int) -> int:
    """The command as a user types it, in a process of its own; returns its peak resident memory in
    bytes."""
    command = [
        sys.executable,
        "-m",
        "moe_lab",
        "method=roe",
        "method.n=8",
        "task=gsm8k",
        "dtype=bfloat16",
        f"model.path={model}",
        f"model.name={model.name}",
        f"data_dir={data}",
        f"output_dir={output}",
        f"limit={documents}",
        "num_fewshot=0",
        f"gen_kwargs=max_gen_toks={new_tokens}",
        "device=cpu",
    ]
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def report(output: Path, shape: Shape, documents: int, weights: int, peak: int) -> None:
    """Prints what docs/hardware.md says."""
    tokens: list[int] = []
    for file in sorted(output.glob("runs/*/results.json")):
        block: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["moe_lab"]
        cost = block["cost"]
        print(
            f"{block['method']['name']}: loading {cost['load_seconds']:.0f} s, {cost['tokens_in']} "
            f"tokens in, {cost['tokens_out']} out, {cost['wall_seconds']:.1f} s, "
            f"{cost['wall_seconds'] / documents:.1f} s per answer, peak "
            f"{cost['peak_memory_bytes'] / GIB:.2f} GiB",
            json.dumps(cost),
        )
        tokens.append(cost["tokens_in"] + cost["tokens_out"])
    # rows of RoE keep nothing but the plain model's tokens
    cache = min(tokens) * shape.cache_bytes
    print(f"weights {weights / GIB:.2f} GiB, cache of all tokens at once {cache / GIB:.3f} GiB")
    print(
        f"peak of the whole process {peak / GIB:.2f} GiB: {peak / (weights + cache):.3f} of "
        "weights plus cache"
    )


SHAPES = {
    "olmoe": Shape(write_olmoe, OLMOE_1B_7B["hidden_size"], OLMOE_1B_7B["num_hidden_layers"]),
    "granite-moe-1b": Shape(write_granite, 8 * 64, GRANITE_1B_A400M["num_hidden_layers"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=SHAPES, default="olmoe")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--documents", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=24)
    options = parser.parse_args()
    shape = SHAPES[options.model]
    model = options.work_dir / f"{options.model}-full"
    output = options.work_dir / "outputs"
    try:
        weights = shape.write(model, options.data_dir)
        peak = run(model, options.data_dir, output, options.documents, options.new_tokens)
        report(output, shape, options.documents, weights, peak)
    finally:
        shutil.rmtree(model, ignore_errors=True)


if __name__ == "__main__":
    main()
