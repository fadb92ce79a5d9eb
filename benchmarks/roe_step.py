"""What a step of RoE's clean cache costs: n rows against one plain greedy step, side by side in one
process.

    python -m benchmarks.roe_step

Temperature 0.3 in all layers but the first two and the last two (L=2), after a past of 300 tokens;
for memory, 2,000.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from transformers import DynamicCache

from benchmarks.bench_model import VOCAB, make_model
from benchmarks.measure import side_by_side
from moe_lab.engine.forward.batch import Tokens, TokenTree, collate
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.models.experts import NAME
from moe_lab.routing import GumbelTopK

STEPS = 4
"""Steps that are timed together."""
TEMPERATURES = [0.0, 0.0] + [0.3] * 4 + [0.0, 0.0]


def prompt(length: int) -> list[int]:
    return torch.randint(1, VOCAB, (length,), generator=torch.Generator().manual_seed(1)).tolist()


def ensemble(n: int) -> Ensemble:
    return Ensemble(n, GumbelTopK(TEMPERATURES, seed=0), first_noisy=2) if n > 1 else Ensemble()


def filled(forward: EnsembleForward, past: int, n: int) -> KVCache:
    cache = forward.new_cache(past + n)
    forward(collate([TokenTree(prompt(past), [])], 0, forward.device), cache)
    return cache


def step_tokens(position: int) -> Tokens:
    """One token after the past, different in every step so that no step is like another."""
    token = torch.randint(1, VOCAB, (1, 1))
    zero = torch.zeros(1, dtype=torch.long)
    at = torch.tensor([[position]])
    return Tokens(
        token,
        at,
        None,
        zero,
        noise_key_B=token[0],
        sample_index_B=zero,
        prompt_length_B=at[0],
        most_logits=1,
        real_BS=torch.ones_like(token, dtype=torch.bool),
        names_BS=lambda: np.zeros((1, 1), dtype=np.int64),
        count=1,
    )


def steps(forward: EnsembleForward, cache: KVCache) -> Callable[[], None]:
    """`STEPS` steps from one past, with hooks installed once for all of them, as in generation."""
    past = cache.length

    def run() -> None:
        with forward:
            for _ in range(STEPS):
                forward(step_tokens(past), cache)
                assert all(layer.length == past + 1 for layer in cache.layers)
                cache.keep(past)

    return run


def plain_steps_of_transformers(model: torch.nn.Module, past: int) -> Callable[[], None]:
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.tensor([prompt(past)]), cache=cache, use_cache=True)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(STEPS):
            model(torch.randint(1, VOCAB, (1, 1)), cache=cache, use_cache=True).logits.argmax(-1)
            cache.crop(-1)

    return run


def compare_time(model: torch.nn.Module, past: int, rounds: int) -> None:
    """The plain step is of transformers alone: its own cache, and its own way to compute experts.

    No step with n rows can be faster than reading the weights, nearly all of which it needs.
    """
    candidates: dict[str, Callable[[], object]] = {
        "plain step, transformers": plain_steps_of_transformers(make_model(), past)
    }
    for n in (1, 8, 16, 32, 64):
        forward = EnsembleForward(model, ensemble(n))
        with forward:
            cache = filled(forward, past, n)
        candidates[f"n={n}"] = steps(forward, cache)
    weights = torch.ones(sum(parameter.nbytes for parameter in model.parameters()) // 4)
    candidates["all weights, read once"] = lambda: [weights.sum() for _ in range(STEPS)]
    seconds = side_by_side(candidates, rounds)
    print(
        f"| step after {past} tokens | ms | times a plain step of transformers | times n=1 "
        "|\n|---|---:|---:|---:|"
    )
    for name, value in seconds.items():
        ratios = f"{value / seconds['plain step, transformers']:.2f} | {value / seconds['n=1']:.2f}"
        print(f"| {name} | {value / STEPS * 1e3:.1f} | {ratios} |")


def compare_memory(model: torch.nn.Module, past: int) -> None:
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    print(
        f"\n| memory, {past} tokens | weights + cache + peak of the step, MiB | times n=1 "
        "|\n|---|---:|---:|"
    )
    first = None
    for n in (1, 32, 64):
        forward = EnsembleForward(model, ensemble(n))
        with forward:
            cache = filled(forward, past, n)
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        total = weights + held + peak_of(steps(forward, cache))
        first = first or total
        print(f"| n={n} | {total / 2**20:.1f} | {total / first:.3f} |")


def peak_of(run: Callable[[], None]) -> int:
    """Most bytes of tensors alive at once that `run` allocated, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        run()
    alive = peak = 0
    for event in prof.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--experts", default=NAME, help="experts implementation of this engine's steps"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = make_model()
    model.set_experts_implementation(options.experts)
    compare_time(model, 300, options.rounds)
    compare_memory(model, 2000)


if __name__ == "__main__":
    main()
