"""cache=clean, standard and none side by side: time per new token and memory of generating with n
rows.

    python -m benchmarks.cache_modes

Temperature 0.3 in all layers but the first two and the last two (L=2). Seconds are of the whole
run, the prompt included, divided by the new tokens; memory is the weights and the most that tensors
of the run took at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from benchmarks.bench_model import make_model
from benchmarks.measure import side_by_side
from benchmarks.roe_step import TEMPERATURES, peak_of, prompt
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.generate import generate
from moe_lab.engine.pass_size import CPU_TOKENS
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import Budget
from moe_lab.models.experts import NAME
from moe_lab.routing import GumbelTopK

MODES = {
    "n=1": ("clean", "noisy"),
    "clean": ("clean", "noisy"),
    "standard, prefill=clean": ("standard", "clean"),
    "standard": ("standard", "noisy"),
    "none": ("none", "noisy"),
}


def generation(
    model: torch.nn.Module, name: str, n: int, past: int, steps: int
) -> Callable[[], None]:
    cache, prefill = MODES[name]
    routing = GumbelTopK(TEMPERATURES, seed=0)
    ensemble = (
        Ensemble()
        if name == "n=1"
        else Ensemble(n, routing, first_noisy=2, cache=cache, prefill=prefill)
    )
    ids = prompt(past)

    def choose(scores_AV: torch.Tensor, answers: list[GenerationState]) -> list[int]:
        return scores_AV.argmax(-1).tolist()

    def run() -> None:
        with EnsembleForward(model, ensemble) as forward:
            answer = GenerationState(0, ids, noise_key=1)
            budget = Budget(CPU_TOKENS)
            generate(
                forward,
                [answer],
                budget,
                Decoding(choose, lambda tokens: False, steps),
                lambda done: None,
            )

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--past", type=int, default=100, help="tokens of the prompt")
    parser.add_argument("--steps", type=int, default=16, help="new tokens")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = make_model()
    model.set_experts_implementation(NAME)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    runs = {name: generation(model, name, options.n, options.past, options.steps) for name in MODES}
    seconds = side_by_side(runs, options.rounds)
    print(
        f"| cache, n={options.n}, {options.steps} tokens after {options.past} | ms per token | "
        "times n=1 | MiB | times n=1 |"
    )
    print("|---|---:|---:|---:|---:|")
    memory = {name: weights + peak_of(run) for name, run in runs.items()}
    for name in MODES:
        time = seconds[name]
        size = memory[name]
        cells = (
            f"{time / options.steps * 1e3:.1f} | {time / seconds['n=1']:.2f} | {size / 2**20:.1f}"
        )
        print(f"| {name} | {cells} | {size / memory['n=1']:.3f} |")


if __name__ == "__main__":
    main()
