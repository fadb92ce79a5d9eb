"""A training step with experts or routers frozen against a full step, side by side, and the optimizer's memory.

    python -m benchmarks.finetune

The bench model, AdamW of torch, 4 rows of 128 tokens; a step is forward, backward, clipping and the optimizer, as
method=finetune-freeze makes it. The three models take turns in one process.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.bench_model import VOCAB, make_model
from benchmarks.measure import side_by_side
from moe_lab.methods.finetune_freeze.config import Phase
from moe_lab.methods.finetune_freeze.parameter_groups import counts, parameter_groups
from moe_lab.methods.finetune_freeze.trainer import Freezing

ROWS, LENGTH = 4, 128


def candidate(frozen: tuple[str, ...]) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    """A training step of a model of its own, and its optimizer."""
    model: Any = make_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    freezing = Freezing(parameter_groups(model), [Phase(frozen=frozen, until=1.0)], [1])
    freezing.on_step_begin(None, SimpleNamespace(global_step=0), None, optimizer=optimizer)
    ids = torch.randint(1, VOCAB, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def held(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state."""
    return sum(
        value.numel() * value.element_size() for state in optimizer.state.values() for value in state.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    made = {name or "nothing": candidate((name,) if name else ()) for name in ("", "experts", "router")}
    print("parameters:", counts(parameter_groups(make_model())))
    seconds = side_by_side({name: step for name, (step, _) in made.items()}, options.rounds)
    memory = {name: held(optimizer) for name, (_, optimizer) in made.items()}
    print("frozen     s/step   times faster   optimizer MiB   share of full")
    for name in made:
        faster, share = seconds["nothing"] / seconds[name], memory[name] / memory["nothing"]
        print(f"{name:8} {seconds[name]:8.3f} {faster:14.2f} {memory[name] / 2**20:15.1f} {share:15.3f}")


if __name__ == "__main__":
    main()
