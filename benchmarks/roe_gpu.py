"""What decoding with RoE costs on a GPU, on OLMoE-1B-7B's full shape with random bfloat16 weights.

    python -m benchmarks.roe_gpu

Batches of 1 and 8 sequences after prompts of 512 tokens, n = 1, 8, 32, 64 at temperature 0 (all
rows choose the same experts) and 0.3 (they do not), in all layers but the first two and the last
two (L=2), against `generate` of
transformers: time per step, peak memory, energy. With --compiled, also against its static cache
    with a compiled step.
Without a CUDA device it says so and does nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from transformers import AutoModelForCausalLM, OlmoeConfig

from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.generate import generate
from moe_lab.engine.pass_size import pass_budget
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.routing import GumbelTopK, document_key
from moe_lab.runs.evaluation.cost import energy_joules

OLMOE_1B_7B = dict(
    vocab_size=50304,
    hidden_size=2048,
    intermediate_size=1024,
    num_hidden_layers=16,
    num_attention_heads=16,
    num_key_value_heads=16,
    num_experts=64,
    num_experts_per_tok=8,
    max_position_embeddings=4096,
)
SKIP = 2
"""L: layers without noise at either end."""
GIB = 2**30


@dataclass(frozen=True)
class Measured:
    """One setting: all values are of the steps after the first new token."""

    step_seconds: float
    """Median time of a step, in which every sequence of the batch gets a token."""
    peak_bytes: int | None
    """Most memory allocated on the GPU, weights included; None elsewhere."""
    joules: float | None
    """Energy per token; None where the device does not tell."""


def random_model(
    shape: dict[str, int], device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> Any:
    torch.manual_seed(0)
    config = OlmoeConfig(**shape, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def random_prompts(vocab: int, batch: int, length: int) -> list[list[int]]:
    return torch.randint(
        1, vocab, (batch, length), generator=torch.Generator().manual_seed(1)
    ).tolist()


def measure(
    device: torch.device, batch: int, run: Callable[[Callable[[], None]], None]
) -> Measured:
    """`run` calls what it is given once per new token of the batch, when that token is known to the
    host."""
    run(lambda: None)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times: list[float] = []
    start: float | None = None

    def on_step() -> None:
        nonlocal start
        if not times:
            start = energy_joules(device)
        times.append(time.perf_counter())

    run(on_step)
    end = energy_joules(device)
    steps = len(times) - 1
    step_seconds = statistics.median(b - a for a, b in pairwise(times))
    peak_bytes = None
    if device.type == "cuda":
        peak_bytes = torch.cuda.max_memory_allocated(device)
    joules = None
    if start is not None and end is not None:
        joules = (end - start) / (steps * batch)
    return Measured(step_seconds=step_seconds, peak_bytes=peak_bytes, joules=joules)


class OnToken:
    """What `generate` calls a streamer: it is given the prompt once, then every new token on the
    host."""

    def __init__(self, on_step: Callable[[], None]):
        self.on_step = on_step
        self.prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self.prompt_seen:
            self.on_step()
        self.prompt_seen = True

    def end(self) -> None:
        pass


def by_transformers(
    model: Any, prompts: list[list[int]], steps: int, **options: Any
) -> Callable[[Callable[[], None]], None]:
    ids = torch.tensor(prompts, device=model.device)
    options |= dict(max_new_tokens=steps, do_sample=False, eos_token_id=None)

    def run(on_step: Callable[[], None]) -> None:
        model.generate(
            ids, attention_mask=torch.ones_like(ids), streamer=OnToken(on_step), **options
        )

    return run


def by_roe(
    model: Any, prompts: list[list[int]], steps: int, n: int, temperature: float
) -> Callable[[Callable[[], None]], None]:
    layers = model.config.num_hidden_layers
    temperatures = [0.0] * SKIP + [temperature] * (layers - 2 * SKIP) + [0.0] * SKIP
    ensemble = (
        Ensemble(n, GumbelTopK(temperatures, seed=0), first_noisy=SKIP) if n > 1 else Ensemble()
    )
    budget = pass_budget(model, len(prompts))

    def run(on_step: Callable[[], None]) -> None:
        def choose(scores_AV: torch.Tensor, answers: list[GenerationState]) -> list[int]:
            tokens = scores_AV.argmax(-1).tolist()
            on_step()
            return tokens

        answers = [
            GenerationState(i, prompt, document_key(prompt)) for i, prompt in enumerate(prompts)
        ]
        with EnsembleForward(model, ensemble) as forward:
            generate(
                forward,
                answers,
                budget,
                Decoding(choose, lambda tokens: False, steps),
                lambda answer: None,
            )

    return run


def compare(
    model: Any,
    device: torch.device,
    batches: list[int],
    rows: list[int],
    past: int,
    steps: int,
    compiled: bool = False,
) -> None:
    print("| batch | | ms per step | times generate | peak GiB | times n=1 | joules per token |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for batch in batches:
        prompts = random_prompts(model.config.vocab_size, batch, past)
        plain = measure(device, batch, by_transformers(model, prompts, steps))
        print_row(batch, "generate", plain, plain, None)
        if compiled:
            static = by_transformers(model, prompts, steps, cache_implementation="static")
            print_row(
                batch, "generate, static and compiled", measure(device, batch, static), plain, None
            )
        first = None
        for n in rows:
            for temperature in (0.0, 0.3) if n > 1 else (0.0,):
                measured = measure(device, batch, by_roe(model, prompts, steps, n, temperature))
                first = first or measured
                print_row(batch, f"n={n}, temperature {temperature}", measured, plain, first)


def print_row(
    batch: int, name: str, measured: Measured, plain: Measured, first: Measured | None
) -> None:
    peak = "-"
    if measured.peak_bytes is not None:
        peak = f"{measured.peak_bytes / GIB:.2f}"
    peak_ratio = "-"
    if measured.peak_bytes and first and first.peak_bytes:
        peak_ratio = f"{measured.peak_bytes / first.peak_bytes:.3f}"
    joules = "-"
    if measured.joules is not None:
        joules = f"{measured.joules:.3f}"
    cells = [
        f"{measured.step_seconds * 1e3:.2f}",
        f"{measured.step_seconds / plain.step_seconds:.2f}",
        peak,
        peak_ratio,
        joules,
    ]
    print(f"| {batch} | {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--n", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--past", type=int, default=512, help="tokens of the prompts")
    parser.add_argument("--steps", type=int, default=64, help="new tokens")
    parser.add_argument("--compiled", action="store_true", help="transformers' compiled step, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            "No CUDA device is here: nothing was measured. This benchmark needs one with 20 GiB of "
            "memory."
        )
        return
    device = torch.device("cuda", torch.cuda.current_device())
    print(
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {options.steps} new "
        "tokens\n"
    )
    model = random_model(OLMOE_1B_7B, device)
    compare(model, device, options.batch, options.n, options.past, options.steps, options.compiled)


if __name__ == "__main__":
    main()
