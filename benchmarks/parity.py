"""`method=base` answers what lm-eval's own `hf` model answers: real samples, three families, any
batch size.

    python -m benchmarks.parity --data-dir <folder with arc_challenge/ and gsm8k/>

Small random models in float32. For log-likelihoods the largest difference; for greedy generations
the texts that differ, and how many tokens were chosen between two whose log-probabilities are
within 1e-4, where rounding decides.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import Any

import torch
import transformers
from lm_eval.models.huggingface import HFLM

from benchmarks.base import Case, arc, requests_of
from benchmarks.bench_model import VOCAB, make_tokenizer
from moe_lab.config.schema import TaskConfig
from moe_lab.engine.lm import EngineLM

CASES = [
    Case("ARC-Challenge, 5-shot", arc(), 5, 24, 0),
    Case(
        "GSM8K, 5-shot, 32 new tokens",
        TaskConfig(name="gsm8k"),
        5,
        12,
        0,
        {"max_gen_toks": 32, "until": ["<never>"]},
    ),
]
COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_experts_per_tok=2,
    max_position_embeddings=4096,
    bos_token_id=0,
    eos_token_id=0,
    pad_token_id=0,
)
FAMILIES: dict[str, Any] = {
    "OLMoE": lambda: transformers.OlmoeConfig(
        num_experts=8, num_key_value_heads=4, intermediate_size=32, **COMMON
    ),
    "Mixtral": lambda: transformers.MixtralConfig(
        num_local_experts=8, num_key_value_heads=2, intermediate_size=32, **COMMON
    ),
    "Qwen3-MoE": lambda: transformers.Qwen3MoeConfig(
        num_experts=8,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=64,
        moe_intermediate_size=32,
        **COMMON,
    ),
}


def random_model(family: str) -> Any:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family]()).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.1)
    return model


def compare(kind: str, ours: list[Any], expected: list[Any]) -> str:
    if kind == "loglikelihood":
        worst = max(abs(a[0] - b[0]) for a, b in zip(ours, expected, strict=True))
        differing = sum(a[1] != b[1] for a, b in zip(ours, expected, strict=True))
        return f"largest difference {worst:.1e}; {differing} greedy flags differ"
    return f"{sum(a != b for a, b in zip(ours, expected, strict=True))} of {len(ours)} texts differ"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="local data as for data_dir= (default: the hub)")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    os.environ["TQDM_DISABLE"] = "1"
    tokenizer = make_tokenizer(sorted(Path(options.data_dir or "").glob("*/train.jsonl"))[:6])
    print(
        "| family | task | padding | batch size | against hf | choices within 1e-4 "
        "|\n|---|---|---|---:|---|---:|"
    )
    for case in CASES:
        requests = requests_of(case, options.data_dir)
        kind = requests[0].request_type
        for family in FAMILIES:
            model = random_model(family)
            for side in ("left", "right"):
                tokenizer.padding_side = side
                expected = getattr(HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4), kind)(
                    requests
                )
                for batch_size in (1, 3, 8, "auto"):
                    lm = EngineLM(model, tokenizer, batch_size=batch_size)
                    outcome = compare(kind, getattr(lm, kind)(requests), expected)
                    ties = lm.cost["near_ties"]
                    print(
                        f"| {family} | {case.title} | {side} | {batch_size} | {outcome} | {ties} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
