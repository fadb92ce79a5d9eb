"""What adaptive RoE costs on toy_math: times a plain greedy run of the same engine, and full RoE beside it.

    python -m benchmarks.adaptive --measure margin --bands "[[0.5, 16]]"

The same requests go to all, in turns in one process, with the weights loaded. The model is the embedded one by default.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import moe_lab
from benchmarks.measure import side_by_side
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.lm import EngineLM, Request
from moe_lab.methods.roe import RoE, adaptive_block
from moe_lab.models.experts import NAME
from moe_lab.routing import find_routers
from moe_lab.tasks.toy.word_problems import word_problems

EMBEDDED = Path(moe_lab.__file__).parent / "models" / "tiny"
OPTIONS = {"until": ["\n\n", "Question:", "<|endoftext|>"], "do_sample": False, "max_gen_toks": 96}
"""As in toy_math.yaml."""


def requests(count: int) -> list[Request]:
    documents: list[Any] = word_problems("test", count)
    return [Request((f"Question: {document['question']}\nAnswer:", OPTIONS)) for document in documents]


def run(lm: EngineLM, asked: list[Request]) -> dict[int, str]:
    found: dict[int, str] = {}
    lm.answer("generate_until", asked, found.__setitem__)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--measure", default="margin")
    parser.add_argument("--bands", type=json.loads, default=[[0.5, 16]])
    parser.add_argument("--n", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--experts", default=NAME, help="experts implementation")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    model.set_experts_implementation(options.experts)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    layers, asked = len(find_routers(model)), requests(options.documents)

    def lm(ensemble: Ensemble) -> EngineLM:
        return EngineLM(model, tokenizer, ensemble=ensemble, progress=False)

    def roe(**keys: Any) -> EngineLM:
        method = RoE(RoE.Config(n=options.n, temperature=options.temperature, **keys))
        return lm(method.ensemble(method.temperatures(layers), method.first_noisy(layers), seed=0))

    adaptive = roe(adaptive=options.measure, bands=options.bands)
    lms = {"plain greedy": lm(Ensemble()), "adaptive RoE": adaptive, f"RoE, n={options.n}": roe()}
    seconds = side_by_side(
        {name: lambda own=own: run(own, asked) for name, own in lms.items()}, options.rounds
    )
    config = RoE.Config(n=options.n, adaptive=options.measure, bands=options.bands)
    share = adaptive_block(config, adaptive.cost)["adaptive"]["share_of_rows"]
    print(
        f"adaptive: {options.measure} {options.bands}, {share:.1%} of the routing samples of n={options.n}\n"
    )
    print("| toy_math | seconds | times plain greedy |\n|---|---:|---:|")
    for name, value in seconds.items():
        print(f"| {name} | {value:.2f} | {value / seconds['plain greedy']:.2f} |")


if __name__ == "__main__":
    main()
